"""What a broker of a cluster has beyond a single one: its session with ZooKeeper, its part in deciding, its replicas.

Start: connect to ZooKeeper, register, read the metadata, open the logs, lead and follow. Stop: give the leaderships to
other brokers first, so that clients notice nothing, and then leave.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from stratalog.broker.controller.controller import Controller
from stratalog.broker.metadata import znodes
from stratalog.broker.metadata.cluster_metadata import ClusterMetadata, Registration
from stratalog.broker.metadata.cluster_topics import ClusterTopics
from stratalog.broker.metadata.membership import ClusterMembership
from stratalog.broker.metadata.session import ZooKeeperSession
from stratalog.broker.metadata.store import MetadataStore
from stratalog.broker.metadata.zookeeper_errors import ZooKeeperError
from stratalog.broker.replication.replicas import Replicas
from stratalog.broker.settings import Address, BrokerConfig
from stratalog.broker.topic_defaults import topic_config
from stratalog.clock import Clock
from stratalog.storage.log_directory import LogDirectory

logger = logging.getLogger(__name__)

_HAND_OVER_SECONDS = 30.0
_LEASE_CHECK_SECONDS = 1.0


class ClusterMember:
    def __init__(
        self,
        config: BrokerConfig,
        session: ZooKeeperSession,
        metadata: ClusterMetadata,
        directory: LogDirectory,
        clock: Clock,
        on_loop: Callable[[Callable[[], None]], None],
    ) -> None:
        """Callers use join()."""
        self._config = config
        self._session = session
        self._directory = directory
        self.metadata = metadata
        self.topics = ClusterTopics(
            metadata,
            lambda: config.log_defaults,
            default_replication_factor=config.default_replication_factor,
            most_partitions=config.stratalog_max_partitions,
            on_loop=on_loop,
        )
        self.membership = ClusterMembership(metadata, config.node_id)
        self.replicas = Replicas(
            metadata,
            self.topics,
            directory,
            config.cluster,
            config.node_id,
            clock,
            lambda settings: topic_config(config.log_defaults, settings),
        )
        self.controller = Controller(metadata, session, unclean=self._allows_unclean)
        self._lease_reports: asyncio.Task[None] | None = None

    @classmethod
    async def join(
        cls,
        config: BrokerConfig,
        store: MetadataStore,
        directory: LogDirectory,
        address: Address,
        clock: Clock,
        on_loop: Callable[[Callable[[], None]], None],
    ) -> ClusterMember:
        """Register the broker, whose clients connect to `address`. Raises ZooKeeperError and StorageError."""
        cluster = config.cluster
        assert cluster.zookeeper_connect is not None
        session = ZooKeeperSession(
            cluster.zookeeper_connect,
            session_timeout_ms=cluster.zookeeper_session_timeout_ms,
            connection_timeout_ms=cluster.zookeeper_connection_timeout_ms,
            clock=clock,
        )
        known = store.read_cluster_id(config.node_id)
        await session.start()
        try:
            lost_tail = directory.lost_tail or (known is None and await _was_registered(session, config.node_id))
            registration = Registration(config.node_id, address.host, address.port, cluster.broker_rack, lost_tail)
            metadata = await ClusterMetadata.join(session, registration, cluster_id=known)
            if known is None:
                store.save_cluster_id(config.node_id, metadata.view.cluster_id)
            return cls(config, session, metadata, directory, clock, on_loop)
        except BaseException:
            await session.close()
            raise

    async def start(self) -> None:
        """Open the logs, and take the roles that the metadata gives to this broker."""
        self.metadata.on_change(lambda _old, _new: self._forget_lost_tail())
        await self.replicas.start()
        self.controller.start()
        self._forget_lost_tail()
        self._lease_reports = asyncio.create_task(self._report_lease(), name="lease reports")

    async def _report_lease(self) -> None:
        """Log when this broker stops to lead because ZooKeeper does not respond, and when it can lead again."""
        could_lead = True
        while True:
            await asyncio.sleep(_LEASE_CHECK_SECONDS)
            can_lead = self.metadata.can_lead()
            if could_lead and not can_lead:
                logger.warning(
                    "broker %d leads no partition now, and refuses requests for them: ZooKeeper has not confirmed its "
                    "session in time, and other brokers may lead",
                    self._config.node_id,
                )
            elif can_lead and not could_lead:
                logger.info("broker %d can lead again: ZooKeeper has confirmed its session", self._config.node_id)
            could_lead = can_lead

    def _forget_lost_tail(self) -> None:
        """Note in the data directory that the controller knows of records that a power cut has taken: until then, a
        restart must report the loss again."""
        own = self.metadata.view.brokers.get(self._config.node_id)
        is_current = own is not None and own.epoch == self.metadata.broker_epoch
        if self._directory.lost_tail and is_current and own is not None and not own.lost_tail:
            asyncio.get_running_loop().run_in_executor(None, self._directory.forget_lost_tail)

    def _allows_unclean(self, topic: str) -> bool:
        known = self.metadata.view.topics.get(topic)
        settings = {} if known is None else known.settings
        return topic_config(self._config.log_defaults, settings).unclean_leader_election_enable

    async def hand_over(self) -> None:
        """Give the leaderships to other brokers, where there are any that have all records."""
        if not self._config.cluster.controlled_shutdown_enable:
            return
        try:
            async with asyncio.timeout(_HAND_OVER_SECONDS):
                changed = asyncio.Event()
                self.metadata.on_change(lambda _old, _new: changed.set())
                await self.metadata.begin_leaving()
                while self._leads_what_others_could():
                    await changed.wait()
                    changed.clear()
        except (TimeoutError, ZooKeeperError) as error:
            logger.warning("the leaderships could not be handed over: %s", error or "no controller took them in time")

    def _leads_what_others_could(self) -> bool:
        view = self.metadata.view
        live = view.live_epochs()
        return any(
            state.leader == self._config.node_id and any(replica in live for replica in state.isr)
            for state in view.states.values()
        )

    async def stop(self) -> None:
        """Leave the cluster. The logs stay open, for the broker to close."""
        if self._lease_reports is not None:
            self._lease_reports.cancel()
        await self.controller.stop()
        await self.replicas.stop()
        try:
            await self.metadata.leave()
        finally:
            await self._session.close()


async def _was_registered(session: ZooKeeperSession, node_id: int) -> bool:
    """Return whether a broker with this node id was in the cluster before. If its data directory is new, it has lost
    all records, and must not lead because of the log that it had."""
    return await session.get(znodes.registration_path(node_id)) is not None

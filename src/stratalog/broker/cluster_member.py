"""The parts of a broker that only a cluster needs: its session with ZooKeeper, the controller, its replicas.

Start: connect to ZooKeeper, register, read the metadata, open the logs, lead and follow. Stop: give the leaderships to
other brokers first, so that clients notice nothing, and then leave.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from stratalog.broker.apis.cluster_replicas import ClusterReplicaApis
from stratalog.broker.apis.controller import ControllerApis
from stratalog.broker.controller.administration import unregister
from stratalog.broker.controller.controller import Controller
from stratalog.broker.live_settings import ChangedSettings
from stratalog.broker.metadata import znodes
from stratalog.broker.metadata.cluster_metadata import ClusterMetadata, Registration
from stratalog.broker.metadata.cluster_settings import ClusterSettings
from stratalog.broker.metadata.cluster_topics import ClusterTopics
from stratalog.broker.metadata.founding import register_own_topics
from stratalog.broker.metadata.membership import ClusterMembership
from stratalog.broker.metadata.session import ZooKeeperSession
from stratalog.broker.metadata.store import MetadataStore
from stratalog.broker.metadata.znodes import UnreadableZnodeError
from stratalog.broker.metadata.zookeeper_errors import ZooKeeperError
from stratalog.broker.replication.replicas import Replicas
from stratalog.broker.requests import ApiFamily
from stratalog.broker.settings import Address, BrokerConfig
from stratalog.broker.topic_defaults import topic_config
from stratalog.clock import BootClock, Clock
from stratalog.storage.config import LogConfig
from stratalog.storage.log_directory import LogDirectory

logger = logging.getLogger(__name__)

_HAND_OVER_SECONDS = 30.0
_IMBALANCE_PERCENTAGE = 10  # of a broker's preferred partitions that others may lead, as in Kafka
_LEASE_CHECK_SECONDS = 1.0


class ClusterMember:
    def __init__(
        self,
        config: BrokerConfig,
        current: Callable[[], BrokerConfig],
        session: ZooKeeperSession,
        metadata: ClusterMetadata,
        store: MetadataStore,
        directory: LogDirectory,
        clock: Clock,
        on_loop: Callable[[Callable[[], None]], None],
    ) -> None:
        """Callers use join()."""
        self._store = store
        self._config = config
        self._current = current
        self._session = session
        self._directory = directory
        self._has_noted_loss = False
        self._tasks: list[asyncio.Task[None]] = []
        self._clock = clock
        self.metadata = metadata
        self.topics = ClusterTopics(
            metadata,
            lambda: current().log_defaults,
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
            self._log_config,
        )
        self.controller = Controller(metadata, session, unclean=self._allows_unclean)

    @classmethod
    async def join(
        cls,
        config: BrokerConfig,
        current: Callable[[], BrokerConfig],
        store: MetadataStore,
        directory: LogDirectory,
        address: Address,
        clock: Clock,
        on_loop: Callable[[Callable[[], None]], None],
    ) -> ClusterMember:
        """Register the broker, whose clients connect to `address`. `current` returns its settings after changes that
        were made while it ran. Raises ZooKeeperError and StorageError."""
        cluster = config.cluster
        assert cluster.zookeeper_connect is not None
        session = ZooKeeperSession(
            cluster.zookeeper_connect,
            session_timeout_ms=cluster.zookeeper_session_timeout_ms,
            connection_timeout_ms=cluster.zookeeper_connection_timeout_ms,
            clock=BootClock(),
        )
        known = store.read_cluster_id(config.node_id)
        await session.start()
        try:
            # Without an id, the directory is new: a broker of this node id that was registered has lost its logs.
            lost_tail = directory.lost_tail or (known is None and await _was_registered(session, config.node_id))
            registration = Registration(config.node_id, address.host, address.port, cluster.broker_rack, lost_tail)
            may_found = not store.belongs_to_cluster
            metadata = await ClusterMetadata.join(session, registration, cluster_id=known, may_found=may_found)
            return cls(config, current, session, metadata, store, directory, clock, on_loop)
        except BaseException:
            await session.close()
            raise

    async def start(self) -> None:
        """Open the logs, and take the roles that the metadata gives to this broker."""
        self.metadata.on_change(lambda _old, _new: self._forget_loss())
        in_thread = partial(asyncio.get_running_loop().run_in_executor, None)
        await register_own_topics(self.metadata, self._store, self._log_config, in_thread)
        await self.replicas.start()
        self.controller.start()
        self._forget_loss()
        self._tasks.append(asyncio.create_task(self._report_lease(), name="lease reports"))
        if self._config.cluster.auto_leader_rebalance_enable:
            self._tasks.append(asyncio.create_task(self._rebalance(), name="preferred leaders"))

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

    def apis(self) -> Sequence[ApiFamily]:
        """Return the API families whose answers depend on the cluster's metadata, instead of those of a single
        broker."""
        metadata = self.metadata
        return (
            ClusterReplicaApis(self.topics, metadata, self._directory.path),
            ControllerApis(self.membership, self._clock, partial(unregister, metadata)),
        )

    @property
    def changed_settings(self) -> ChangedSettings:
        return ClusterSettings(self.metadata, self.topics.run)

    def _forget_loss(self) -> None:
        """Note in the data directory that the controller knows which records this broker has lost, in a power cut or
        with its whole directory. Until then, a restart must report the loss again."""
        own = self.metadata.view.brokers.get(self._config.node_id)
        if self._has_noted_loss or own is None or own.lost_tail or own.epoch != self.metadata.broker_epoch:
            return
        self._has_noted_loss = True

        def note() -> None:
            if not self._store.belongs_to_cluster:
                self._store.save_cluster_id(self._config.node_id, self.metadata.view.cluster_id, in_cluster=True)
            if self._directory.lost_tail:
                self._directory.forget_lost_tail()

        noting = asyncio.get_running_loop().run_in_executor(None, note)
        noting.add_done_callback(_report_failure)

    async def _rebalance(self) -> None:
        """Give partitions back to their preferred leaders from time to time, while this broker is the controller."""
        while True:
            await asyncio.sleep(self._config.cluster.leader_imbalance_check_interval_seconds)
            try:
                await self.controller.restore_preferred(_IMBALANCE_PERCENTAGE)
            except (ZooKeeperError, UnreadableZnodeError) as error:
                logger.info("the preferred leaders can't be elected now: %s", error)

    def _log_config(self, settings: Mapping[str, str]) -> LogConfig:
        return topic_config(self._current().log_defaults, settings)

    def _allows_unclean(self, topic: str) -> bool:
        known = self.metadata.view.topics.get(topic)
        settings = {} if known is None else known.settings
        return self._log_config(settings).unclean_leader_election_enable

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
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.controller.stop()
        await self.replicas.stop()
        try:
            await self.metadata.leave()
        finally:
            await self._session.close()


def _report_failure(noting: asyncio.Future[None]) -> None:
    if not noting.cancelled() and (error := noting.exception()) is not None:
        logger.error("the data directory could not be marked as known to the cluster: %s", error)


async def _was_registered(session: ZooKeeperSession, node_id: int) -> bool:
    """Return whether a broker with this node id was in the cluster before. If its data directory is new, it has lost
    all records, and must not lead because of the log that it had."""
    return await session.get(znodes.registration_path(node_id)) is not None

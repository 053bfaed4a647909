"""The composition root: puts a broker together, starts it, stops it.

    broker = await Broker.start(data_dir, BrokerConfig.parse({...}), "127.0.0.1", 9092)
    ...
    await broker.stop()

Stopping completes the requests in flight, flushes every log and writes the marker of a clean shutdown. A broker that is
killed instead loses nothing that it acknowledged: the next start reads the ends of its logs.
"""

from __future__ import annotations

import asyncio
import logging
import platform
from collections.abc import Awaitable, Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from stratalog.broker.apis.acls import AclApis
from stratalog.broker.apis.cluster import ClusterApis
from stratalog.broker.apis.committed_offsets import CommittedOffsetApis
from stratalog.broker.apis.compaction import CompactionApi
from stratalog.broker.apis.config_resources import ConfigResourcesApi
from stratalog.broker.apis.configs import ConfigApis
from stratalog.broker.apis.consumer_groups import ConsumerGroupApis
from stratalog.broker.apis.controller import ControllerApis
from stratalog.broker.apis.coordinators import CoordinatorApi
from stratalog.broker.apis.delete_records import DeleteRecordsApi
from stratalog.broker.apis.fetch import FetchApi
from stratalog.broker.apis.groups import GroupApis
from stratalog.broker.apis.leader_epochs import LeaderEpochsApi
from stratalog.broker.apis.list_offsets import ListOffsetsApi
from stratalog.broker.apis.log_dirs import LogDirsApi
from stratalog.broker.apis.metadata import MetadataApi
from stratalog.broker.apis.own import OwnApi
from stratalog.broker.apis.produce import ProduceApi
from stratalog.broker.apis.producers import ProducerApis
from stratalog.broker.apis.quotas import QuotaApis
from stratalog.broker.apis.replicas import ReplicaApis
from stratalog.broker.apis.scram import ScramApis
from stratalog.broker.apis.topics import TopicApis
from stratalog.broker.apis.transaction_admin import TransactionAdminApis
from stratalog.broker.apis.transactions import TransactionApis
from stratalog.broker.apis.two_phase import TwoPhaseApi
from stratalog.broker.apis.versions import VersionsApi
from stratalog.broker.counters import Counters
from stratalog.broker.disk_reserve import DiskWithReserve
from stratalog.broker.dispatch import Dispatcher
from stratalog.broker.due_flushes import DueFlushes
from stratalog.broker.fetch_sessions import FetchSessions
from stratalog.broker.groups import consumer_group
from stratalog.broker.groups.consumer_coordinator import ConsumerGroups
from stratalog.broker.groups.coordinator import GroupCoordinator
from stratalog.broker.groups.offsets_topic import OffsetsTopic
from stratalog.broker.live_settings import LiveSettings
from stratalog.broker.long_polls import LongPolls
from stratalog.broker.metadata.embedded import EmbeddedTopics
from stratalog.broker.metadata.membership import BrokersAndPlacements, OnlyBroker
from stratalog.broker.metadata.store import MetadataStore
from stratalog.broker.metadata.topics import TopicRegistry
from stratalog.broker.producer_ids import ProducerIdAllocator
from stratalog.broker.requests import ApiFamily, Handler
from stratalog.broker.settings import Address, BrokerConfig
from stratalog.broker.transactions.admission import Admission
from stratalog.broker.transactions.coordinator import TransactionCoordinator
from stratalog.broker.transactions.markers import MarkerWriter
from stratalog.broker.transactions.transactions_topic import TransactionsTopic
from stratalog.broker.transactions.two_phase import TwoPhase
from stratalog.broker.worker_threads import WorkerThreads
from stratalog.clock import Clock, SystemClock
from stratalog.errors import StorageError
from stratalog.net.server import Limits, Server, bind
from stratalog.protocol.api_keys import ApiKey
from stratalog.storage.log_directory import LogDirectory

if TYPE_CHECKING:
    from stratalog.broker.cluster_member import ClusterMember
    from stratalog.broker.metadata.cluster_view import ClusterView

logger = logging.getLogger(__name__)

T = TypeVar("T")

GRACE_SECONDS = 5.0
_RESERVE_INTERVAL = 30.0


class Broker:
    def __init__(self, data_dir: Path, config: BrokerConfig, clock: Clock) -> None:
        """Open the data directory and its metadata. Callers use start()."""
        self.counters = Counters()
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._listened = Address("", 0)
        self._is_composed = False
        self._loading: asyncio.Task[None] | None = None  # of groups and transactions, which refuse requests until then
        disk = self._disk = DiskWithReserve(data_dir)
        self._reserve_timer: asyncio.TimerHandle | None = None
        self.directory = LogDirectory.open(
            data_dir,
            config.log_defaults,
            directory_config=config.directory,
            cleaner_config=config.cleaner,
            disk=disk,
            clock=clock,
            in_cluster=config.cluster.is_cluster,
        )
        try:
            self._background = ThreadPoolExecutor(1, thread_name_prefix="stratalog-background")
            self._worker_threads = WorkerThreads()
            self._due_flushes = DueFlushes(self._worker_threads.wait_for_disk)
            self.store = MetadataStore(self.directory.path, disk)
            self.settings = LiveSettings(config, self.store)
        except BaseException:
            self.directory.close()
            raise
        self.topics: TopicRegistry
        self.membership: BrokersAndPlacements
        self.member: ClusterMember | None = None  # None for a broker that is alone

    def _be_alone(self) -> None:
        """Be the only broker: all topics are in the data directory."""
        config = self.config
        if self.store.belongs_to_cluster:
            raise StorageError(
                f"{self.directory.path}: the data directory belongs to a broker of a cluster, whose topics are in "
                "ZooKeeper; start the broker with --set zookeeper.connect=..., or with another data directory"
            )
        self.membership = OnlyBroker(self.store.load_cluster_id(config.node_id), config.node_id, self.address)
        self.topics = EmbeddedTopics(
            self.directory,
            self.store,
            lambda: self.config.log_defaults,
            most_partitions=config.stratalog_max_partitions,
            on_loop=self._on_loop,
            node_id=config.node_id,
        )

    async def _join_cluster(self, port: int) -> None:
        """Become one of the brokers of the cluster in ZooKeeper; clients connect to `port`."""
        from stratalog.broker.cluster_member import ClusterMember  # imports kazoo, which only clusters need

        self._listened = Address(self._listened.host, port)
        self.member = await ClusterMember.join(
            self.config,
            lambda: self.config,
            self.store,
            self.directory,
            self.address(),
            self._clock,
            self._on_loop,
        )
        self.settings.join(self.member.changed_settings)
        self.member.metadata.on_change(self._metadata_changed)
        self.topics = self.member.topics
        self.membership = self.member.membership

    def _compose(self) -> None:
        config = self.config
        self.fetch_sessions = FetchSessions(config.max_incremental_fetch_session_cache_slots, self._clock)
        self.fetch = FetchApi(
            self.topics,
            self.fetch_sessions,
            self.counters,
            self._worker_threads,
            LongPolls(config.queued_max_request_bytes),
            max_bytes=lambda: self.config.fetch_max_bytes,
            longest_wait=config.connections_max_idle_ms / 1000,
        )
        routes = self._routes()
        self.own = OwnApi(
            CompactionApi(self.topics, self.directory.cleaner, self._clock).methods(),
            TwoPhaseApi(TwoPhase(self.transactions, self.producer_ids, self._clock)).methods(),
        )
        self.produce = ProduceApi(
            self.topics,
            self.counters,
            self.admission,
            self._worker_threads,
            self._clock,
            has_replicas=self.member is not None,
        )
        dispatcher = Dispatcher(
            self.produce,
            self.fetch,
            routes,
            self.own,
            self.counters,
            self._clock,
            self._worker_threads,
            self._due_flushes,
            largest_request=config.socket_request_max_bytes,
        )
        self.server = Server(
            dispatcher.serve,
            dispatcher.largest_frame,
            _limits(config),
            small_frame=dispatcher.small_frame,
            is_heavy=dispatcher.is_heavy,
            outlives_its_client=dispatcher.outlives_its_client,
        )
        dispatcher.turns.memory = self.server.memory
        self.settings.on_change(self._settings_changed)
        self._is_composed = True

    def _routes(self) -> dict[ApiKey, Handler]:
        config, topics, background = self.config, self.topics, self.run_in_background
        self.groups = GroupCoordinator(
            config.groups,
            self._clock,
            OffsetsTopic(topics, config.groups, background, self._due_flushes),
            self._loop.call_later,
            consumer_group.replay,
        )
        topics.on_change(self._notify_groups)
        reserve = self.member.metadata.producer_ids if self.member is not None else None
        producer_ids = self.producer_ids = ProducerIdAllocator(topics, self.store, background, reserve)
        self.transactions = TransactionCoordinator(
            config.transactions,
            self._clock,
            TransactionsTopic(topics, config.transactions, background, self._due_flushes),
            MarkerWriter(topics, self.groups, self._clock, background),
            producer_ids,
            self._loop.call_later,
            self.groups.budget,
        )
        self.admission = Admission(
            self.transactions, lambda: self.config.transactions.transaction_partition_verification_enable
        )
        group_settings = self.settings.groups
        consumer_groups = ConsumerGroups(
            self.groups, topics, config.groups, self._worker_threads.match_patterns, group_settings.effective
        )
        group_settings.on_change(lambda group_id: self._on_loop(lambda: consumer_groups.settings_changed(group_id)))
        configs = ConfigApis(topics, self.settings, background, self._derived_settings)
        families: tuple[ApiFamily, ...] = (
            MetadataApi(topics, config, self.membership, background),
            ListOffsetsApi(topics, self._worker_threads),
            LeaderEpochsApi(topics),
            ProducerApis(topics, producer_ids, self.transactions),
            TopicApis(topics, config, self._clock, background, self.run_in_portions, configs.describe_new_topic),
            configs,
            DeleteRecordsApi(topics, self.directory, background),
            LogDirsApi(topics, self.directory.path),
            ReplicaApis(topics, config.node_id, self.directory.path),
            ConfigResourcesApi(topics, self.membership, group_settings),
            ControllerApis(self.membership, self._clock),
            AclApis(),
            QuotaApis(),
            ScramApis(),
            ClusterApis(topics, config, self.membership),
            CoordinatorApi(config.node_id, self.address, is_available=self.member is None),
        )
        coordinators = (
            GroupApis(self.groups, consumer_groups),
            CommittedOffsetApis(self.groups, topics),
            ConsumerGroupApis(consumer_groups, topics, config.groups),
            TransactionApis(self.transactions, self.groups, topics, self.admission),
            TransactionAdminApis(self.transactions, self._clock, self._worker_threads.match_patterns),
        )
        routes: dict[ApiKey, Handler] = {}
        of_role: Sequence[ApiFamily] = coordinators if self.member is None else self.member.apis()
        for family in (*families, *of_role):
            routes |= family.routes()
        return routes | VersionsApi({*routes, ApiKey.API_VERSIONS, ApiKey.PRODUCE, ApiKey.FETCH}).routes()

    @property
    def config(self) -> BrokerConfig:
        """Return the current settings: some can be changed while the broker runs."""
        return self.settings.current

    def _settings_changed(self) -> None:
        """Apply changed settings. Runs in the background thread."""
        self.topics.reconfigure_all()
        self.directory.cleaner.reconfigure(self.config.cleaner)
        self._on_loop(self._apply_limits)

    def _metadata_changed(self, old: ClusterView, new: ClusterView) -> None:
        """Apply settings that another broker has changed."""
        if old.broker_settings != new.broker_settings:
            self._background.submit(self.settings.refresh)

    def _apply_limits(self) -> None:
        if self.member is not None:
            self.member.controller.look_at_all()  # unclean.leader.election.enable may have changed
        self.server.limits = _limits(self.config)
        self.groups.budget.limit = self.config.groups.stratalog_max_coordinator_state_bytes

    def _derived_settings(self) -> dict[str, str]:
        """Return settings whose values are not in the configuration, for DescribeConfigs."""
        return {
            "listeners": f"PLAINTEXT://{self._listened.host}:{self._listened.port}",
            "advertised.listeners": f"PLAINTEXT://{self.address().host}:{self.address().port}",
            "log.dirs": str(self.directory.path),
        }

    def _notify_groups(self) -> None:
        self.groups.topics_changed({topic.name: topic.id for topic in self.topics.all()})

    @classmethod
    async def start(
        cls,
        data_dir: str | Path,
        config: BrokerConfig,
        host: str,
        port: int,
        *,
        clock: Clock | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Broker:
        """Start a broker, which serves requests when this returns. Calls `progress(done, total)` for each log that it
        opens."""
        listener = bind(host, port, config.socket_receive_buffer_bytes)  # first: a failure here touches no file
        try:
            broker = cls(Path(data_dir), config, clock or SystemClock())
        except BaseException:
            listener.close()
            raise
        broker._listened = Address(host, port)
        try:
            if config.cluster.is_cluster:
                await broker._join_cluster(listener.getsockname()[1])
            else:
                broker._be_alone()
            broker._compose()
            await broker._open_logs(progress)
            broker._listened = Address(host, broker.server.listen_on(listener))
            if broker.member is None:
                broker._loading = asyncio.create_task(broker._load())
            broker._disk.is_starting = False
            broker._keep_reserve()
        except BaseException:
            listener.close()
            await (broker.stop() if broker._is_composed else broker._close_directory())
            raise
        return broker

    async def _load(self) -> None:
        await self.groups.load()  # first, because ending a transaction gives its committed offsets to its groups
        await self.transactions.load(() if self.directory.was_clean else self.topics.all_partitions())

    async def _open_logs(self, progress: Callable[[int, int], None] | None) -> None:
        started = self._clock.monotonic()
        must_check = not self.directory.was_clean and bool(self.directory.partitions())
        if must_check:
            logger.info("the last shutdown was not clean: checking the ends of all logs")
        if self.member is not None:
            await self.member.start()
        elif isinstance(self.topics, EmbeddedTopics):
            self.topics.load(progress)
        logs = [partition.log for partition in self.topics.all_partitions() if partition.is_hosted]
        cut = sum(log.recovery.cut.bytes for log in logs if log.recovery.cut is not None)
        if must_check:
            seconds = self._clock.monotonic() - started
            logger.info("opened %d logs in %.1f s; %d bytes of torn batches were truncated", len(logs), seconds, cut)

    def _keep_reserve(self) -> None:
        self._disk.keep_reserve()
        self._reserve_timer = self._loop.call_later(_RESERVE_INTERVAL, self._keep_reserve)

    @property
    def port(self) -> int:
        return self._listened.port

    def address(self) -> Address:
        """Return the address that responses give to clients."""
        if self.config.advertised_address is not None:
            return self.config.advertised_address
        host, port = self._listened
        return Address(platform.node() if host in ("", "0.0.0.0", "::") else host, port)

    def run_in_background(self, call: Callable[[], T]) -> Awaitable[T]:
        """Run a call in the background thread, after all earlier calls."""
        return self._loop.run_in_executor(self._background, call)

    def run_in_portions(self, work: Generator[None, None, T]) -> Awaitable[T]:
        """Run work in the background thread. At each `yield`, other calls that wait for the thread run."""
        done: Future[T] = Future()
        done.set_running_or_notify_cancel()  # so that cancelling the wait does not stop the work

        def run_portion() -> None:
            try:
                next(work)
            except StopIteration as finished:
                done.set_result(finished.value)
            except BaseException as error:
                done.set_exception(error)
            else:
                self._background.submit(run_portion)

        self._background.submit(run_portion)
        return asyncio.wrap_future(done, loop=self._loop)

    def _on_loop(self, call: Callable[[], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call)

    async def stop(self, grace_seconds: float = GRACE_SECONDS) -> int:
        """Complete the requests in flight, disconnect clients, flush and close all logs. Return how many threads still
        check batches of disconnected clients: nothing depends on them, but Python waits for them before it exits."""
        if self._reserve_timer is not None:
            self._reserve_timer.cancel()
        if self.member is not None:
            await self.member.hand_over()
        self.server.stop_listening()
        self.fetch.drain()
        if self.member is not None:
            await self.member.stop()
        if self._loading is not None:
            self._loading.cancel()
        self.transactions.close()
        self.groups.close()  # first, so that members in a rebalance get a response: COORDINATOR_NOT_AVAILABLE
        await self.server.close(grace_seconds)
        self.own.close()
        self.produce.close()
        unfinished_checks = await self._loop.run_in_executor(None, self._worker_threads.close)
        await self._close_directory()
        return unfinished_checks

    async def _close_directory(self) -> None:
        await self._loop.run_in_executor(None, self._background.shutdown)
        await self._loop.run_in_executor(None, self.directory.close)


def _limits(config: BrokerConfig) -> Limits:
    return Limits(
        idle_seconds=config.connections_max_idle_ms / 1000,
        connections=config.max_connections,
        connections_per_host=config.max_connections_per_ip,
        held_bytes=config.queued_max_request_bytes,
        backlog=config.socket_listen_backlog_size,
        send_buffer=config.socket_send_buffer_bytes,
        receive_buffer=config.socket_receive_buffer_bytes,
    )

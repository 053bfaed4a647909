"""Brings the replicas of this broker into the roles that the cluster's metadata gives them.

A change of the view has two parts. The first runs at once, on the event loop: new topics become visible, and a broker
that is not the leader any more stops to serve. The second runs in a task, in rounds: it opens and deletes logs in a
thread, and then leads or follows. A round takes the newest view, so several changes may be one round.

A leader writes its leader epoch to the log before it serves. Nothing is appended to a log while its role changes.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeVar

from stratalog.broker.metadata.cluster_metadata import ClusterMetadata
from stratalog.broker.metadata.cluster_topics import ClusterTopics
from stratalog.broker.metadata.cluster_view import ClusterView, PartitionId
from stratalog.broker.metadata.partition_state import NO_LEADER, PartitionState
from stratalog.broker.replication.config import ClusterConfig
from stratalog.broker.replication.fetcher import Leader, ReplicaFetcher
from stratalog.broker.replication.isr_changes import IsrChanges
from stratalog.broker.replication.partition import ReplicaContext, ReplicatedPartition
from stratalog.clock import Clock
from stratalog.errors import FencedLeaderEpochError, StorageError, StratalogError
from stratalog.protocol.current_leader import CurrentLeader
from stratalog.storage.config import LogConfig
from stratalog.storage.log import Log
from stratalog.storage.log_directory import LogDirectory
from stratalog.storage.names import TopicPartition

logger = logging.getLogger(__name__)
T = TypeVar("T")

_PORTION = 200  # logs that are created before the next ones are looked at
_APPENDING_THREADS = 4


class _Role(NamedTuple):
    """A partition and the state in which it is to take its role."""

    partition: ReplicatedPartition
    state: PartitionState


class Replicas:
    def __init__(
        self,
        metadata: ClusterMetadata,
        topics: ClusterTopics,
        directory: LogDirectory,
        config: ClusterConfig,
        node_id: int,
        clock: Clock,
        topic_config: Callable[[Mapping[str, str]], LogConfig],
    ) -> None:
        """`topic_config` returns the settings of a log for a topic's own settings."""
        self._metadata = metadata
        self._topics = topics
        self._directory = directory
        self._config = config
        self._node_id = node_id
        self._topic_config = topic_config
        self._context = ReplicaContext(
            node_id, clock, metadata.can_lead, lambda: config.replica_lag_time_max_ms, self._registered_epoch
        )
        self._context.leader_of = self._leader_of
        self._context.selects_by_rack = config.selects_by_rack
        self._context.rack_of = self._rack_of
        self.isr_changes = IsrChanges(metadata, self._context, self._led)
        self._partitions: dict[PartitionId, ReplicatedPartition] = {}
        self._opened: set[PartitionId] = set()
        self._configured: dict[uuid.UUID, int] = {}  # the versions of topics whose settings are in effect
        self._doomed: dict[PartitionId, ReplicatedPartition] = {}  # whose logs are to be deleted
        self._fetchers: dict[tuple[int, int], ReplicaFetcher] = {}
        self._fetched_by: dict[PartitionId, ReplicaFetcher] = {}
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._roles_thread = ThreadPoolExecutor(1, "stratalog-roles")
        self._append_threads = ThreadPoolExecutor(_APPENDING_THREADS, "stratalog-replica")
        self._task: asyncio.Task[None] | None = None
        self._watermarks: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Take over the present view: returns when the logs are open, and this broker leads and follows."""
        await self._in_roles_thread(self._set_strays_aside)
        self._metadata.on_change(self._view_changed)
        self._show(self._metadata.view)
        await self._take_roles()
        self._task = asyncio.create_task(self._run(), name="roles of replicas")
        self._watermarks = asyncio.create_task(self._save_watermarks(), name="high watermarks")
        self.isr_changes.start()

    async def stop(self) -> None:
        """Stop to lead and to follow, and save the high watermarks. The logs stay open."""
        self.isr_changes.stop()
        tasks = [task for task in (self._task, self._watermarks) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for partition in self._partitions.values():
            partition.resign()
        await asyncio.gather(*(fetcher.stop() for fetcher in self._fetchers.values()))
        await self._in_roles_thread(self._save_watermarks_now)
        await self._loop.run_in_executor(None, self._roles_thread.shutdown)
        await self._loop.run_in_executor(None, self._append_threads.shutdown)

    def _registered_epoch(self, node_id: int) -> int | None:
        broker = self._metadata.view.brokers.get(node_id)
        return None if broker is None else broker.epoch

    def _led(self) -> Iterable[ReplicatedPartition]:
        return (partition for partition in self._partitions.values() if partition.leadership is not None)

    def _leader_of(self, partition: PartitionId) -> CurrentLeader | None:
        view = self._metadata.view
        state = view.states.get(partition)
        if state is None:
            return None
        leader = view.brokers.get(state.leader)
        if leader is None:
            return CurrentLeader(NO_LEADER, state.leader_epoch, "", -1)
        return CurrentLeader(leader.node_id, state.leader_epoch, leader.host, leader.port, leader.rack)

    def _rack_of(self, node_id: int) -> str | None:
        broker = self._metadata.view.brokers.get(node_id)
        return None if broker is None else broker.rack

    # Part one: at once

    def _view_changed(self, _: ClusterView, view: ClusterView) -> None:
        self._show(view)
        self._changed.set()

    def _show(self, view: ClusterView) -> None:
        """Create the partitions of new topics, drop those of deleted ones, and stop to serve what others lead."""
        present = set()
        for topic in view.topics.values():
            for index in range(topic.partition_count):
                key = PartitionId(topic.id, index)
                present.add(key)
                if key not in self._partitions:
                    self._partitions[key] = self._unopened(topic.name, key, topic.settings)
        for key in [key for key in self._partitions if key not in present]:
            if self._partitions[key].topic in view.unreadable_topics:  # it exists, though ZooKeeper does not say what
                continue
            partition = self._partitions.pop(key)
            partition.resign()
            self._doomed[key] = partition
        for key, partition in self._partitions.items():
            state = view.states.get(key)
            if partition.leadership is not None and not self._still_leads(partition, state):
                partition.resign()
        self._topics.publish(view, self._partitions)

    def _still_leads(self, partition: ReplicatedPartition, state: PartitionState | None) -> bool:
        return state is not None and self._is_to_lead(state) and state.leader_epoch == partition.leader_epoch

    def _unopened(self, topic: str, key: PartitionId, settings: Mapping[str, str]) -> ReplicatedPartition:
        reason = StorageError(f"broker {self._node_id} has no replica of {topic}-{key.partition}")
        log = self._directory.unopened_log(topic, key.partition, self._topic_config(settings), reason)
        return ReplicatedPartition(topic, key.partition, key, log, self._context)

    # Part two: in rounds

    async def _run(self) -> None:
        while True:
            await self._changed.wait()
            try:
                await self._take_roles()
            except Exception:
                logger.exception("taking the roles of the newest metadata failed; it is tried again")
                await asyncio.sleep(1)

    async def _take_roles(self) -> None:
        self._changed.clear()
        view = self._metadata.view
        await self._drop()
        hosted = {
            key: _Role(partition, state)
            for key, partition in self._partitions.items()
            if (state := view.states.get(key)) is not None and self._node_id in state.replicas
        }
        await self._leave(view, hosted)
        await self._open(view, [role for key, role in hosted.items() if key not in self._opened])
        self._reconfigure(view)
        roles = [role for role in hosted.values() if role.partition.state is not role.state]
        await self._take_leaderships([role for role in roles if self._is_to_lead(role.state)])
        for role in roles:
            if not self._is_to_lead(role.state) or role.partition.is_offline:
                await self._follow(view, role)
        await self._retarget(view)

    def _is_to_lead(self, state: PartitionState) -> bool:
        return state.leader == self._node_id and state.leader_broker_epoch == self._metadata.broker_epoch

    async def _drop(self) -> None:
        """Delete the logs of deleted topics."""
        doomed, self._doomed = self._doomed, {}
        for partition in doomed.values():
            await self._stop_copying(partition)
        self._opened -= doomed.keys()
        names = [TopicPartition(partition.topic, partition.index) for partition in doomed.values()]
        if names:
            await self._in_roles_thread(lambda: self._delete(names))

    def _delete(self, names: list[TopicPartition]) -> None:
        try:
            on_disk = set(self._directory.partitions())
            self._directory.delete_all([name for name in names if name in on_disk])
        except StratalogError as error:
            logger.warning("the logs of deleted replicas could not all be removed: %s", error)

    async def _leave(self, view: ClusterView, hosted: Mapping[PartitionId, _Role]) -> None:
        """Give up replicas that a reassignment has moved away."""
        moved = [key for key in self._opened if key not in hosted and key in self._partitions and key in view.states]
        for key in moved:
            old = self._partitions[key]
            await self._stop_copying(old)
            old.resign()
            self._partitions[key] = self._unopened(old.topic, key, view.topics[old.topic].settings)
            logger.info("%s-%d has moved to other brokers; its log here is deleted", old.topic, old.index)
        if moved:
            self._opened -= set(moved)
            self._topics.publish(self._metadata.view, self._partitions)
            names = [TopicPartition(self._partitions[key].topic, key.partition) for key in moved]
            await self._in_roles_thread(lambda: self._delete(names))

    async def _open(self, view: ClusterView, roles: list[_Role]) -> None:
        settings = {topic.id: topic.settings for topic in view.topics.values()}
        for start in range(0, len(roles), _PORTION):
            portion = [
                (role.partition, self._topic_config(settings[role.partition.id.topic_id]))
                for role in roles[start : start + _PORTION]
            ]
            logs = await self._in_roles_thread(partial(self._open_logs, portion))
            for (partition, _), log in zip(portion, logs, strict=True):
                if isinstance(log, StratalogError):
                    logger.error("%s-%d is offline: %s", partition.topic, partition.index, log)
                    partition.is_offline = True
                    continue
                name = TopicPartition(partition.topic, partition.index)
                partition.log = log
                partition.is_offline = False
                partition.restore_high_watermark(self._directory.high_watermarks.get(name))
                self._opened.add(partition.id)

    def _open_logs(self, partitions: list[tuple[ReplicatedPartition, LogConfig]]) -> list[Log | StratalogError]:
        """Create and open logs. Return each log, or the error. Runs in a thread."""
        ids = {TopicPartition(each.topic, each.index): each.id.topic_id for each, _ in partitions}
        on_disk = set(self._directory.partitions())
        for name, topic_id in ids.items():  # a topic of the same name may have been deleted while this broker was away
            if name in on_disk and self._directory.topic_id(*name) not in (None, topic_id):
                self._directory.set_aside(*name)
        unmade = self._directory.make_all(ids)
        logs: list[Log | StratalogError] = []
        for (name, topic_id), (_, config) in zip(ids.items(), partitions, strict=True):
            try:
                if name in unmade:
                    raise unmade[name]
                logs.append(self._directory.log(name.topic, name.partition, config, topic_id=topic_id))
            except StratalogError as error:
                logs.append(error)
        return logs

    def _set_strays_aside(self) -> None:
        """Set replicas aside whose topics are not in the cluster (any more), or are elsewhere now."""
        view = self._metadata.view
        for name in self._directory.partitions():
            if name.topic in view.unreadable_topics:
                continue
            topic = view.topics.get(name.topic)
            topic_id = self._directory.topic_id(*name)
            if topic is None or topic_id not in (None, topic.id) or name.partition >= topic.partition_count:
                logger.warning("%s-%d belongs to no topic of the cluster; it is set aside as a stray", *name)
                self._directory.set_aside(*name)

    def _reconfigure(self, view: ClusterView) -> None:
        """Apply the settings of topics that have changed. Logs are opened with those of the view."""
        for topic in view.topics.values():
            if self._configured.get(topic.id) == topic.version:
                continue
            self._configured[topic.id] = topic.version
            config = self._topic_config(topic.settings)
            for index in range(topic.partition_count):
                self._partitions[PartitionId(topic.id, index)].log.reconfigure(config)
        for topic_id in self._configured.keys() - {topic.id for topic in view.topics.values()}:
            del self._configured[topic_id]

    async def _take_leaderships(self, roles: list[_Role]) -> None:
        new = []
        for role in roles:
            partition, state = role
            if partition.is_offline:
                continue
            if partition.leadership is not None and partition.leader_epoch == state.leader_epoch:
                partition.learn(state)
            else:
                partition.resign()
                await self._stop_copying(partition)
                new.append(role)
        if not new:
            return
        failed = await self._in_roles_thread(lambda: self._begin_epochs(new))
        for partition, state in new:
            if (error := failed.get(partition.id)) is not None:
                logger.error("%s-%d can't lead: %s", partition.topic, partition.index, error)
                if isinstance(error, FencedLeaderEpochError):
                    await self._raise_epoch(partition, state)
                continue
            newest = self._metadata.view.states.get(partition.id)
            if newest is None or not self._is_to_lead(newest) or newest.leader_epoch != state.leader_epoch:
                continue  # the next round has another role for it
            partition.lead(newest)

    async def _raise_epoch(self, partition: ReplicatedPartition, state: PartitionState) -> None:
        """Lead in an epoch after those in the log: the log is older than the cluster, or ZooKeeper was restored from a
        backup."""
        newer = replace(state, leader_epoch=(partition.log.leader_epochs.latest or 0) + 1)
        try:
            await self._metadata.change_state(partition.id, newer)
        except StratalogError as error:
            logger.error("%s-%d can't get a newer leader epoch: %s", partition.topic, partition.index, error)

    def _begin_epochs(self, roles: list[_Role]) -> dict[PartitionId, StratalogError]:
        """Write the leader epochs to the logs. Runs in a thread, because it syncs files."""
        failed: dict[PartitionId, StratalogError] = {}
        for partition, state in roles:
            try:
                partition.log.begin_epoch(state.leader_epoch)
            except StratalogError as error:
                failed[partition.id] = error
        return failed

    # Following

    async def _follow(self, view: ClusterView, role: _Role) -> None:
        partition, state = role
        if partition.follows(state):
            partition.state = state
            return
        await self._stop_copying(partition)
        partition.follow(state)
        if state.leader in view.brokers and state.leader != self._node_id and not partition.is_offline:
            self._copy(view, partition, state.leader)

    def _copy(self, view: ClusterView, partition: ReplicatedPartition, leader: int) -> None:
        broker = view.brokers[leader]
        shard = hash(partition.id) % self._config.num_replica_fetchers
        fetcher = self._fetchers.get((leader, shard))
        if fetcher is None:
            fetcher = self._fetchers[leader, shard] = ReplicaFetcher(
                Leader(broker.node_id, broker.host, broker.port, broker.epoch),
                self._config,
                self._node_id,
                lambda: self._metadata.broker_epoch,
                self._in_append_thread,
            )
        self._fetched_by[partition.id] = fetcher
        fetcher.add(partition)

    async def _stop_copying(self, partition: ReplicatedPartition) -> None:
        fetcher = self._fetched_by.pop(partition.id, None)
        if fetcher is not None:
            await fetcher.remove(partition)

    async def _retarget(self, view: ClusterView) -> None:
        """Replace the fetchers of brokers that have registered again, perhaps at another address; stop idle ones; and
        copy from leaders that are back."""
        for key, fetcher in list(self._fetchers.items()):
            broker = view.brokers.get(fetcher.leader.node_id)
            if len(fetcher) == 0 or broker is None or broker.epoch != fetcher.leader.epoch:
                del self._fetchers[key]
                await fetcher.stop()
                for copied in [partition_id for partition_id, by in self._fetched_by.items() if by is fetcher]:
                    del self._fetched_by[copied]
        for partition_id, partition in self._partitions.items():
            is_idle = partition.leadership is None and partition_id not in self._fetched_by
            if partition_id in self._opened and is_idle:
                leader = partition.leader
                if leader in view.brokers and leader != self._node_id and not partition.is_offline:
                    self._copy(view, partition, leader)

    # High watermarks

    async def _save_watermarks(self) -> None:
        while True:
            await asyncio.sleep(self._config.replica_high_watermark_checkpoint_interval_ms / 1000)
            try:
                await self._in_roles_thread(self._save_watermarks_now)
            except StratalogError as error:
                logger.error("the high watermarks can't be saved: %s", error)

    def _save_watermarks_now(self) -> None:
        offsets = {
            TopicPartition(partition.topic, partition.index): partition.high_watermark
            for key, partition in list(self._partitions.items())
            if key in self._opened
        }
        self._directory.high_watermarks.update(offsets)

    # Threads

    def _in_roles_thread(self, call: Callable[[], T]) -> Awaitable[T]:
        return self._loop.run_in_executor(self._roles_thread, call)

    def _in_append_thread(self, call: Callable[[], None]) -> Awaitable[None]:
        return self._loop.run_in_executor(self._append_threads, call)

"""Creates, grows, alters and deletes topics, and changes the settings of brokers, each with a change entry.

Each attempt reads the newest content of what it changes, and its transaction checks that this is still the newest. So
after a refusal or a lost response, the next attempt finds out whether the change has happened, is still possible, or is
an error.

A topic with more partitions than a transaction can hold is created in two steps: the states, under a topic id that no
topic has yet, then the topic itself. So no broker sees a part of a topic. The states that a crash leaves behind are
removed by the controller (`remove_abandoned`).
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count, starmap
from typing import NamedTuple

from stratalog.broker.controller.decisions import create
from stratalog.broker.metadata import znodes
from stratalog.broker.metadata.attempts import repeat
from stratalog.broker.metadata.change_entries import (
    Change,
    PartitionChanged,
    SettingsChanged,
    TopicChanged,
    TopicDeleted,
    format_entry,
)
from stratalog.broker.metadata.cluster_follower import ClusterFollower
from stratalog.broker.metadata.cluster_view import ClusterTopic, PartitionId
from stratalog.broker.metadata.partition_state import PartitionState
from stratalog.broker.metadata.state_changes import StateChanges
from stratalog.broker.metadata.transaction_sizes import (
    Sized,
    chunks,
    operation_size,
)
from stratalog.broker.metadata.zookeeper_requests import Check, Create, Delete, Operation, SetData
from stratalog.errors import InvalidPartitionsError, StratalogError, TopicExistsError, UnknownTopicError

logger = logging.getLogger(__name__)

_MOST_IN_FLIGHT = 8
_ABANDONED = b"abandoned"
_LARGE_EPOCH = 2**62  # a broker epoch, where only the size of a state matters


class ConcurrentSettingsError(StratalogError):
    """Settings that another request has changed since the view of this broker."""

    code = 7  # REQUEST_TIMED_OUT: clients retry


class PlannedTopic(NamedTuple):
    """A topic to create. `assignment`: the replicas of each partition; the first is the preferred leader."""

    name: str
    id: uuid.UUID
    settings: Mapping[str, str]
    assignment: Sequence[Sequence[int]]
    min_insync: int


class TopicChanges:
    """Writes topics and settings for one broker. All methods run on the event loop, and return when the broker's own
    view has the change."""

    def __init__(self, follower: ClusterFollower, states: StateChanges) -> None:
        self._follower = follower
        self._session = follower.session
        self._states = states

    # Creation

    async def create_topics(self, topics: Sequence[PlannedTopic]) -> list[StratalogError | None]:
        """Create topics, each on its own. Return an error for each that is not created."""
        limit = asyncio.Semaphore(_MOST_IN_FLIGHT)

        async def create_topic(topic: PlannedTopic) -> StratalogError | None:
            async with limit:
                try:
                    await self._create(topic)
                except StratalogError as error:
                    return error
                return None

        outcomes = await asyncio.gather(*map(create_topic, topics))
        if None in outcomes:
            await self._follower.catch_up()
        return outcomes

    async def _create(self, topic: PlannedTopic) -> None:
        if not 1 <= len(topic.assignment) <= znodes.MOST_PARTITIONS:
            raise InvalidPartitionsError(
                f"topic {topic.name!r}: number of partitions is {len(topic.assignment)}; it must lie between 1 and "
                f"{znodes.MOST_PARTITIONS}"
            )
        try:
            await repeat(lambda: self._try_to_create(topic))
        except TopicExistsError:
            if all(topic.id != existing.id for existing in self._follower.view.topics.values()):
                await self._remove_states(topic.id)
            raise

    async def _try_to_create(self, topic: PlannedTopic) -> None:
        follower = self._follower
        follower.check_registered()
        existing = await follower.reader.topic(topic.name)
        if existing is not None and existing.id != topic.id:
            raise TopicExistsError(f"topic {topic.name!r} exists already")
        if existing is not None:
            return  # an attempt whose response was lost
        alive = follower.view.live_epochs()
        states = {
            PartitionId(topic.id, partition): create(tuple(replicas), alive, topic.min_insync)
            for partition, replicas in enumerate(topic.assignment)
        }
        created = ClusterTopic(topic.name, topic.id, len(states), topic.settings, topic.min_insync)
        parts = list(chunks(_sized(states), _topic_size(created)))
        if len(parts) == 1:
            operations = [Create(znodes.partitions_path(topic.id)), *_creations(states)]
            changes: list[Change] = [
                TopicChanged(created, created.partition_count),
                *starmap(PartitionChanged, states.items()),
            ]
        else:
            await self._create_states(topic.id, parts, states)
            operations = [Check(znodes.partitions_path(topic.id), 0)]
            changes = [TopicChanged(created, 0)]
        creation = Create(znodes.topic_path(topic.name), znodes.format_topic(created))
        await self._commit([creation, *operations], changes)

    async def _create_states(
        self, topic_id: uuid.UUID, parts: Sequence[Sequence[PartitionId]], states: Mapping[PartitionId, PartitionState]
    ) -> None:
        """Create the states of a topic that does not exist yet, except those that an earlier attempt has created."""
        parent = znodes.partitions_path(topic_id)
        await self._session.ensure(parent)
        present = set(await self._session.children(parent))
        for part in parts:
            missing = {id: states[id] for id in part if str(id.partition) not in present}
            if missing:
                await self._session.commit(_creations(missing))

    # Growth

    async def add_partitions(self, name: str, assignment: Sequence[Sequence[int]]) -> None:
        """Add partitions with these replicas after the existing ones of the view. Raises UnknownTopicError;
        InvalidPartitionsError if the topic has other partitions by now; BusyMetadataError. If there are more than a
        transaction can hold, an error may leave some of them added."""
        topic = self._known(name)
        base, total = topic.partition_count, topic.partition_count + len(assignment)
        if total > znodes.MOST_PARTITIONS:
            raise InvalidPartitionsError(
                f"topic {name!r}: {total} partitions are too many; a topic has at most {znodes.MOST_PARTITIONS}"
            )
        replicas = {PartitionId(topic.id, base + index): tuple(each) for index, each in enumerate(assignment)}
        sizes = _sized({id: create(each, dict.fromkeys(each, _LARGE_EPOCH)) for id, each in replicas.items()})
        for part in chunks(sizes, _topic_size(topic)):
            added = {id: replicas[id] for id in part}
            await repeat(partial(self._try_to_add, topic, added))
        await self._follower.catch_up()

    async def _try_to_add(self, topic: ClusterTopic, replicas: Mapping[PartitionId, tuple[int, ...]]) -> None:
        follower = self._follower
        follower.check_registered()
        now = await self._existing(topic)
        first = next(iter(replicas))
        if now.partition_count != first.partition:
            present = await follower.reader.states([first])
            if first in present and present[first].replicas == replicas[first]:
                return  # an attempt whose response was lost
            raise InvalidPartitionsError(
                f"topic {topic.name!r} has {now.partition_count} partitions by now, because another request has "
                "changed it; look at the topic, and request what is missing"
            )
        alive = follower.view.live_epochs()
        states = {id: create(each, alive, now.min_insync) for id, each in replicas.items()}
        grown = replace(now, partition_count=now.partition_count + len(states), version=now.version + 1)
        write = SetData(znodes.topic_path(topic.name), znodes.format_topic(grown), now.version)
        changes: list[Change] = [
            TopicChanged(grown, grown.partition_count),
            *starmap(PartitionChanged, states.items()),
        ]
        await self._commit([write, *_creations(states)], changes)

    # Deletion

    async def delete_topic(self, name: str, topic_id: uuid.UUID) -> None:
        """Delete the topic and its states. Raises UnknownTopicError."""
        attempts = count()
        await repeat(lambda: self._try_to_delete(name, topic_id, is_first=next(attempts) == 0))
        await self._remove_states(topic_id)
        await self._follower.catch_up()

    async def _try_to_delete(self, name: str, topic_id: uuid.UUID, is_first: bool) -> None:
        self._follower.check_registered()
        now = await self._follower.reader.topic(name)
        if now is None or now.id != topic_id:
            if is_first:
                raise UnknownTopicError(f"topic {name!r} with topic id {topic_id} does not exist")
            return  # an attempt whose response was lost, or another broker
        parent = znodes.partitions_path(topic_id)
        deletion = Delete(znodes.topic_path(name), now.version)
        await self._commit([Check(parent, -1), deletion], [TopicDeleted(name, topic_id)])

    async def _remove_states(self, topic_id: uuid.UUID) -> None:
        """Remove the states of a topic id that no topic has. Errors are logged: the controller removes what is left."""
        parent = znodes.partitions_path(topic_id)
        try:
            znode = await self._session.get(parent)
            if znode is None:
                return
            await self._session.commit(
                [SetData(parent, _ABANDONED, znode.version)]
            )  # no topic can get these states now
            paths = [f"{parent}/{name}" for name in await self._session.children(parent)]
            for part in chunks(Sized(path, operation_size(path)) for path in paths):
                await self._session.commit([Delete(path) for path in part])
            await self._session.commit([Delete(parent)])
        except StratalogError as error:
            logger.info("states under %s are left for the controller to remove: %s", parent, error)

    async def remove_abandoned(self) -> None:
        """Remove the states of topic ids that no topic has: what a crash has left of a creation or a deletion."""
        names = await self._session.children(znodes.PARTITIONS)
        await self._follower.catch_up()
        ids = {str(topic.id) for topic in self._follower.view.topics.values()}
        if self._follower.view.unreadable_topics:
            return  # some of these states may be theirs
        for name in names:
            if name not in ids and (topic_id := _parse_uuid(name)) is not None:
                logger.info("the states of topic id %s are removed: no topic has that id", name)
                await self._remove_states(topic_id)

    # Settings

    async def change_settings(self, name: str, settings: Mapping[str, str], min_insync: int) -> None:
        """Replace the topic's own settings. `min_insync`: the min.insync.replicas that counts with them; it gets into
        the states of all partitions. Raises UnknownTopicError, ConcurrentSettingsError, BusyMetadataError."""
        topic = self._known(name)
        await repeat(lambda: self._try_to_change_settings(topic, settings, min_insync))
        await self._follower.catch_up()
        ids = [PartitionId(topic.id, partition) for partition in range(self._known(name).partition_count)]
        outcomes = await self._states.change_states(ids, lambda _, state: state.with_min_insync(min_insync))
        for outcome in outcomes.values():
            if isinstance(outcome, StratalogError):
                raise outcome
        await self._follower.catch_up()

    async def _try_to_change_settings(self, topic: ClusterTopic, settings: Mapping[str, str], min_insync: int) -> None:
        self._follower.check_registered()
        now = await self._existing(topic)
        changed = replace(now, settings=dict(settings), min_insync=min_insync, version=now.version + 1)
        if (now.settings, now.min_insync) == (changed.settings, min_insync):
            return
        if (now.settings, now.min_insync) != (topic.settings, topic.min_insync):
            raise ConcurrentSettingsError(
                f"another request has just changed the settings of topic {topic.name!r}; retry with the new ones"
            )
        write = SetData(znodes.topic_path(topic.name), znodes.format_topic(changed), now.version)
        await self._commit([write], [TopicChanged(changed, changed.partition_count)])

    async def change_broker_settings(self, node_id: str, settings: Mapping[str, str]) -> None:
        """Replace the settings that were changed while a broker ran, or those of all brokers, whose node id is "".
        Raises ConcurrentSettingsError, BusyMetadataError."""
        before = dict(self._follower.view.broker_settings.get(node_id, {}))
        await repeat(lambda: self._try_to_change_broker_settings(node_id, before, dict(settings)))
        await self._follower.catch_up()

    async def _try_to_change_broker_settings(
        self, node_id: str, before: dict[str, str], settings: dict[str, str]
    ) -> None:
        self._follower.check_registered()
        path = znodes.settings_path(node_id)
        znode = await self._session.get(path)
        now = {} if znode is None else _readable_settings(path, znode.data)
        if now == settings and znode is not None:
            return
        if now not in (None, before):
            raise ConcurrentSettingsError(
                f"another request has just changed the settings of broker {node_id or 'default'}; retry with the new "
                "ones"
            )
        data = znodes.format_settings(settings)
        write = Create(path, data) if znode is None else SetData(path, data, znode.version)
        version = 0 if znode is None else znode.version + 1
        await self._commit([write], [SettingsChanged(node_id, settings, version)])

    # Steps

    def _known(self, name: str) -> ClusterTopic:
        topic = self._follower.view.topics.get(name)
        if topic is None:
            raise UnknownTopicError(f"topic {name!r} does not exist")
        return topic

    async def _existing(self, topic: ClusterTopic) -> ClusterTopic:
        """Return the topic as ZooKeeper has it now. Raises UnknownTopicError if it is deleted."""
        now = await self._follower.reader.topic(topic.name)
        if now is None or now.id != topic.id:
            raise UnknownTopicError(f"topic {topic.name!r} with topic id {topic.id} does not exist any more")
        return now

    async def _commit(self, operations: Sequence[Operation], changes: Sequence[Change]) -> None:
        entry = Create(znodes.CHANGE_PREFIX, format_entry(changes), sequential=True)
        own = Check(znodes.broker_id_path(self._follower.node_id), -1)
        await self._session.commit([own, *operations, entry])


def _creations(states: Mapping[PartitionId, PartitionState]) -> list[Operation]:
    return [Create(znodes.partition_path(id), znodes.format_state(state)) for id, state in states.items()]


def _sized(states: Mapping[PartitionId, PartitionState]) -> Iterator[Sized[PartitionId]]:
    for id, state in states.items():
        data = znodes.format_state(state)
        yield Sized(id, operation_size(znodes.partition_path(id), data, data))


def _topic_size(topic: ClusterTopic) -> int:
    data = znodes.format_topic(topic)
    return operation_size(znodes.topic_path(topic.name), data, data)


def _readable_settings(path: str, data: bytes) -> dict[str, str] | None:
    """Return the settings in a znode; None if they can't be read: new ones may replace those."""
    try:
        return znodes.parse_settings(path, data)
    except znodes.UnreadableZnodeError:
        return None


def _parse_uuid(text: str) -> uuid.UUID | None:
    try:
        parsed = uuid.UUID(text)
    except ValueError:
        return None
    return parsed if str(parsed) == text else None

"""Reads a cluster's metadata from ZooKeeper: everything, or what new change entries say.

A watch is set before the content is read, so that no change is missed between the two.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from stratalog.broker.metadata import znodes
from stratalog.broker.metadata.change_entries import (
    BrokersChanged,
    Change,
    KnownMetadata,
    PartitionChanged,
    SettingsChanged,
    TopicChanged,
    parse_entry,
)
from stratalog.broker.metadata.cluster_view import NO_BROKER, ClusterTopic, PartitionId, RegisteredBroker
from stratalog.broker.metadata.partition_state import PartitionState
from stratalog.broker.metadata.session import ZooKeeperSession
from stratalog.broker.metadata.unreadable_znodes import UnreadableZnodes
from stratalog.broker.metadata.znodes import UnreadableZnodeError

logger = logging.getLogger(__name__)

NO_ENTRY = -1


class MissedChangesError(Exception):
    """Change entries that were trimmed before this broker read them, or that can't be read: read everything."""


class MetadataReader:
    """Reads through one session. Content that can't be read is reported once and left out."""

    def __init__(self, session: ZooKeeperSession) -> None:
        self._session = session
        self._unreadable = UnreadableZnodes()

    async def brokers(self, on_change: Callable[[], None]) -> dict[int, RegisteredBroker]:
        names = await self._session.children(znodes.BROKER_IDS, on_change)
        node_ids = sorted(node_id for node_id in map(znodes.parse_node_id, names) if node_id is not None)
        paths = [znodes.broker_id_path(node_id) for node_id in node_ids]
        paths += [znodes.registration_path(node_id) for node_id in node_ids]
        read = await self._session.get_all(paths)
        brokers = {}
        for node_id, ephemeral, permanent in zip(node_ids, read, read[len(node_ids) :], strict=False):
            if ephemeral is None or permanent is None:
                continue
            try:
                endpoint = znodes.parse_endpoint(znodes.broker_id_path(node_id), ephemeral.data)
                condition = znodes.parse_condition(znodes.registration_path(node_id), permanent.data)
            except UnreadableZnodeError as error:
                self._unreadable.report(error, f"broker {node_id} is ignored until it registers again")
                continue
            brokers[node_id] = RegisteredBroker(
                node_id,
                endpoint.host,
                endpoint.port,
                ephemeral.created,
                endpoint.rack,
                condition.lost_tail,
                condition.is_leaving,
                permanent.version,
            )
        return brokers

    async def controller(self, on_change: Callable[[], None]) -> int:
        """Return the node id of the controller; NO_BROKER if there is no controller."""
        znode = await self._session.watch(znodes.CONTROLLER, on_change)
        if znode is None:
            return NO_BROKER
        try:
            return znodes.parse_claim(znode.data).node_id
        except UnreadableZnodeError as error:
            self._unreadable.report(error, "delete it, so that the brokers can choose a controller")
            return NO_BROKER

    async def everything(self, before: KnownMetadata, on_change: Callable[[], None]) -> tuple[KnownMetadata, list[int]]:
        """Return all topics, states and settings, and the numbers of the change entries of which they are the result.
        `before`: what was known before; topics, states and settings that can't be read stay as they were then."""
        numbers = await self._entry_numbers(on_change)
        known = KnownMetadata()
        await self._read_topics(known, before)
        await self._read_states(known, before, known.topics.values())
        await self._read_settings(known, before)
        logger.info("read all metadata: %d topics, %d partitions", len(known.topics), len(known.states))
        return known, numbers

    async def new_entries(self, last: int, on_change: Callable[[], None]) -> tuple[list[Change], list[int]]:
        """Return the changes of the entries after entry number `last`, and the numbers of all entries. Raises
        MissedChangesError."""
        numbers = await self._entry_numbers(on_change)
        new = [number for number in numbers if number > last]
        newest = numbers[-1] if numbers else NO_ENTRY
        if newest < last or new != list(range(last + 1, newest + 1)):
            raise MissedChangesError(f"the change entries after number {last} are gone")
        changes: list[Change] = []
        read = await self._session.get_all(list(map(znodes.change_path, new)))
        for number, znode in zip(new, read, strict=True):
            if znode is None:
                raise MissedChangesError(f"change entry {number} is gone")
            try:
                changes += parse_entry(znodes.change_path(number), znode.data)
            except UnreadableZnodeError as error:
                self._unreadable.report(error, "all metadata is read again")
                raise MissedChangesError(f"change entry {number} can't be read") from None
        return changes, numbers

    async def states_of(self, changes: Iterable[Change]) -> list[PartitionChanged]:
        """Return the states that these changes do not contain, because they are too many for a change entry."""
        ids = [
            PartitionId(change.topic.id, partition)
            for change in changes
            if isinstance(change, TopicChanged)
            for partition in range(change.unread_from, change.topic.partition_count)
        ]
        states = await self.states(ids) if ids else {}
        return [PartitionChanged(id, state) for id, state in states.items()]

    async def states(self, ids: Iterable[PartitionId]) -> dict[PartitionId, PartitionState]:
        """Return the states that ZooKeeper has now, without those that are missing or can't be read."""
        states, _ = await self._states(list(ids))
        return states

    async def topic(self, name: str) -> ClusterTopic | None:
        """Return the topic as ZooKeeper has it now; None if it does not exist. Raises UnreadableZnodeError."""
        znode = await self._session.get(znodes.topic_path(name))
        return None if znode is None else znodes.parse_topic(name, znode.data, znode.version)

    # Steps of reading everything

    async def _entry_numbers(self, on_change: Callable[[], None]) -> list[int]:
        names = await self._session.children(znodes.CHANGES, on_change)
        return sorted(number for number in map(znodes.change_number, names) if number is not None)

    async def _read_topics(self, known: KnownMetadata, before: KnownMetadata) -> None:
        names = await self._session.children(znodes.TOPICS)
        for name, znode in zip(names, await self._session.get_all(list(map(znodes.topic_path, names))), strict=True):
            if znode is None:
                continue
            try:
                known.add_topic(znodes.parse_topic(name, znode.data, znode.version))
            except UnreadableZnodeError as error:
                self._unreadable.report(error, f"topic {name} stays as this broker knew it before, if it did")
                known.unreadable_topics.add(name)
                if name in before.topics:
                    known.add_topic(before.topics[name])

    async def _read_states(self, known: KnownMetadata, before: KnownMetadata, topics: Iterable[ClusterTopic]) -> None:
        ids = [PartitionId(topic.id, partition) for topic in topics for partition in range(topic.partition_count)]
        known.states, unreadable = await self._states(ids)
        for id in unreadable:
            if id in before.states:
                known.states[id] = before.states[id]

    async def _states(self, ids: list[PartitionId]) -> tuple[dict[PartitionId, PartitionState], list[PartitionId]]:
        """Return the states, and the partitions whose states can't be read."""
        states, unreadable = {}, []
        for id, znode in zip(ids, await self._session.get_all(list(map(znodes.partition_path, ids))), strict=True):
            if znode is None:
                continue  # deleted a moment ago: a change entry says so
            try:
                states[id] = znodes.parse_state(znodes.partition_path(id), znode.data, znode.version)
            except UnreadableZnodeError as error:
                self._unreadable.report(error, "the partition stays as this broker knew it before, if it did")
                unreadable.append(id)
        return states, unreadable

    async def _read_settings(self, known: KnownMetadata, before: KnownMetadata) -> None:
        names = await self._session.children(znodes.BROKER_SETTINGS)
        node_ids = list(map(znodes.settings_node_id, names))
        paths = list(map(znodes.settings_path, node_ids))
        for node_id, path, znode in zip(node_ids, paths, await self._session.get_all(paths), strict=True):
            if znode is None:
                continue
            try:
                settings = znodes.parse_settings(path, znode.data)
                known.settings[node_id] = SettingsChanged(node_id, settings, znode.version)
            except UnreadableZnodeError as error:
                self._unreadable.report(error, "these settings stay as this broker knew them before, if it did")
                if node_id in before.settings:
                    known.settings[node_id] = before.settings[node_id]


def has_broker_changes(changes: Iterable[Change]) -> bool:
    return any(isinstance(change, BrokersChanged) for change in changes)

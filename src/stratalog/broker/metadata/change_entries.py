"""The change entries of a cluster: the format of an entry, and how it changes what a broker knows. Pure.

An entry has the new content of everything that its transaction changed, with the versions of the znodes. A broker may
have read some of it already, in a newer version: applying an entry never replaces newer content by older content.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from stratalog.broker.metadata.cluster_view import ClusterTopic, PartitionId
from stratalog.broker.metadata.partition_state import PartitionState
from stratalog.broker.metadata.znodes import (
    MOST_PARTITIONS,
    Fields,
    encode,
    state_content,
    state_of,
    topic_content,
    topic_of,
)

_INT_32 = 2**31 - 1


class TopicChanged(NamedTuple):
    """A topic was created, grown, or got other settings. `unread_from`: the states of its partitions from this number
    on are too large for the entry; read them."""

    topic: ClusterTopic
    unread_from: int


class TopicDeleted(NamedTuple):
    name: str
    topic_id: uuid.UUID


class PartitionChanged(NamedTuple):
    id: PartitionId
    state: PartitionState


class SettingsChanged(NamedTuple):
    """The settings of a broker were changed while it ran, or those of all brokers, whose node id is ""."""

    node_id: str
    settings: Mapping[str, str]
    version: int


class BrokersChanged(NamedTuple):
    """A broker began to shut down, or the controller admitted it: read the brokers."""


Change: TypeAlias = TopicChanged | TopicDeleted | PartitionChanged | SettingsChanged | BrokersChanged


def format_entry(changes: Sequence[Change]) -> bytes:
    return encode({"changes": [change_content(change) for change in changes]})


def change_content(change: Change) -> dict[str, Any]:
    match change:
        case TopicChanged(topic, unread_from):
            content = topic_content(topic)
            return {"kind": "topic", "name": topic.name, "znode": topic.version, "unread_from": unread_from, **content}
        case TopicDeleted(name, topic_id):
            return {"kind": "deleted", "name": name, "id": str(topic_id)}
        case PartitionChanged(id, state):
            return {
                "kind": "partition",
                "id": str(id.topic_id),
                "partition": id.partition,
                "znode": state.partition_epoch,
                **state_content(state),
            }
        case SettingsChanged(node_id, settings, version):
            return {"kind": "settings", "node_id": node_id, "settings": dict(settings), "znode": version}
        case BrokersChanged():
            return {"kind": "brokers"}


def parse_entry(path: str, data: bytes) -> list[Change]:
    return [_change_of(fields) for fields in Fields.of(path, data).objects("changes")]


def _change_of(fields: Fields) -> Change:
    kind = fields.text("kind")
    if kind == "brokers":
        return BrokersChanged()
    if kind == "deleted":
        return TopicDeleted(fields.text("name"), fields.uuid("id"))
    version = fields.number("znode", 0, _INT_32)
    if kind == "topic":
        topic = topic_of(fields.text("name"), fields, version)
        return TopicChanged(topic, fields.number("unread_from", 0, topic.partition_count))
    if kind == "partition":
        return PartitionChanged(
            PartitionId(fields.uuid("id"), fields.number("partition", 0, MOST_PARTITIONS - 1)),
            state_of(fields, version),
        )
    if kind == "settings":
        return SettingsChanged(fields.text("node_id"), fields.settings("settings"), version)
    raise fields.error("kind", "topic, deleted, partition, settings or brokers")


class KnownMetadata:
    """The topics, states and settings that a broker has read, as it puts them together for the next view."""

    def __init__(self) -> None:
        self.topics: dict[str, ClusterTopic] = {}
        self.states: dict[PartitionId, PartitionState] = {}
        self.settings: dict[str, SettingsChanged] = {}
        self.unreadable_topics: set[str] = set()
        self._names: dict[uuid.UUID, str] = {}

    def add_topic(self, topic: ClusterTopic) -> None:
        """Add a topic, or replace the one of the same name; the states of another topic id go."""
        known = self.topics.get(topic.name)
        if known is not None and known.id != topic.id:
            self._remove_topic(known)
        self.topics[topic.name] = topic
        self._names[topic.id] = topic.name

    def apply(self, change: Change) -> None:
        """Apply a change, unless something newer is known."""
        match change:
            case TopicChanged(topic):
                self._take_topic(topic)
            case TopicDeleted(name, topic_id):
                known = self.topics.get(name)
                if known is not None and known.id == topic_id:
                    self._remove_topic(known)
            case PartitionChanged(id, state):
                self._take_state(id, state)
            case SettingsChanged(node_id, _, version):
                if node_id not in self.settings or version > self.settings[node_id].version:
                    self.settings[node_id] = change
            case BrokersChanged():
                pass  # they are read, not applied

    def _take_topic(self, topic: ClusterTopic) -> None:
        known = self.topics.get(topic.name)
        if known is None or known.id != topic.id or known.version < topic.version:
            self.add_topic(topic)
            self.unreadable_topics.discard(topic.name)

    def _take_state(self, id: PartitionId, state: PartitionState) -> None:
        name = self._names.get(id.topic_id)
        if name is None or id.partition >= self.topics[name].partition_count:
            return  # the topic is deleted
        before = self.states.get(id)
        if before is None or state.partition_epoch > before.partition_epoch:
            self.states[id] = state

    def _remove_topic(self, topic: ClusterTopic) -> None:
        del self.topics[topic.name]
        self._names.pop(topic.id, None)
        self.unreadable_topics.discard(topic.name)
        for partition in range(topic.partition_count):
            self.states.pop(PartitionId(topic.id, partition), None)

"""The topics that clients can see, and their partitions. Every request looks them up by name, topic id or number.

Topics and partitions are replaced together, as one view, so that readers never see half of a change.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from typing import NamedTuple

from stratalog.broker.metadata.store import Topic
from stratalog.broker.partition import Partition


class _View(NamedTuple):
    """An immutable view of all topics and partitions."""

    topics: dict[str, Topic]
    by_id: dict[bytes, Topic]
    by_plain_name: dict[str, str]  # names of topics, by plain_name()
    partitions: dict[str, tuple[Partition, ...]]
    partition_count: int


class KnownTopics:
    def __init__(self, on_loop: Callable[[Callable[[], None]], None]) -> None:
        """Create an empty registry. `on_loop` runs a callable on the event loop, from any thread."""
        self._on_loop = on_loop
        self._listeners: list[Callable[[], None]] = []
        self._view = _View({}, {}, {}, {}, 0)
        self.version = 0  # counts changes, so that caches can tell whether they are out of date

    def get(self, name: str) -> Topic | None:
        return self._view.topics.get(name)

    def by_id(self, topic_id: uuid.UUID) -> Topic | None:
        return self._view.by_id.get(topic_id.bytes)

    def by_id_bytes(self, topic_id: bytes) -> Topic | None:
        return self._view.by_id.get(topic_id)

    def all(self) -> list[Topic]:
        """Return all topics, sorted by name."""
        return [topic for _, topic in sorted(self._view.topics.items())]

    def partitions(self, name: str) -> tuple[Partition, ...]:
        """Return the partitions of a topic by index, or an empty tuple if the topic does not exist."""
        return self._view.partitions.get(name, ())

    def partition(self, name: str, index: int) -> Partition | None:
        partitions = self._view.partitions.get(name)
        if partitions is None or not 0 <= index < len(partitions):
            return None
        return partitions[index]

    def all_partitions(self) -> Iterable[Partition]:
        return (partition for partitions in self._view.partitions.values() for partition in partitions)

    @property
    def partition_count(self) -> int:
        return self._view.partition_count

    def on_change(self, call: Callable[[], None]) -> None:
        """Call `call` after each change, on the event loop."""
        self._listeners.append(call)

    def _publish(self, topics: dict[str, Topic], partitions: dict[str, tuple[Partition, ...]]) -> None:
        by_id = {topic.id.bytes: topic for topic in topics.values()}
        count = sum(topic.partition_count for topic in topics.values())
        self._view = _View(topics, by_id, {plain_name(name): name for name in topics}, partitions, count)
        self.version += 1
        self._on_loop(self._notify)

    def _notify(self) -> None:
        for call in self._listeners:
            call()


def plain_name(name: str) -> str:
    """Return the topic's name in metrics. As in Kafka, two topics whose names differ only in '.' and '_' can't
    exist."""
    return name.replace(".", "_")

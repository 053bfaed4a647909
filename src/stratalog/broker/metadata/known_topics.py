"""The topics that can be seen, and their partitions: looked up on every request, by name, id or number.

Readers see a whole: whatever changes, topics and partitions are replaced together, as one view.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from typing import NamedTuple

from stratalog.broker.metadata.store import Topic
from stratalog.broker.partition import Partition


class _View(NamedTuple):
    """What readers see, replaced as a whole."""

    topics: dict[str, Topic]
    by_id: dict[bytes, Topic]
    by_plain_name: dict[str, str]  # the names by what they are in the names of metrics
    partitions: dict[str, tuple[Partition, ...]]
    partition_count: int


class KnownTopics:
    def __init__(self, on_loop: Callable[[Callable[[], None]], None]) -> None:
        """`on_loop` runs a callable on the event loop, from any thread."""
        self._on_loop = on_loop
        self._listeners: list[Callable[[], None]] = []
        self._view = _View({}, {}, {}, {}, 0)
        self.version = 0  # counts changes, for whoever keeps something made of this

    def get(self, name: str) -> Topic | None:
        return self._view.topics.get(name)

    def by_id(self, topic_id: uuid.UUID) -> Topic | None:
        return self._view.by_id.get(topic_id.bytes)

    def by_id_bytes(self, topic_id: bytes) -> Topic | None:
        return self._view.by_id.get(topic_id)

    def all(self) -> list[Topic]:
        """Sorted by name."""
        return [topic for _, topic in sorted(self._view.topics.items())]

    def partitions(self, name: str) -> tuple[Partition, ...]:
        """Of a topic, by index; none where it does not exist."""
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
        """`call` is called after each change, on the event loop."""
        self._listeners.append(call)

    def _publish(self, topics: dict[str, Topic], partitions: dict[str, tuple[Partition, ...]]) -> None:
        by_id = {topic.id.bytes: topic for topic in topics.values()}
        count = sum(topic.partition_count for topic in topics.values())
        self._view = _View(topics, by_id, {plain_name(name): name for name in topics}, partitions, count)
        self.version += 1
        self._on_loop(self._tell)

    def _tell(self) -> None:
        for call in self._listeners:
            call()


def plain_name(name: str) -> str:
    """Kafka's rule: names that differ only in '.' and '_' can't both exist."""
    return name.replace(".", "_")

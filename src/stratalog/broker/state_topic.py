"""A topic that the broker keeps its own state in: compacted by key, made on first use, all records of an id in one
partition. `__consumer_offsets` and `__transaction_state` are such topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Protocol

from stratalog.broker.background import RunInBackground
from stratalog.broker.metadata.store import Topic
from stratalog.broker.partition import Partition
from stratalog.errors import UnknownTopicError
from stratalog.records import Record, build_batch

StateRecord = tuple[bytes, bytes | None]
"""A key and its value; None: a tombstone."""


class StateTopics(Protocol):
    """What of the TopicRegistry is used here."""

    def get(self, name: str) -> Topic | None: ...

    def partition(self, name: str, index: int) -> Partition | None: ...

    def create(self, name: str, partition_count: int, settings: Mapping[str, str]) -> Topic: ...

    def alter_settings(self, name: str, settings: Mapping[str, str]) -> Topic: ...


@lru_cache(maxsize=4096)
def partition_of(state_id: str, partition_count: int) -> int:
    """Java's String.hashCode, which counts UTF-16 units, made positive as Kafka does it."""
    units = memoryview(state_id.encode("utf-16-le", "surrogatepass")).cast("H")
    number = 0
    for unit in units:
        number = (31 * number + unit) & 0xFFFF_FFFF
    signed = number - 2**32 if number >= 2**31 else number
    return 0 if signed == -(2**31) else abs(signed) % partition_count


class StateTopic:
    """`kept` are the settings that it must have, whoever made it."""

    def __init__(
        self, name: str, kept: Mapping[str, str], topics: StateTopics, run_in_background: RunInBackground
    ) -> None:
        self._name = name
        self._kept = kept
        self._topics = topics
        self._run_in_background = run_in_background

    @property
    def partition_count(self) -> int | None:
        """None while the topic does not exist."""
        topic = self._topics.get(self._name)
        return None if topic is None else topic.partition_count

    async def _create(self, partition_count: int, segment_bytes: int) -> None:
        settings = {**self._kept, "segment.bytes": str(segment_bytes)}
        await self._run_in_background(lambda: self._topics.create(self._name, partition_count, settings))

    def _keep_by_key(self) -> None:
        """A topic that a user made, or that was found in a data directory, must not lose the last word on any key."""
        topic = self._topics.get(self._name)
        if topic is not None and any(topic.settings.get(name) != value for name, value in self._kept.items()):
            self._topics.alter_settings(self._name, {**topic.settings, **self._kept})

    def append(self, partition: int, records: Sequence[StateRecord], timestamp_ms: int) -> None:
        batch = build_batch([Record(key=key, value=value, timestamp=timestamp_ms) for key, value in records])
        self._partition(partition).append_for_coordinator(batch)

    def _partition(self, index: int) -> Partition:
        partition = self._topics.partition(self._name, index)
        if partition is None:
            raise UnknownTopicError(f"{self._name}-{index} does not exist: was the topic deleted?")
        return partition

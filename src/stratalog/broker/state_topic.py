"""A topic in which the broker keeps its own state: compacted by key, created on first use, with all records of an id in
one partition. `__consumer_offsets` and `__transaction_state` are such topics.

Coordinators append on the event loop, in the same step in which they change their state. Such an append never waits: a
roll is left to the housekeeper, and a flush that `flush.messages` requires to a thread (due_flushes.py). If another
thread holds the log, perhaps because it syncs a roll, the append fails after 2 ms with a StorageError, as it would on a
full disk: the state stays as it was, and the client gets an error after which it retries.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from functools import lru_cache
from typing import Protocol

from stratalog.broker.background import RunInBackground
from stratalog.broker.due_flushes import DueFlushes
from stratalog.broker.metadata.store import Topic
from stratalog.broker.partition import Partition
from stratalog.errors import StorageError, StratalogError, UnknownTopicError
from stratalog.records import Record, build_batch
from stratalog.storage.appending import WouldWaitError

StateRecord = tuple[bytes, bytes | None]
"""A key and its value. Without a value it is a tombstone."""


class StateTopics(Protocol):
    """The part of the TopicRegistry that is used here."""

    def get(self, name: str) -> Topic | None: ...

    def partition(self, name: str, index: int) -> Partition | None: ...

    def create(self, name: str, partition_count: int, settings: Mapping[str, str]) -> Topic: ...

    def alter_settings(self, name: str, settings: Mapping[str, str]) -> Topic: ...


@lru_cache(maxsize=4096)
def partition_of(state_id: str, partition_count: int) -> int:
    """Return the partition of an id: Java's String.hashCode, over UTF-16 units, made positive as Kafka does it."""
    units = memoryview(state_id.encode("utf-16-le", "surrogatepass")).cast("H")
    number = 0
    for unit in units:
        number = (31 * number + unit) & 0xFFFF_FFFF
    signed = number - 2**32 if number >= 2**31 else number
    return 0 if signed == -(2**31) else abs(signed) % partition_count


class StateTopic:
    def __init__(
        self,
        name: str,
        required_settings: Mapping[str, str],
        topics: StateTopics,
        run_in_background: RunInBackground,
        due_flushes: DueFlushes,
    ) -> None:
        self._name = name
        self._required_settings = required_settings
        self._topics = topics
        self._run_in_background = run_in_background
        self._due_flushes = due_flushes

    @property
    def partition_count(self) -> int | None:
        """The number of partitions; None while the topic does not exist."""
        topic = self._topics.get(self._name)
        return None if topic is None else topic.partition_count

    async def _create(self, partition_count: int, segment_bytes: int) -> None:
        settings = {**self._required_settings, "segment.bytes": str(segment_bytes)}
        await self._run_in_background(lambda: self._topics.create(self._name, partition_count, settings))

    def _restore_settings(self) -> None:
        """Set the required settings of a topic that a user created, or that was found in the data directory: it must
        keep the last record of every key."""
        topic = self._topics.get(self._name)
        required = self._required_settings
        if topic is not None and any(topic.settings.get(name) != value for name, value in required.items()):
            self._topics.alter_settings(self._name, {**topic.settings, **required})

    def append(self, partition: int, records: Sequence[StateRecord], timestamp_ms: int) -> None:
        """Append records as one batch, on the event loop, without waiting. Raises StratalogError if nothing was
        appended."""
        self._append(
            partition, build_batch([Record(key=key, value=value, timestamp=timestamp_ms) for key, value in records])
        )

    def _append(self, index: int, batch: bytearray) -> None:
        partition = self._partition(index)
        try:
            partition.append_for_coordinator(batch)
        except WouldWaitError as error:
            raise StorageError(f"{error}; the client may retry") from None
        if partition.log.flush_is_due():
            self._due_flushes.add(partition.log)

    def pending_flush(self) -> Awaitable[StratalogError | None] | None:
        return self._due_flushes.pending()

    def _partition(self, index: int) -> Partition:
        partition = self._topics.partition(self._name, index)
        if partition is None:
            raise UnknownTopicError(f"{self._name}-{index} does not exist; was the topic deleted?")
        return partition

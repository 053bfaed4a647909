"""`__consumer_offsets`: the log that groups and offsets live in, so that a restart finds them as they were.

A group's records all go to one partition, by Kafka's hash of the group id. The topic is made on first use. It is not
compacted yet, so it keeps everything (retention.ms=-1); reading it gives what a compacted log would hold.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from stratalog.broker.groups.config import GroupConfig
from stratalog.broker.groups.group import GroupRecord
from stratalog.broker.metadata.store import Topic
from stratalog.broker.partition import Partition
from stratalog.errors import UnknownTopicError
from stratalog.records import Record, build_batch

NAME = "__consumer_offsets"
KEPT_BY_KEY = {"cleanup.policy": "compact"}

log = logging.getLogger(__name__)
T = TypeVar("T")


class RunInBackground(Protocol):
    """Runs a callable in the thread for what takes long."""

    def __call__(self, call: Callable[[], T], /) -> Awaitable[T]: ...


class OffsetsLog(Protocol):
    """Where the coordinator's records go: a topic in a broker, lists in tests."""

    @property
    def partition_count(self) -> int | None:
        """None while the topic does not exist."""

    async def create(self) -> None:
        """Make the topic. Raises StratalogError."""

    async def read(self, partition: int) -> list[GroupRecord]:
        """What of a partition still counts: the last record of each key, without tombstones. Raises StratalogError."""

    def append(self, partition: int, records: Sequence[GroupRecord], timestamp_ms: int) -> None:
        """As one batch; returns when it survives kill -9. Raises StratalogError: nothing was written."""


class Topics(Protocol):
    """What of the TopicRegistry is used here."""

    def get(self, name: str) -> Topic | None: ...

    def partition(self, name: str, index: int) -> Partition | None: ...

    def create(self, name: str, partition_count: int, settings: Mapping[str, str]) -> Topic: ...

    def alter_settings(self, name: str, settings: Mapping[str, str]) -> Topic: ...


def partition_of(group_id: str, partition_count: int) -> int:
    """Java's String.hashCode, which counts UTF-16 units, made positive as Kafka does it."""
    units = memoryview(group_id.encode("utf-16-le", "surrogatepass")).cast("H")
    number = 0
    for unit in units:
        number = (31 * number + unit) & 0xFFFF_FFFF
    signed = number - 2**32 if number >= 2**31 else number
    return 0 if signed == -(2**31) else abs(signed) % partition_count


class OffsetsTopic:
    def __init__(self, topics: Topics, config: GroupConfig, run_in_background: RunInBackground) -> None:
        self._topics = topics
        self._config = config
        self._run_in_background = run_in_background

    @property
    def partition_count(self) -> int | None:
        topic = self._topics.get(NAME)
        return None if topic is None else topic.partition_count

    async def create(self) -> None:
        settings = {**KEPT_BY_KEY, "segment.bytes": str(self._config.offsets_topic_segment_bytes)}
        await self._run_in_background(
            lambda: self._topics.create(NAME, self._config.offsets_topic_num_partitions, settings)
        )

    async def read(self, partition: int) -> list[GroupRecord]:
        return await self._run_in_background(lambda: self._read(partition))

    def _read(self, index: int) -> list[GroupRecord]:
        self._keep_by_key()
        latest: dict[bytes, bytes | None] = {}
        for record in self._partition(index).log.records():
            if record.key is None:
                log.error("%s-%d: the record at offset %d has no key and is passed over", NAME, index, record.offset)
                continue
            key = bytes(record.key)
            latest.pop(key, None)  # so that it moves to the end: the order is that of the last writes
            latest[key] = None if record.value is None else bytes(record.value)
        return [(key, value) for key, value in latest.items() if value is not None]

    def _keep_by_key(self) -> None:
        """A topic that a user made, or that was found in a data directory, must not lose the last word on any key."""
        topic = self._topics.get(NAME)
        if topic is not None and any(topic.settings.get(name) != value for name, value in KEPT_BY_KEY.items()):
            self._topics.alter_settings(NAME, {**topic.settings, **KEPT_BY_KEY})

    def append(self, partition: int, records: Sequence[GroupRecord], timestamp_ms: int) -> None:
        batch = build_batch([Record(key=key, value=value, timestamp=timestamp_ms) for key, value in records])
        self._partition(partition).append(memoryview(batch))

    def _partition(self, index: int) -> Partition:
        partition = self._topics.partition(NAME, index)
        if partition is None:
            raise UnknownTopicError(f"{NAME}-{index} does not exist: was the topic deleted?")
        return partition

"""`__consumer_offsets`: the topic that stores groups and committed offsets, so that a restart finds them again.

All records of a group go to one partition, by Kafka's hash of the group id. The topic is created on first use and
compacted by key. Reading it returns what a completely compacted log would hold. Offsets that are committed in a
transaction are in transactional batches: they count once a marker commits them, and are pending until then.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from stratalog.broker.background import RunInBackground
from stratalog.broker.due_flushes import DueFlushes
from stratalog.broker.groups.config import GroupConfig
from stratalog.broker.groups.group import GroupRecord
from stratalog.broker.state_topic import StateTopic, StateTopics
from stratalog.records import Record, build_batch
from stratalog.records.batch import Batch
from stratalog.records.format import ControlType
from stratalog.records.reader import read_control, records_of

NAME = "__consumer_offsets"
REQUIRED_SETTINGS = {"cleanup.policy": "compact"}
_BYTES_A_READ = 1024 * 1024
_NEVER: tuple[int, bytes | None] = (-1, None)

log = logging.getLogger(__name__)


class LoadedOffsets(NamedTuple):
    """The state in a partition: the last record of each key, without tombstones, in the order of their offsets; and by
    producer, the records of its open transaction. A pending record that has a newer one after it has no value."""

    records: list[GroupRecord]
    pending: Mapping[int, Mapping[bytes, bytes | None]] = {}


class OffsetsLog(Protocol):
    """The store of the coordinator's records: a topic in a broker, lists in tests."""

    @property
    def partition_count(self) -> int | None:
        """The number of partitions; None while the topic does not exist."""

    async def create(self) -> None:
        """Create the topic. Raises StratalogError."""

    async def read(self, partition: int) -> LoadedOffsets:
        """Return the state in a partition. Raises StratalogError."""

    def append(self, partition: int, records: Sequence[GroupRecord], timestamp_ms: int) -> None:
        """Append records as one batch. They survive kill -9. Raises StratalogError if nothing was appended."""

    def append_in_transaction(
        self, partition: int, records: Sequence[GroupRecord], timestamp_ms: int, producer_id: int, epoch: int
    ) -> None:
        """Append records as part of a producer's transaction. Raises StratalogError if nothing was appended."""


class OffsetsReplay:
    """Takes batches in the order of the log, and returns the state that they leave."""

    def __init__(self) -> None:
        self._latest: dict[bytes, tuple[int, bytes | None]] = {}  # offset and value, tombstones too
        self._open: dict[int, dict[bytes, tuple[int, bytes | None]]] = {}  # by producer

    def take(self, batch: Batch) -> None:
        header = batch.header
        if header.is_control:
            if header.record_count:
                self._end(header.producer_id, read_control(batch)[0])
            return
        into = self._open.setdefault(header.producer_id, {}) if header.is_transactional else self._latest
        for record in records_of(batch):
            if record.key is None:
                log.error("%s: the record at offset %d has no key and is skipped", NAME, record.offset)
                continue
            into[bytes(record.key)] = record.offset, None if record.value is None else bytes(record.value)

    def _end(self, producer_id: int, control: ControlType) -> None:
        if control not in (ControlType.COMMIT, ControlType.ABORT):
            return
        written = self._open.pop(producer_id, {})
        if control is ControlType.COMMIT:
            for key, (offset, value) in written.items():
                if self._latest.get(key, _NEVER)[0] < offset:
                    self._latest[key] = offset, value

    def loaded(self) -> LoadedOffsets:
        in_order = sorted(self._latest.items(), key=lambda item: item[1][0])
        pending = {
            producer_id: {
                key: value if self._latest.get(key, _NEVER)[0] < offset else None
                for key, (offset, value) in written.items()
            }
            for producer_id, written in self._open.items()
        }
        return LoadedOffsets([(key, value) for key, (_, value) in in_order if value is not None], pending)


class OffsetsTopic(StateTopic):
    def __init__(
        self,
        topics: StateTopics,
        config: GroupConfig,
        run_in_background: RunInBackground,
        due_flushes: DueFlushes,
    ) -> None:
        super().__init__(NAME, REQUIRED_SETTINGS, topics, run_in_background, due_flushes)
        self._config = config

    async def create(self) -> None:
        await self._create(self._config.offsets_topic_num_partitions, self._config.offsets_topic_segment_bytes)

    async def read(self, partition: int) -> LoadedOffsets:
        return await self._run_in_background(lambda: self._read(partition))

    def _read(self, index: int) -> LoadedOffsets:
        self._restore_settings()
        replay = OffsetsReplay()
        source = self._partition(index).log
        offset = source.log_start_offset
        while True:
            batches = list(source.read(offset, _BYTES_A_READ).batches())
            if not batches:
                return replay.loaded()
            for batch in batches:
                batch.check_crc()
                replay.take(batch)
            offset = batches[-1].header.next_offset

    def append_in_transaction(
        self, partition: int, records: Sequence[GroupRecord], timestamp_ms: int, producer_id: int, epoch: int
    ) -> None:
        batch = build_batch(
            [Record(key=key, value=value, timestamp=timestamp_ms) for key, value in records],
            producer_id=producer_id,
            producer_epoch=epoch,
            is_transactional=True,
        )
        self._append(partition, batch)

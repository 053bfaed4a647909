"""The rows of a dump: one frozen dataclass for each kind of entry in a file.

The fields have the names of the format, and machine-readable output shows `asdict` of a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from stratalog.inspect.batch_walk import BatchOnDisk
from stratalog.records import format
from stratalog.records._records import Record

if TYPE_CHECKING:
    from stratalog.records._records import Header


@dataclass(frozen=True, slots=True)
class BatchRow:
    type: ClassVar[str] = "batch"

    position: int
    size: int
    base_offset: int
    last_offset: int
    record_count: int
    magic: int
    leader_epoch: int
    crc: int
    crc_valid: bool
    attributes: int
    codec: str
    timestamp_type: str
    is_transactional: bool
    is_control: bool
    has_delete_horizon: bool
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    last_sequence: int


@dataclass(frozen=True, slots=True)
class RecordRow:
    """A record of the batch before it. `control` is the type of a control record, like COMMIT."""

    type: ClassVar[str] = "record"

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    control: str | None = None
    coordinator_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class OffsetEntryRow:
    type: ClassVar[str] = "offset_entry"

    slot: int
    offset: int
    position: int


@dataclass(frozen=True, slots=True)
class TimeEntryRow:
    type: ClassVar[str] = "time_entry"

    slot: int
    timestamp: int
    offset: int


@dataclass(frozen=True, slots=True)
class AbortedRow:
    type: ClassVar[str] = "aborted_transaction"

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


@dataclass(frozen=True, slots=True)
class ProducerRow:
    """A producer of a snapshot. As in the file, -1 means unknown."""

    type: ClassVar[str] = "producer"

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    transaction_first_offset: int


@dataclass(frozen=True, slots=True)
class EpochRow:
    type: ClassVar[str] = "leader_epoch"

    epoch: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class PartitionOffsetRow:
    type: ClassVar[str] = "partition_offset"

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class TopicIdRow:
    """A topic id: `topic_id` as in the file (base64), and as a UUID."""

    type: ClassVar[str] = "partition_metadata"

    version: int
    topic_id: str
    uuid: str


@dataclass(frozen=True, slots=True)
class ProblemRow:
    """A problem of a file. It `is_harmless` if a running writer or a preallocated file looks the same."""

    type: ClassVar[str] = "problem"

    position: int
    reason: str
    bytes_left: int
    is_harmless: bool = False


Row: TypeAlias = (
    BatchRow
    | RecordRow
    | OffsetEntryRow
    | TimeEntryRow
    | AbortedRow
    | ProducerRow
    | EpochRow
    | PartitionOffsetRow
    | TopicIdRow
    | ProblemRow
)


def batch_row(batch: BatchOnDisk) -> BatchRow:
    header = batch.header
    return BatchRow(
        position=batch.position,
        size=header.size,
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        record_count=header.record_count,
        magic=header.magic,
        leader_epoch=header.leader_epoch,
        crc=header.crc,
        crc_valid=batch.crc_matches(),
        attributes=header.attributes,
        codec=codec_name(header.codec),
        timestamp_type=timestamp_type_name(header.timestamp_type),
        is_transactional=header.is_transactional,
        is_control=header.is_control,
        has_delete_horizon=header.has_delete_horizon,
        base_timestamp=header.base_timestamp,
        max_timestamp=header.max_timestamp,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        last_sequence=header.last_sequence,
    )


def record_row(record: Record, control: str | None = None, coordinator_epoch: int | None = None) -> RecordRow:
    return RecordRow(
        record.offset, record.timestamp, record.key, record.value, record.headers, control, coordinator_epoch
    )


def codec_name(codec: int) -> str:
    return format.Codec(codec).name.lower() if codec <= format.Codec.ZSTD else f"unknown ({codec})"


def timestamp_type_name(timestamp_type: int) -> str:
    return ("CreateTime", "LogAppendTime", "NoTimestampType")[timestamp_type]

"""Records -> the bytes of a magic 2 batch. The batches pass validation.pyx, except batches with gaps between their
offsets, as compaction leaves them.

A builder writes each record when it is appended. So its size is known at any time, and `build` costs a copy, the codec
and a checksum. Nothing here reads a clock: a record without a timestamp gets -1.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, TypedDict, Unpack

from stratalog.errors import InvalidRecordError, MessageTooLargeError, UnsupportedCodecError
from stratalog.records import compression, format
from stratalog.records._crc32c import crc32c
from stratalog.records._records import Record, RecordsWriter, size_upper_bound

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from typing_extensions import Buffer

    from stratalog.records._records import Header

BATCH_HEADER = struct.Struct(">qiibIhiqqqhii")
CONTROL_KEY = struct.Struct(">hh")  # version, control type
END_MARKER = struct.Struct(">hi")  # version, coordinator epoch
CONTROL_VERSION = 0
LARGEST_BATCH = 2**31 - 1 + format.LOG_OVERHEAD


class BatchFields(TypedDict, total=False):
    """The keyword arguments of BatchBuilder, which build_batch passes on."""

    codec: int | str
    compression_level: int | None
    timestamp_type: int
    append_time: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    is_transactional: bool
    is_control: bool
    leader_epoch: int
    delete_horizon: int | None
    last_offset_delta: int | None


class BatchBuilder:
    """A batch that grows by appended records until `build`. It is not thread-safe.

    The arguments are the fields of the header. They are also attributes that may be set until `build`, except
    `delete_horizon` and `last_offset_delta`. The default of `last_offset_delta` is the last record's; compaction keeps
    the original value. With `delete_horizon`, the batch's base timestamp is that time, and the records' timestamp
    deltas count from it, as in Kafka.
    """

    def __init__(
        self,
        *,
        codec: int | str = format.Codec.NONE,
        compression_level: int | None = None,
        timestamp_type: int = format.TimestampType.CREATE_TIME,
        append_time: int = format.NO_TIMESTAMP,
        producer_id: int = format.NO_PRODUCER_ID,
        producer_epoch: int = format.NO_PRODUCER_EPOCH,
        base_sequence: int = format.NO_SEQUENCE,
        is_transactional: bool = False,
        is_control: bool = False,
        leader_epoch: int = format.NO_LEADER_EPOCH,
        delete_horizon: int | None = None,
        last_offset_delta: int | None = None,
    ) -> None:
        self.codec = format.codec_of(codec)
        self.compression_level = compression_level
        self.timestamp_type = timestamp_type
        self.append_time = append_time
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        self.is_transactional = is_transactional
        self.is_control = is_control
        self.leader_epoch = leader_epoch
        self._delete_horizon = delete_horizon
        self._last_offset_delta = last_offset_delta
        self._records = RecordsWriter(delete_horizon)

    @property
    def record_count(self) -> int:
        return self._records.record_count

    @property
    def size(self) -> int:
        """The uncompressed size of the batch so far. A codec may make random records a little larger."""
        return format.HEADER_SIZE + self._records.size

    @property
    def max_timestamp(self) -> int:
        """The batch's max timestamp: `append_time` for LogAppendTime, otherwise the largest timestamp of the
        records."""
        if self.timestamp_type == format.TimestampType.LOG_APPEND_TIME:
            return self.append_time
        return self._records.max_timestamp

    def size_with(self, value: Buffer | None, key: Buffer | None = None, headers: Sequence[Header] = ()) -> int:
        """Return an upper bound of `size` after this record is appended."""
        return self.size + size_upper_bound(value, key, headers)

    def append(
        self,
        value: Buffer | None,
        key: Buffer | None = None,
        headers: Sequence[Header] = (),
        timestamp: int = format.NO_TIMESTAMP,
        offset_delta: int | None = None,
    ) -> int:
        """Add a record and return its offset delta. The default is the next delta; another must be after the last
        one."""
        return self._records.append(value, key, headers, timestamp, offset_delta)

    def extend(
        self,
        records: Iterable[Record | tuple[Buffer | None, Buffer | None]],
        offset_deltas: Iterable[int] | None = None,
    ) -> None:
        """Add Record objects, whose offsets are ignored, or (key, value) tuples."""
        self._records.extend(records, offset_deltas)

    def build(self, base_offset: int = 0) -> bytearray:
        """Return the batch. More records may be appended afterwards, for another build."""
        return seal_batch(
            self._records.batch_bytes(format.HEADER_SIZE),
            base_offset=base_offset,
            record_count=self.record_count,
            last_offset_delta=self._checked_last_offset_delta(),
            base_timestamp=self._records.base_timestamp,
            max_timestamp=self.max_timestamp,
            attributes=self._attributes(),
            compression_level=self.compression_level,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=self.base_sequence,
            leader_epoch=self.leader_epoch,
        )

    def _checked_last_offset_delta(self) -> int:
        last = self._records.last_offset_delta
        if self._last_offset_delta is None:
            return last
        if self._last_offset_delta < last:
            raise InvalidRecordError(f"last offset delta is {self._last_offset_delta}; a record's delta is {last}")
        return self._last_offset_delta

    def _attributes(self) -> int:
        if not format.Codec.NONE <= self.codec <= format.Codec.ZSTD:
            raise UnsupportedCodecError(f"codec is {self.codec}; 0 to 4 are known")
        attributes = int(self.codec)
        if self.timestamp_type == format.TimestampType.LOG_APPEND_TIME:
            attributes |= format.TIMESTAMP_TYPE_BIT
        if self.is_transactional:
            attributes |= format.TRANSACTIONAL_BIT
        if self.is_control:
            attributes |= format.CONTROL_BIT
        if self._delete_horizon is not None:
            attributes |= format.DELETE_HORIZON_BIT
        return attributes


def seal_batch(
    batch: bytearray,
    is_compressed: bool = False,
    /,
    *,
    base_offset: int,
    record_count: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    attributes: int,
    compression_level: int | None = None,
    producer_id: int = format.NO_PRODUCER_ID,
    producer_epoch: int = format.NO_PRODUCER_EPOCH,
    base_sequence: int = format.NO_SEQUENCE,
    leader_epoch: int = format.NO_LEADER_EPOCH,
) -> bytearray:
    """Return the finished batch. `batch` has room for a header and then the records. They are compressed with the codec
    of the attributes unless `is_compressed`; then the header is written."""
    codec = attributes & format.CODEC_MASK
    if codec != format.Codec.NONE and not is_compressed:
        with memoryview(batch) as whole:
            packed = compression.compress(codec, whole[format.HEADER_SIZE :], compression_level)
        batch = bytearray(format.HEADER_SIZE)
        batch += packed
    if len(batch) > LARGEST_BATCH:
        raise MessageTooLargeError(f"batch has {len(batch)} bytes; the limit is {LARGEST_BATCH}")
    try:
        BATCH_HEADER.pack_into(
            batch,
            0,
            base_offset,
            len(batch) - format.LOG_OVERHEAD,
            leader_epoch,
            format.CURRENT_MAGIC,
            0,  # the checksum is written last: it covers the fields after it
            attributes,
            last_offset_delta,
            base_timestamp,
            max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            record_count,
        )
    except struct.error as error:
        raise InvalidRecordError(f"a field of the batch header is out of range: {error}") from None
    checksum = crc32c(memoryview(batch)[format.ATTRIBUTES_POSITION :])
    struct.pack_into(">I", batch, format.CRC_POSITION, checksum)
    return batch


def build_batch(
    records: Iterable[Record | tuple[Buffer | None, Buffer | None]],
    *,
    base_offset: int = 0,
    offset_deltas: Iterable[int] | None = None,
    **fields: Unpack[BatchFields],
) -> bytearray:
    """Return a batch of Record objects or (key, value) tuples. `fields` are BatchBuilder's, such as codec="zstd".

    The records get consecutive offsets from `base_offset` on, or `offset_deltas` from there. Their own are ignored.
    """
    builder = BatchBuilder(**fields)
    builder.extend(records, offset_deltas)
    return builder.build(base_offset)


def build_control_batch(
    control_type: format.ControlType,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp: int,
    *,
    base_offset: int = 0,
    leader_epoch: int = format.NO_LEADER_EPOCH,
) -> bytearray:
    """Return the marker that ends a transaction: a control batch with one record."""
    if control_type not in (format.ControlType.ABORT, format.ControlType.COMMIT):
        raise InvalidRecordError(f"control type is {control_type}; a transaction ends with ABORT or COMMIT")
    builder = BatchBuilder(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
        leader_epoch=leader_epoch,
    )
    builder.append(
        END_MARKER.pack(CONTROL_VERSION, coordinator_epoch),
        CONTROL_KEY.pack(CONTROL_VERSION, control_type),
        timestamp=timestamp,
    )
    return builder.build(base_offset)

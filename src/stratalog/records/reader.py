"""Batch bytes -> Record objects, for every magic. arrow.py reads columns instead of objects.

Control batches, which end transactions, are left out by default; `read_control` reads them. A batch that is cut off at
the end of the buffer is left out, too, because a fetch response may end with one.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from stratalog.errors import CorruptBatchError
from stratalog.records import format, legacy
from stratalog.records._records import Record, decode_records
from stratalog.records._records import find_timestamp as _find_timestamp
from stratalog.records.batch import DEFAULT_MAX_DECOMPRESSED, Batch, batches
from stratalog.records.builder import CONTROL_KEY, END_MARKER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer

_PLAIN_MARKER = struct.Struct(">5shhBhiB")  # fields up to the key, key, value length, value, header count
_PLAIN = (b"\x20\x00\x00\x00\x08", 0, 12, 0)  # the same fields, without the control type and the value
_MARKER_BATCH_SIZE = format.HEADER_SIZE + _PLAIN_MARKER.size
_ANY_TIME = -(2**63)
_ENDS = {int(end): end for end in (format.ControlType.ABORT, format.ControlType.COMMIT)}


def read_records(
    buffer: Buffer,
    *,
    max_decompressed: int = DEFAULT_MAX_DECOMPRESSED,
    check_crc: bool = True,
    include_control: bool = False,
) -> list[Record]:
    """Return all records of the complete batches in `buffer`. `max_decompressed` limits each batch, not their sum."""
    records: list[Record] = []
    for batch in batches(buffer):
        records += _read_batch(batch, max_decompressed, check_crc, include_control)
    return records


def iter_records(
    buffer: Buffer,
    *,
    max_decompressed: int = DEFAULT_MAX_DECOMPRESSED,
    check_crc: bool = True,
    include_control: bool = False,
) -> Iterator[Record]:
    """Yield the records that read_records returns, with the records of one batch in memory at a time."""
    for batch in batches(buffer):
        yield from _read_batch(batch, max_decompressed, check_crc, include_control)


def records_of(batch: Batch, max_decompressed: int = DEFAULT_MAX_DECOMPRESSED) -> list[Record]:
    """Return the records of one batch, which may be a control batch. The checksum is not checked."""
    header = batch.header
    if header.magic != format.CURRENT_MAGIC:
        return legacy.records_of_message(batch, max_decompressed)
    try:
        return decode_records(
            batch.payload(max_decompressed),
            header.record_count,
            header.base_offset,
            header.base_timestamp,
            header.timestamp_type,
            header.max_timestamp,
        )
    except CorruptBatchError as error:
        raise located(error, batch) from error


def find_timestamp(batch: Batch, timestamp: int, start_offset: int) -> tuple[int, int] | None:
    """Return (offset, timestamp) of a batch's first record that is not before `timestamp` and not before
    `start_offset`, or None without such a record."""
    header = batch.header
    if header.magic != format.CURRENT_MAGIC:
        for record in legacy.records_of_message(batch, DEFAULT_MAX_DECOMPRESSED):
            if record.offset >= start_offset and record.timestamp >= timestamp:
                return record.offset, record.timestamp
        return None
    has_append_time = header.timestamp_type == format.TimestampType.LOG_APPEND_TIME  # all records have the batch's time
    if has_append_time and header.max_timestamp < timestamp:
        return None
    record_timestamp = _ANY_TIME if has_append_time else timestamp
    payload = batch.payload()
    match = _find_timestamp(
        payload, header.record_count, header.base_offset, header.base_timestamp, record_timestamp, start_offset
    )
    return (match[0], header.max_timestamp) if match is not None and has_append_time else match


def read_control(batch: Batch) -> tuple[format.ControlType, int]:
    """Return the control type of a control batch, and its coordinator epoch, which only ABORT and COMMIT have (else
    -1)."""
    if not batch.header.is_control:
        raise CorruptBatchError(f"batch at offset {batch.header.base_offset} is not a control batch")
    if batch.header.size == _MARKER_BATCH_SIZE and (marker := _plain_marker(batch)) is not None:
        return marker
    records = records_of(batch)
    if len(records) != 1:
        raise located(CorruptBatchError(f"control batch has {len(records)} records, not one"), batch)
    key, value = records[0].key or b"", records[0].value or b""
    if len(key) < CONTROL_KEY.size:
        raise located(CorruptBatchError(f"key of the control record has {len(key)} bytes, not 4"), batch)
    version, number = CONTROL_KEY.unpack_from(key)
    if version < 0 or number not in tuple(format.ControlType):
        raise located(CorruptBatchError(f"control record has version {version} and type {number}"), batch)
    control_type = format.ControlType(number)
    if control_type not in (format.ControlType.ABORT, format.ControlType.COMMIT):
        return control_type, -1
    if len(value) < END_MARKER.size:
        raise located(CorruptBatchError(f"value of the end marker has {len(value)} bytes, not 6"), batch)
    return control_type, END_MARKER.unpack_from(value)[1]


def _plain_marker(batch: Batch) -> tuple[format.ControlType, int] | None:
    """Return read_control() of a marker in the layout that all brokers write, or None for another layout. This is fast,
    because each transaction has markers."""
    header = batch.header
    fields = _PLAIN_MARKER.unpack_from(batch.buffer, header.position + format.HEADER_SIZE)
    before_key, version, number, before_value, _, epoch, header_count = fields
    if (before_key, version, before_value, header_count) != _PLAIN or number not in _ENDS:
        return None
    return (_ENDS[number], epoch) if header.record_count == 1 and header.codec == format.Codec.NONE else None


def located(error: CorruptBatchError, batch: Batch) -> CorruptBatchError:
    """Return the same error with the batch's offset and its position in the buffer."""
    return type(error)(f"batch at offset {batch.header.base_offset}: {error.reason}", position=batch.header.position)


def _read_batch(batch: Batch, max_decompressed: int, check_crc: bool, include_control: bool) -> list[Record]:
    if batch.header.is_control and not include_control:
        return []
    if check_crc:
        batch.check_crc()
    return records_of(batch, max_decompressed)

"""Batch bytes -> Record objects, for every magic. For columns instead of objects: arrow.py.

Control batches (the ends of transactions) are the log's, not the user's: they are read with `read_control`
and left out elsewhere, unless asked for. A batch that is cut off at the buffer's end is left out too:
fetches end so.
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

_PLAIN_MARKER = struct.Struct(">5shhBhiB")  # up to the key; key; the value's length; value; the number of headers
_PLAIN = (b"\x20\x00\x00\x00\x08", 0, 12, 0)  # the record's length, attributes, deltas 0, the key's length; ...
_MARKER_BATCH_SIZE = format.HEADER_SIZE + _PLAIN_MARKER.size
_ANY_TIME = -(2**63)
_ENDS = {int(one): one for one in (format.ControlType.ABORT, format.ControlType.COMMIT)}


def read_records(
    buffer: Buffer,
    *,
    max_decompressed: int = DEFAULT_MAX_DECOMPRESSED,
    check_crc: bool = True,
    include_control: bool = False,
) -> list[Record]:
    """All records of the whole batches in `buffer`. `max_decompressed` bounds each batch, not their sum."""
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
    """As read_records, with the records of one batch in memory at a time."""
    for batch in batches(buffer):
        yield from _read_batch(batch, max_decompressed, check_crc, include_control)


def records_of(batch: Batch, max_decompressed: int = DEFAULT_MAX_DECOMPRESSED) -> list[Record]:
    """The records of one batch, control batches included. Does not look at the checksum."""
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
    """(offset, timestamp) of the first record of a batch that is not before either; None: there is none."""
    header = batch.header
    if header.magic != format.CURRENT_MAGIC:
        messages = ((one.offset, one.timestamp) for one in legacy.records_of_message(batch, DEFAULT_MAX_DECOMPRESSED))
        return next((one for one in messages if one[0] >= start_offset and one[1] >= timestamp), None)
    stamped = header.timestamp_type == format.TimestampType.LOG_APPEND_TIME  # all records have the batch's time
    if stamped and header.max_timestamp < timestamp:
        return None
    wanted = _ANY_TIME if stamped else timestamp
    payload = batch.payload()
    found = _find_timestamp(
        payload, header.record_count, header.base_offset, header.base_timestamp, wanted, start_offset
    )
    return (found[0], header.max_timestamp) if found is not None and stamped else found


def read_control(batch: Batch) -> tuple[format.ControlType, int]:
    """What a control batch says: its type, and the coordinator epoch (-1 but for ABORT and COMMIT)."""
    if not batch.header.is_control:
        raise CorruptBatchError(f"batch at offset {batch.header.base_offset} is not a control batch")
    if batch.header.size == _MARKER_BATCH_SIZE and (said := _plain_marker(batch)) is not None:
        return said
    records = records_of(batch)
    if len(records) != 1:
        raise located(CorruptBatchError(f"a control batch has one record, not {len(records)}"), batch)
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
    """What a marker says that is laid out as all brokers do it; None where it is not. Each transaction has some."""
    header = batch.header
    fields = _PLAIN_MARKER.unpack_from(batch.buffer, header.position + format.HEADER_SIZE)
    before_key, version, number, before_value, _, epoch, header_count = fields
    if (before_key, version, before_value, header_count) != _PLAIN or number not in _ENDS:
        return None
    return (_ENDS[number], epoch) if header.record_count == 1 and header.codec == format.Codec.NONE else None


def located(error: CorruptBatchError, batch: Batch) -> CorruptBatchError:
    """The same error, with the place of the batch in its buffer."""
    return type(error)(f"batch at offset {batch.header.base_offset}: {error.reason}", position=batch.header.position)


def _read_batch(batch: Batch, max_decompressed: int, check_crc: bool, include_control: bool) -> list[Record]:
    if batch.header.is_control and not include_control:
        return []
    if check_crc:
        batch.check_crc()
    return records_of(batch, max_decompressed)

"""Messages of magic 0 and 1, the formats before Kafka 0.11: reading, writing and converting them to magic 2 batches.

An uncompressed message is one record. A compressed message is a wrapper whose value is a message set. A wrapper has the
offset of its last message; the offsets inside are absolute (magic 0) or count from the first message (magic 1). The
timestamp of a wrapper with LogAppendTime applies to all messages inside. A wrapper inside a wrapper is an error.

This is plain Python, because such messages are rare: they are read when old data is converted.
"""

from __future__ import annotations

import struct
import zlib
from itertools import pairwise
from typing import TYPE_CHECKING

from stratalog.errors import (
    CorruptBatchError,
    InvalidRecordError,
    UnsupportedCodecError,
    UnsupportedMagicError,
)
from stratalog.records import compression, format
from stratalog.records._framing import BatchHeader
from stratalog.records._records import Record
from stratalog.records.batch import DEFAULT_MAX_DECOMPRESSED, Batch, batches
from stratalog.records.builder import BatchBuilder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer

MESSAGE_V0 = struct.Struct(">qiIbb")  # offset, size, crc, magic, attributes
MESSAGE_V1 = struct.Struct(">qiIbbq")  # and a timestamp
LENGTH = struct.Struct(">i")
NULL_LENGTH = LENGTH.pack(-1)

DEFAULT_BATCH_BYTES = 1024 * 1024
LARGEST_OFFSET = 2**63 - 1
LARGEST_OFFSET_DELTA = 2**31 - 1


def records_of_message(message: Batch, max_decompressed: int = DEFAULT_MAX_DECOMPRESSED) -> list[Record]:
    """Return the record of a message, or all records inside a wrapper. Checksums are not checked."""
    header = message.header
    if header.magic not in (0, 1):
        raise UnsupportedMagicError(f"magic is {header.magic}; legacy messages have 0 or 1")
    key, value = _key_and_value(message.buffer, header)
    if header.codec != format.Codec.NONE:
        return _inner_records(header, value, max_decompressed)
    return [_record(header.base_offset, header.max_timestamp, header.timestamp_type, key, value)]


def up_convert(
    buffer: Buffer,
    *,
    max_batch_bytes: int = DEFAULT_BATCH_BYTES,
    max_decompressed: int = DEFAULT_MAX_DECOMPRESSED,
    check_crc: bool = True,
) -> bytearray:
    """Return the same records as magic 2 batches, with the same offsets, timestamps, keys, values and codecs.

    Consecutive uncompressed messages share batches of about `max_batch_bytes`. A wrapper becomes one batch. Batches of
    magic 2 are copied unchanged. Messages of magic 0 have no timestamps; theirs become -1.
    """
    converted = bytearray()
    plain: list[Record] = []
    for batch in batches(buffer):
        if check_crc:
            batch.check_crc()
        if batch.header.magic in (0, 1) and batch.header.codec == format.Codec.NONE:
            plain += records_of_message(batch)
            continue
        converted += _batches_of(plain, format.Codec.NONE, max_batch_bytes)
        plain = []
        if batch.header.magic == format.CURRENT_MAGIC:
            converted += batch.data
        else:
            converted += _batches_of(
                records_of_message(batch, max_decompressed), batch.header.codec, LARGEST_OFFSET_DELTA
            )
    converted += _batches_of(plain, format.Codec.NONE, max_batch_bytes)
    return converted


def build_message_set(
    records: Sequence[Record],
    *,
    magic: int,
    codec: int = format.Codec.NONE,
    compression_level: int | None = None,
    timestamp_type: int = format.TimestampType.CREATE_TIME,
) -> bytearray:
    """Return the records as messages with their own offsets, or as one wrapper if there is a codec.

    With LogAppendTime, a wrapper gets the largest timestamp of the records, and readers apply it to all of them.
    """
    if magic not in (0, 1):
        raise UnsupportedMagicError(f"magic is {magic}; legacy messages have 0 or 1")
    _check_codec(codec)
    type_bit = 0
    if magic == 1 and timestamp_type == format.TimestampType.LOG_APPEND_TIME:
        type_bit = format.TIMESTAMP_TYPE_BIT
    relative_to = records[0].offset if codec != format.Codec.NONE and magic == 1 and records else 0
    messages = bytearray()
    for record in records:
        if record.headers:
            raise InvalidRecordError(f"record at offset {record.offset} has headers; magic {magic} has none")
        messages += _message(magic, type_bit, record.offset - relative_to, record.timestamp, record.key, record.value)
    if codec == format.Codec.NONE or not records:
        return messages
    packed: Buffer = compression.compress(codec, messages, compression_level)
    if magic == 0 and codec == format.Codec.LZ4:
        packed = compression.with_legacy_lz4_checksum(packed)
    max_timestamp = max(record.timestamp for record in records)
    return _message(magic, type_bit | codec, records[-1].offset, max_timestamp, None, bytes(packed))


def _message(
    magic: int, attributes: int, offset: int, timestamp: int, key: bytes | None, value: bytes | None
) -> bytearray:
    message = bytearray(MESSAGE_V0.size if magic == 0 else MESSAGE_V1.size)
    for content in (key, value):
        message += NULL_LENGTH if content is None else LENGTH.pack(len(content)) + content
    size = len(message) - format.LOG_OVERHEAD
    if magic == 0:
        MESSAGE_V0.pack_into(message, 0, offset, size, 0, magic, attributes)
    else:
        MESSAGE_V1.pack_into(message, 0, offset, size, 0, magic, attributes, timestamp)
    checksum = zlib.crc32(memoryview(message)[format.MAGIC_POSITION :])
    struct.pack_into(">I", message, format.LEGACY_CRC_POSITION, checksum)
    return message


def _record(
    offset: int, timestamp: int, timestamp_type: int, key: memoryview | None, value: memoryview | None
) -> Record:
    return Record(
        offset=offset,
        timestamp=timestamp,
        timestamp_type=timestamp_type,
        key=None if key is None else bytes(key),
        value=None if value is None else bytes(value),
    )


def _key_and_value(buffer: memoryview, header: BatchHeader) -> tuple[memoryview | None, memoryview | None]:
    message = buffer[header.position : header.position + header.size]
    start = format.LEGACY_V0_HEADER_SIZE if header.magic == 0 else format.LEGACY_V1_HEADER_SIZE
    key, position = _field(message, start, "key", header)
    value, position = _field(message, position, "value", header)
    if position != header.size:
        raise _corrupt(header, f"{header.size - position} bytes are left over after the value")
    return key, value


def _field(message: memoryview, position: int, name: str, header: BatchHeader) -> tuple[memoryview | None, int]:
    """Read a length, where -1 is null, and the bytes. Return the bytes and the position after them."""
    start = position + LENGTH.size
    if start > len(message):
        raise _corrupt(header, f"{name} length goes past the end of the message")
    (length,) = LENGTH.unpack_from(message, position)
    if length == -1:
        return None, start
    if length < -1 or length > len(message) - start:
        raise _corrupt(header, f"{name} length is {length}, {len(message) - start} bytes are left")
    return message[start : start + length], start + length


def _inner_records(wrapper: BatchHeader, value: memoryview | None, max_decompressed: int) -> list[Record]:
    _check_codec(wrapper.codec)
    if value is None:
        raise _corrupt(wrapper, "a wrapper has no value")
    try:
        decompressed = memoryview(compression.decompress(wrapper.codec, value, max_decompressed))
        headers = [message.header for message in batches(decompressed)]
    except CorruptBatchError as error:
        raise type(error)(f"wrapper at offset {wrapper.base_offset}: {error.reason}") from error
    left_over = decompressed.nbytes - sum(header.size for header in headers)
    if not headers or left_over:
        raise _corrupt(wrapper, f"{left_over} of {decompressed.nbytes} bytes inside are not a message")
    base_offset = _absolute_base_offset(wrapper, headers)
    has_append_time = wrapper.timestamp_type == format.TimestampType.LOG_APPEND_TIME
    records = []
    for header in headers:
        if header.magic != wrapper.magic:
            raise _corrupt(wrapper, f"a message inside has magic {header.magic}, the wrapper {wrapper.magic}")
        if header.codec != format.Codec.NONE:
            raise _corrupt(wrapper, f"a message inside is a wrapper too, with codec {header.codec}")
        key, content = _key_and_value(decompressed, header)
        timestamp = wrapper.max_timestamp if has_append_time else header.max_timestamp
        offset = base_offset + header.base_offset
        if not 0 <= offset <= LARGEST_OFFSET:
            raise _corrupt(wrapper, f"a message inside has offset {header.base_offset}, which makes {offset}")
        records.append(_record(offset, timestamp, wrapper.timestamp_type, key, content))
    return records


def _absolute_base_offset(wrapper: BatchHeader, headers: list[BatchHeader]) -> int:
    """Return the number to add to the offsets inside: 0 for magic 0, and for old librdkafka's wrappers with offset
    0."""
    if wrapper.magic == 0 or wrapper.base_offset == 0:
        return 0
    return wrapper.base_offset - headers[-1].base_offset


def _check_codec(codec: int) -> None:
    if codec > format.Codec.LZ4:
        raise UnsupportedCodecError(f"codec is {codec}; magic 0 and 1 have 0 to 3")


def _corrupt(header: BatchHeader, problem: str) -> CorruptBatchError:
    return CorruptBatchError(f"message at offset {header.base_offset}: {problem}", position=header.position)


def _batches_of(records: list[Record], codec: int, max_batch_bytes: int) -> bytearray:
    converted = bytearray()
    start = 0
    for group in _groups(records, max_batch_bytes):
        first = records[start]
        builder = BatchBuilder(codec=codec)
        if first.timestamp_type == format.TimestampType.LOG_APPEND_TIME:
            builder.timestamp_type, builder.append_time = first.timestamp_type, first.timestamp
        members = records[start : start + group]
        builder.extend(members, [record.offset - first.offset for record in members])
        converted += builder.build(first.offset)
        start += group
    return converted


def _groups(records: list[Record], max_batch_bytes: int) -> list[int]:
    """Return how many consecutive records go into each batch. Offsets rise in a batch, and its timestamp type is
    one."""
    if not records:
        return []
    groups = [1]
    size = _content_size(records[0])
    first = records[0]
    for previous, record in pairwise(records):
        size += _content_size(record)
        if (
            size > max_batch_bytes
            or record.timestamp_type != first.timestamp_type
            or (first.timestamp_type == 1 and record.timestamp != first.timestamp)
            or record.offset <= previous.offset
            or record.offset - first.offset > LARGEST_OFFSET_DELTA
        ):
            groups.append(0)
            first, size = record, _content_size(record)
        groups[-1] += 1
    return groups


def _content_size(record: Record) -> int:
    return len(record.key or b"") + len(record.value or b"")

"""Every number of the record format. format.pxd has them for the kernels; docs/record-format.md explains them.

A record batch (magic 2), big-endian: a header of 61 bytes, then the records, which may be compressed as one block.

    0  base offset           i64   the broker writes it
    8  batch length          i32   bytes after this field
    12 partition leader epoch i32  the broker writes it
    16 magic                 i8    2
    17 crc                   u32   CRC-32C of all bytes from the attributes on
    21 attributes            i16   bits below
    23 last offset delta     i32
    27 base timestamp        i64
    35 max timestamp         i64
    43 producer id           i64   -1: not idempotent
    51 producer epoch        i16
    53 base sequence         i32
    57 record count          i32

The fields that the broker writes are before the checksummed part. So stamping a batch does not change its checksum,
unless the log also sets the timestamps (LogAppendTime).

A legacy message (magic 0 and 1): offset i64, size i32, crc u32 (zlib's CRC-32 of all bytes from the magic on),
magic i8, attributes i8, timestamp i64 (magic 1 only), key length i32, key, value length i32, value. A compressed
message is a wrapper: its value is a message set.
"""

from __future__ import annotations

from enum import IntEnum

from stratalog.errors import UnsupportedCodecError

LOG_OVERHEAD = 12  # base offset and batch length: they tell where an entry ends
MAGIC_POSITION = 16
CURRENT_MAGIC = 2

BASE_OFFSET_POSITION = 0
BATCH_LENGTH_POSITION = 8
LEADER_EPOCH_POSITION = 12
CRC_POSITION = 17
ATTRIBUTES_POSITION = 21
LAST_OFFSET_DELTA_POSITION = 23
BASE_TIMESTAMP_POSITION = 27
MAX_TIMESTAMP_POSITION = 35
PRODUCER_ID_POSITION = 43
PRODUCER_EPOCH_POSITION = 51
BASE_SEQUENCE_POSITION = 53
RECORD_COUNT_POSITION = 57
HEADER_SIZE = 61

LEGACY_CRC_POSITION = 12
LEGACY_ATTRIBUTES_POSITION = 17
LEGACY_V0_HEADER_SIZE = 18  # up to the key length
LEGACY_V1_HEADER_SIZE = 26
LEGACY_TIMESTAMP_POSITION = 18
LEGACY_V0_MINIMUM = 26  # header, two lengths, nothing in them
LEGACY_V1_MINIMUM = 34

CODEC_MASK = 0x07
TIMESTAMP_TYPE_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40

CONTROL_KEY_SIZE = 4  # of a control record: version i16, control type i16
CONTROL_TYPE_POSITION = 2

NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1


class Codec(IntEnum):
    """A codec of records; its value is the one in the attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def codec_of(codec: int | str) -> int:
    """Return the number of a codec, for its number or its name in compression.type."""
    if isinstance(codec, int):
        return codec
    try:
        return Codec[codec.upper()]
    except (KeyError, AttributeError):
        known = ", ".join(member.name.lower() for member in Codec)
        raise UnsupportedCodecError(f"codec is {codec!r}; known are {known}, or their numbers, 0 to 4") from None


class TimestampType(IntEnum):
    """The origin of the records' timestamps; the values are those of Kafka, and of Spark's column timestampType."""

    NO_TIMESTAMP = -1
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class ControlType(IntEnum):
    """The type of a control record: the second field of its key."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6

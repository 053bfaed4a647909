"""The frame of schema registries before a value: a zero byte, the schema's id in four bytes, and for Protobuf the
message's indexes. All functions return Spark expressions, which the JVM evaluates.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as f

MAGIC = b"\x00"
_HEADER = 5
_REST = 2_147_483_647


def is_framed(value: Column) -> Column:
    """Return whether the value has a frame; false for null."""
    has_frame = (f.substring(value, 1, 1) == f.lit(MAGIC)) & (f.octet_length(value) >= _HEADER)
    return f.coalesce(has_frame, f.lit(False))


def schema_id(value: Column) -> Column:
    return f.conv(f.hex(f.substring(value, 2, 4)), 16, 10).cast("long")


def without_frame(value: Column) -> Column:
    return f.substring(value, _HEADER + 1, _REST)


def without_indexes(rest: Column) -> Column:
    """Return the value after a Protobuf frame's message indexes: a count and that many numbers, as zigzag varints. Null
    if one of them takes more than a byte, which 64 messages in a file, or such deep nesting, would need."""
    count_byte = f.conv(f.hex(f.substring(rest, 1, 1)), 16, 10).cast("int")
    count = (count_byte / 2).cast("int")
    indexes = f.hex(f.substring(rest, f.lit(2), count))
    are_single_bytes = (count_byte < 128) & (count_byte % 2 == 0) & indexes.rlike("^([0-7][0-9A-F])*$")
    return f.when(are_single_bytes, f.substring(rest, count + 2, f.lit(_REST)))

"""Produce: the response, versions 0 to 13. The request is read by _wire.parse_produce."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from stratalog.protocol.encoding import write_count, write_topic, write_varint

FIRST_FLEXIBLE = 9
_INT16 = Struct(">h")
_UP_TO_1 = Struct(">ihq")
_UP_TO_4 = Struct(">ihqq")
_WITH_START = Struct(">ihqqq")


class ProducedPartition(NamedTuple):
    partition: int
    error_code: int = 0
    base_offset: int = -1
    log_append_time: int = -1
    log_start_offset: int = -1
    error_message: str | None = None


def encode_produce_response(version: int, topics: Sequence[tuple[str | bytes, list[ProducedPartition]]]) -> bytearray:
    """`topics` by name, or from version 13 on by the 16 bytes of their ids, as in the request."""
    out = bytearray()
    flexible = version >= FIRST_FLEXIBLE
    write_count(out, len(topics), flexible=flexible)
    for topic, partitions in topics:
        write_topic(out, topic, flexible=flexible)
        write_count(out, len(partitions), flexible=flexible)
        for partition in partitions:
            _partition(out, version, partition)
        if flexible:
            out.append(0)
    if version >= 1:
        out += b"\0\0\0\0"  # never throttled
    if flexible:
        out.append(0)
    return out


def _partition(out: bytearray, version: int, partition: ProducedPartition) -> None:
    if version >= 5:
        out += _WITH_START.pack(*partition[:5])
    elif version >= 2:
        out += _UP_TO_4.pack(*partition[:4])
    else:
        out += _UP_TO_1.pack(*partition[:3])
    if version < 8:
        return
    message = None if partition.error_message is None else partition.error_message.encode()[:1000]
    if version >= FIRST_FLEXIBLE:
        out.append(1)  # no record errors
        write_varint(out, 0 if message is None else len(message) + 1)
        out += message or b""
        out.append(0)
    else:
        out += b"\0\0\0\0"
        out += _INT16.pack(-1 if message is None else len(message))
        out += message or b""

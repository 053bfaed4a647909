"""Fetch: the request as a consumer sends it, versions 4 to 18. The response: _fetch_response.parse_fetch_response.

    below 15: replica id i32; max wait i32, min bytes i32, max bytes i32, isolation level i8,
    7: session id i32, session epoch i32
    [topic name, or from 13 on id
        [partition i32, 9: leader epoch i32, offset i64, 12: last fetched epoch i32, 5: log start offset i64, max bytes
        i32]]
    7: forgotten [topic [partition i32]], 11: rack id

From 12 on flexible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct
from typing import NamedTuple

from stratalog.protocol.fetch import FIRST_FLEXIBLE
from stratalog.protocol.fields import INT32, FieldWriter

FIRST_WITH_SESSIONS = 7
FIRST_BY_ID = 13
LOWEST, HIGHEST = 4, 18

_START = Struct(">iiib")
_SESSION = Struct(">ii")
_FLEXIBLE_PARTITION = Struct(">iiqiqib")
_CONSUMER = -1  # the replica id of who is no replica


class WantedPartition(NamedTuple):
    """What a consumer wants of one partition. `last_epoch`: that of the batch before `offset`, -1: not known."""

    offset: int
    leader_epoch: int
    max_bytes: int
    last_epoch: int = -1


Topic = str | bytes  # a name, or from version 13 on the 16 bytes of an id


def encode_fetch_request(
    version: int,
    *,
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    read_committed: bool,
    session_id: int,
    session_epoch: int,
    topics: Mapping[Topic, Sequence[tuple[int, WantedPartition]]],
    forgotten: Mapping[Topic, Sequence[int]],
    rack_id: str = "",
) -> bytearray:
    """The body, without a header."""
    flexible = version >= FIRST_FLEXIBLE
    fields = FieldWriter(flexible=flexible)
    out = fields.out
    if version < 15:
        out += INT32.pack(_CONSUMER)
    out += _START.pack(max_wait_ms, min_bytes, max_bytes, int(read_committed))
    if version >= FIRST_WITH_SESSIONS:
        out += _SESSION.pack(session_id, session_epoch)
    fields.count(len(topics))
    for topic, partitions in topics.items():
        if isinstance(topic, bytes):
            out += topic
        else:
            fields.string(topic)
        fields.count(len(partitions))
        for index, wanted in partitions:
            if flexible:
                out += _FLEXIBLE_PARTITION.pack(
                    index, wanted.leader_epoch, wanted.offset, wanted.last_epoch, -1, wanted.max_bytes, 0
                )
            else:
                _write_old_partition(out, version, index, wanted)
        if flexible:
            out.append(0)
    if version >= FIRST_WITH_SESSIONS:
        fields.count(len(forgotten))
        for topic, indexes in forgotten.items():
            _write_forgotten(fields, topic, indexes)
    if version >= 11:
        fields.string(rack_id)
    if flexible:
        out.append(0)
    return out


def _write_old_partition(out: bytearray, version: int, index: int, wanted: WantedPartition) -> None:
    """As it is before the flexible versions."""
    out += INT32.pack(index)
    if version >= 9:
        out += INT32.pack(wanted.leader_epoch)
    out += wanted.offset.to_bytes(8, "big")
    if version >= 5:
        out += b"\xff" * 8  # the log start offset, which followers have
    out += INT32.pack(wanted.max_bytes)


def _write_forgotten(fields: FieldWriter, topic: Topic, indexes: Sequence[int]) -> None:
    if isinstance(topic, bytes):
        fields.raw(topic)
    else:
        fields.string(topic)
    fields.count(len(indexes))
    for index in indexes:
        fields.int32(index)
    fields.tagged_fields()

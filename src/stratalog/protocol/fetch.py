"""Fetch: requests as a consumer sends them, and responses as the broker sends them, in versions 4 to 18.

    request:  below 15: replica id i32; max wait i32, min bytes i32, max bytes i32, isolation level i8,
              7: session id i32, session epoch i32
              [topic name, or from 13 on id
                  [partition i32, 9: leader epoch i32, offset i64, 12: last fetched epoch i32, 5: log start offset i64,
                   max bytes i32]]
              7: forgotten [topic [partition i32]], 11: rack id
              15: tag 1 of a follower: its node id i32, its broker epoch i64
    response: throttle time i32, 7: error i16, session id i32
              [topic name, or from 13 on id
                  [partition i32, error i16, high watermark i64, last stable offset i64, 5: log start offset i64,
                   [aborted: producer id i64, first offset i64], 11: preferred replica i32 or -1, records,
                   12: tag 0, diverging epoch i32 and its end i64,
                   16: tag 1 of an error, the current leader: node id i32, leader epoch i32]]
              16: tag 0, the endpoints of these leaders: [node id i32, host, port i32, rack or null]

From 12 on flexible. encode_fetch_response returns the body in pieces, with the records as they were passed in, and its
size. The broker parses requests with _wire.parse_fetch, and the client responses with
_fetch_response.parse_fetch_response.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from struct import Struct
from typing import NamedTuple

from stratalog.protocol._hot_responses import encode_fetch_response
from stratalog.protocol.current_leader import CurrentLeader
from stratalog.protocol.fields import FieldWriter

__all__ = [
    "FIRST_BY_ID",
    "FIRST_FLEXIBLE",
    "FIRST_WITH_SESSIONS",
    "HIGHEST",
    "LOWEST",
    "NO_REPLICA",
    "FetchedPartition",
    "Topic",
    "WantedPartition",
    "encode_fetch_request",
    "encode_fetch_response",
]

LOWEST, HIGHEST = 4, 18
FIRST_WITH_SESSIONS = 7
FIRST_FLEXIBLE = 12
FIRST_BY_ID = 13

_FLEXIBLE_PARTITION = Struct(">iiqiqib")
NO_REPLICA = -1
_CONSUMER = -1  # the replica id of clients that are no replica
_FIRST_WITH_REPLICA_STATE = 15
_REPLICA_STATE_TAG = 1
_REPLICA_STATE = Struct(">iqB")  # node id, broker epoch, no tags


class FetchedPartition(NamedTuple):
    partition: int
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: Sequence[tuple[int, int]] | None = None  # (producer id, first offset); None for read_uncommitted
    records: Sized | None = None
    diverging_epoch: tuple[int, int] | None = None  # (epoch, its end offset)
    current_leader: CurrentLeader | None = None  # of an error, if another broker leads, or in another epoch
    preferred_replica: int = NO_REPLICA  # the broker that the consumer should read from instead


class WantedPartition(NamedTuple):
    """A request for one partition. `last_epoch` is the leader epoch of the batch before `offset`, or -1.
    `log_start_offset` is that of a follower; consumers leave it at -1."""

    offset: int
    leader_epoch: int
    max_bytes: int
    last_epoch: int = -1
    log_start_offset: int = -1


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
    replica: tuple[int, int] | None = None,
) -> bytearray:
    """Return the body of a request, without its header. A follower gives `replica`, its node id and its broker epoch,
    for which the version must be 15 or newer."""
    flexible = version >= FIRST_FLEXIBLE
    fields = FieldWriter(flexible=flexible)
    out = fields.out
    if version < _FIRST_WITH_REPLICA_STATE:
        fields.int32(_CONSUMER)
    fields.int32(max_wait_ms).int32(min_bytes).int32(max_bytes).int8(int(read_committed))
    if version >= FIRST_WITH_SESSIONS:
        fields.int32(session_id).int32(session_epoch)
    fields.count(len(topics))
    for topic, partitions in topics.items():
        _write_topic(fields, topic)
        fields.count(len(partitions))
        for index, partition in partitions:
            if flexible:  # packed in one step, since a request may have thousands of them
                out += _FLEXIBLE_PARTITION.pack(
                    index,
                    partition.leader_epoch,
                    partition.offset,
                    partition.last_epoch,
                    partition.log_start_offset,
                    partition.max_bytes,
                    0,
                )
            else:
                _write_old_partition(fields, version, index, partition)
        fields.tagged_fields()
    if version >= FIRST_WITH_SESSIONS:
        fields.count(len(forgotten))
        for topic, indexes in forgotten.items():
            _write_topic(fields, topic)
            fields.count(len(indexes))
            for index in indexes:
                fields.int32(index)
            fields.tagged_fields()
    if version >= 11:
        fields.string(rack_id)
    fields.tagged_fields(None if replica is None else {_REPLICA_STATE_TAG: _REPLICA_STATE.pack(*replica, 0)})
    return out


def _write_topic(fields: FieldWriter, topic: Topic) -> None:
    if isinstance(topic, bytes):
        fields.raw(topic)
    else:
        fields.string(topic)


def _write_old_partition(fields: FieldWriter, version: int, index: int, partition: WantedPartition) -> None:
    """Write a partition for a version that is not flexible."""
    fields.int32(index)
    if version >= 9:
        fields.int32(partition.leader_epoch)
    fields.int64(partition.offset)
    if version >= 5:
        fields.int64(partition.log_start_offset)
    fields.int32(partition.max_bytes)

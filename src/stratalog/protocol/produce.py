"""Produce: versions 0 to 13 in the broker, and 3 to 12 in the client.

    request:  3: transactional id or null, acks i16, timeout i32,
              [topic name, or from 13 on id [partition i32, records: one batch, with its length]]
    response: [topic name, or from 13 on id
                  [partition i32, error i16, base offset i64, 2: log append time i64, 5: log start offset i64,
                   8: record errors [index in the batch i32, message], error message,
                   10: tag 0 of an error, the current leader: node id i32, leader epoch i32]]
              1: throttle time i32
              10: tag 0, the endpoints of these leaders: [node id i32, host, port i32, rack or null]

From 9 on flexible: counts and lengths are varints, plus one, and a section of tagged fields, mostly empty, ends each
part. The client names topics by name and not by id, because to a producer a recreated topic is the same topic. The
broker parses requests with _wire.parse_produce.
"""

from __future__ import annotations

from typing import NamedTuple

from stratalog.protocol._hot_responses import encode_produce_response
from stratalog.protocol._produce_client import decode_produce_response, encode_produce_request
from stratalog.protocol.current_leader import CurrentLeader

__all__ = [
    "FIRST_FLEXIBLE",
    "HIGHEST",
    "LOWEST",
    "ProducedPartition",
    "decode_produce_response",
    "encode_produce_request",
    "encode_produce_response",
]

FIRST_FLEXIBLE = 9
LOWEST, HIGHEST = 3, 12  # of the client


class ProducedPartition(NamedTuple):
    partition: int
    error_code: int = 0
    base_offset: int = -1
    log_append_time: int = -1
    log_start_offset: int = -1
    error_message: str | None = None
    record_errors: tuple[tuple[int, str], ...] = ()
    current_leader: CurrentLeader | None = None  # of an error, if another broker leads

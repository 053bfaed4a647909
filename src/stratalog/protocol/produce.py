"""Produce: what its response tells, versions 0 to 13. _wire.parse_produce reads the request.

    [topic name, or from 13 on id
        [partition i32, error i16, base offset i64, 2: log append time i64, 5: log start offset i64,
         8: record errors [index in the batch i32, message], error message]]
    1: throttle time i32

From 9 on flexible: counts and lengths are varints, plus one, and an empty tag section ends each part.
"""

from __future__ import annotations

from typing import NamedTuple

from stratalog.protocol._hot_responses import encode_produce_response

__all__ = ["FIRST_FLEXIBLE", "ProducedPartition", "encode_produce_response"]

FIRST_FLEXIBLE = 9


class ProducedPartition(NamedTuple):
    partition: int
    error_code: int = 0
    base_offset: int = -1
    log_append_time: int = -1
    log_start_offset: int = -1
    error_message: str | None = None
    record_errors: tuple[tuple[int, str], ...] = ()

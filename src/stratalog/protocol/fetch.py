"""Fetch: what its response tells, versions 4 to 18, around records that are not copied. _wire.parse_fetch reads the
request.

    throttle time i32, 7: error i16, session id i32
    [topic name, or from 13 on id
        [partition i32, error i16, high watermark i64, last stable offset i64, 5: log start offset i64,
         [aborted: producer id i64, first offset i64], 11: preferred replica i32, records,
         12: tag 0, diverging epoch i32 and its end i64]]

From 12 on flexible. encode_fetch_response gives the body in pieces, records as they were given, and its size.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import NamedTuple

from stratalog.protocol._hot_responses import encode_fetch_response

__all__ = ["FIRST_FLEXIBLE", "FetchedPartition", "encode_fetch_response"]

FIRST_FLEXIBLE = 12


class FetchedPartition(NamedTuple):
    partition: int
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: Sequence[tuple[int, int]] | None = None  # (producer id, first offset); None for read_uncommitted
    records: Sized | None = None
    diverging_epoch: tuple[int, int] | None = None  # (epoch, its end offset)

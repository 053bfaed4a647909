"""Produce as a client sends it, versions 3 to 12: names, not ids, as a topic made again is the same to a producer.

    request:  transactional id or null, acks i16, timeout i32,
              [topic name [partition i32, records: one batch, with its length]]
    response: [topic name [partition i32, error i16, base offset i64, log append time i64, 5: log start offset i64,
                           8: [record i32, message], message]]
              throttle time i32

From 9 on flexible: counts and lengths are varints, plus one, and a tag section ends each part.
"""

from __future__ import annotations

from stratalog.protocol._produce_client import decode_produce_response, encode_produce_request

__all__ = ["HIGHEST", "LOWEST", "decode_produce_response", "encode_produce_request"]

LOWEST, HIGHEST = 3, 12

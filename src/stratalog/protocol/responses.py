"""The frame around a response: its size, the correlation id, and in flexible versions an empty tag section."""

from __future__ import annotations

from struct import Struct

_HEADER = Struct(">ii")
_CORRELATION = 4


def frame_response(correlation_id: int, body: bytes | bytearray, *, flexible: bool) -> bytes:
    """The whole response of an API that is written in one piece."""
    return response_start(correlation_id, len(body), flexible=flexible) + body


def response_start(correlation_id: int, body_size: int, *, flexible: bool) -> bytes:
    """What comes before a body of that size."""
    start = _HEADER.pack(_CORRELATION + flexible + body_size, correlation_id)
    return start + b"\0" if flexible else start

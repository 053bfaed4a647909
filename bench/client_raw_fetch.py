"""Measure the limit of the loopback: fetch a topic with one socket and one buffer, and process nothing.

A client that sends requests like this can't be faster with the same broker, so bench.client_consume uses it as the
limit for others. The requests are those of the consumer with its defaults, one at a time. Of the responses, only the
batch headers are read, to find the next fetch offset. The bytes are received as the consumer does it, waking up for
half a MiB at a time: recv with MSG_WAITALL wakes up for each segment, a dozen times as often, and takes nearly twice as
long. Memory is reused: fresh memory would take four times as long because of page faults.
"""

from __future__ import annotations

import mmap
import socket
from struct import Struct

from stratalog.net._receive import receive_rest
from stratalog.protocol._fetch_response import parse_fetch_response
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.fetch import WantedPartition, encode_fetch_request
from stratalog.protocol.frames import SIZE, encoded_client_id, request_start

VERSION = 11  # the last version with topic names and a response header without tags
MIB = 1024 * 1024
_TIMEOUTS_MS = (1000, 1000)
LARGEST_RESPONSE = 64 * MIB
_FULL_FETCH = -1  # the epoch of a fetch without a session
_BATCH = Struct(">qi")  # base offset, length of the bytes after it
_BATCH_LENGTH_AT = 12
_LAST_OFFSET_DELTA = Struct(">i")
_LAST_OFFSET_DELTA_AT = 23
_HEADER = 61


def fetch_all(host: str, port: int, topic: str, ends: list[int]) -> int:
    """Fetch the topic's partitions up to these offsets, and return the number of bytes received."""
    offsets = [0] * len(ends)
    received = 0
    memory = memoryview(mmap.mmap(-1, LARGEST_RESPONSE))
    with socket.create_connection((host, port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while any(offset < end for offset, end in zip(offsets, ends, strict=True)):
            sock.sendall(_request(topic, offsets, ends))
            _receive(sock, memory[: SIZE.size])
            size = SIZE.unpack_from(memory)[0]
            _receive(sock, memory[:size])
            received += size
            _, _, _, topics = parse_fetch_response(memory[4:size], VERSION)
            for _, partitions in topics:
                for partition in partitions:
                    number, start, end = partition[0], partition[6], partition[7]
                    offsets[number] = max(offsets[number], _next_offset(memory[4:size], start, end))
    return received


def _request(topic: str, offsets: list[int], ends: list[int]) -> bytes:
    requested = [
        (number, WantedPartition(offset, -1, MIB))
        for number, (offset, end) in enumerate(zip(offsets, ends, strict=True))
        if offset < end
    ]
    body = encode_fetch_request(
        VERSION,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=50 * MIB,
        read_committed=False,
        session_id=0,
        session_epoch=_FULL_FETCH,
        topics={topic: requested},
        forgotten={},
    )
    return request_start(ApiKey.FETCH, VERSION, 0, encoded_client_id("bench"), len(body)) + body


def _receive(sock: socket.socket, memory: memoryview) -> None:
    filled, is_closed = 0, False
    while filled < len(memory) and not is_closed:
        filled, is_closed = receive_rest(sock.fileno(), memory, filled, *_TIMEOUTS_MS)
    if is_closed:
        raise ConnectionError("the broker closed the connection")


def _next_offset(response: memoryview, start: int, end: int) -> int:
    """Return the offset after the last complete batch, or 0 without one."""
    next_offset = 0
    while end - start >= _HEADER:
        base_offset, length = _BATCH.unpack_from(response, start)
        if _BATCH_LENGTH_AT + length > end - start:
            break
        next_offset = base_offset + _LAST_OFFSET_DELTA.unpack_from(response, start + _LAST_OFFSET_DELTA_AT)[0] + 1
        start += _BATCH_LENGTH_AT + length
    return next_offset

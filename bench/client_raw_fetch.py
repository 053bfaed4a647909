"""What the loopback carries: a topic fetched with one socket and one buffer, and nothing done with what comes.

A client can't be faster than that with the same broker, so this is the bound that bench.client_consume measures the
others against. Requests are those that the consumer sends with its defaults, one at a time; of the answers only the
batches' headers are looked at, to know where to fetch next.
"""

from __future__ import annotations

import mmap
import socket
from struct import Struct

from stratalog.protocol._fetch_response import parse_fetch_response
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.fetch_request import WantedPartition, encode_fetch_request
from stratalog.protocol.requests import SIZE, encoded_client_id, request_start

VERSION = 11  # the last that has topics by name, and an answer's header without tags
MIB = 1024 * 1024
LARGEST_ANSWER = 64 * MIB
_FULL_FETCH = -1  # the epoch of a fetch without a session
_BATCH = Struct(">qi")  # base offset, length behind it
_BATCH_LENGTH_AT = 12
_LAST_OFFSET_DELTA = Struct(">i")
_LAST_OFFSET_DELTA_AT = 23
_HEADER = 61


def fetch_all(host: str, port: int, topic: str, ends: list[int]) -> int:
    """Fetch the topic's partitions up to these offsets; how many bytes came."""
    offsets = [0] * len(ends)
    received = 0
    memory = memoryview(mmap.mmap(-1, LARGEST_ANSWER))
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
                for told in partitions:
                    number, start, end = told[0], told[6], told[7]
                    offsets[number] = max(offsets[number], _behind(memory[4:size], start, end))
    return received


def _request(topic: str, offsets: list[int], ends: list[int]) -> bytes:
    wanted = [
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
        topics={topic: wanted},
        forgotten={},
    )
    return request_start(ApiKey.FETCH, VERSION, 0, encoded_client_id("bench"), len(body)) + body


def _receive(sock: socket.socket, memory: memoryview) -> None:
    filled = 0
    while filled < len(memory):
        count = sock.recv_into(memory[filled:], 0, socket.MSG_WAITALL)
        if not count:
            raise ConnectionError("the broker closed the connection")
        filled += count


def _behind(answer: memoryview, start: int, end: int) -> int:
    """The offset behind the last whole batch; 0: there is none."""
    behind = 0
    while end - start >= _HEADER:
        base_offset, length = _BATCH.unpack_from(answer, start)
        if _BATCH_LENGTH_AT + length > end - start:
            break
        behind = base_offset + _LAST_OFFSET_DELTA.unpack_from(answer, start + _LAST_OFFSET_DELTA_AT)[0] + 1
        start += _BATCH_LENGTH_AT + length
    return behind

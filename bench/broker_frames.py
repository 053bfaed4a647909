"""Prepared bytes: rings of complete request frames that are sent unchanged, and the responses to expect.

All frames of a ring have the same length. They are stored one after another in one buffer, with the correlation ids 0,
1, 2 ... So a generator that has to send three requests sends one slice, and packs nothing while it measures.
"""

from __future__ import annotations

import os
import struct
import time
import uuid
from dataclasses import dataclass

from stratalog.records import Record, build_batch

TOPIC = "bench"
PRODUCE_VERSION = 9  # the first flexible version; requests look the same up to version 12
FETCH_VERSION = 13  # the first version with topic ids
CLIENT_ID = b"bench"
REQUEST_HEADER = struct.Struct(f">ihhih{len(CLIENT_ID)}sB")  # size, key, version, correlation id, client id, no tags
RECORD_OVERHEAD = 20  # approximately: the varints around a key of 8 bytes and a value

# size, correlation id and error code of a Produce response for one partition of TOPIC; the rest is skipped
PRODUCE_RESPONSE = struct.Struct(f">ii3x{len(TOPIC)}x5xh33x")
# size, correlation id, error code, partition's error code, records' length (a varint of 3 bytes: 16 KiB to 2 MiB)
FETCH_RESPONSE = struct.Struct(">ii5xh4xB16xB4xh8x8x8xB4x3s")


@dataclass(frozen=True)
class Ring:
    frames: memoryview
    frame_bytes: int
    count: int

    def slices(self, first: int, count: int) -> list[memoryview]:
        """Return the frames of `count` requests from number `first` on; after its end, the ring starts again."""
        parts = []
        while count:
            at = first % self.count
            step = min(count, self.count - at)
            parts.append(self.frames[at * self.frame_bytes : (at + step) * self.frame_bytes])
            first, count = first + step, count - step
        return parts


def batch_of(size: int, value_bytes: int) -> bytes:
    """Return a new batch of at most `size` bytes, with at least one record, and values of random bytes."""
    count = max(1, (size - 61) // (value_bytes + RECORD_OVERHEAD))
    now = time.time_ns() // 1_000_000
    return bytes(
        build_batch([Record(key=os.urandom(8), value=os.urandom(value_bytes), timestamp=now) for _ in range(count)])
    )


def records_in(batch: bytes) -> int:
    count: int = struct.unpack_from(">i", batch, 57)[0]
    return count


def produce_ring(batches: list[bytes], count: int, partitions: list[int] | None = None) -> Ring:
    """Return `count` Produce requests with acks=all; each sends the next batch to each of `partitions` ([0])."""
    bodies = [_produce_body(batch, partitions or [0]) for batch in batches]
    return _ring([_frame(0, PRODUCE_VERSION, number, bodies[number % len(bodies)]) for number in range(count)])


def fetch_ring(topic_id: uuid.UUID, offsets: list[int], max_bytes: int) -> Ring:
    """Return one Fetch request per offset, without a session and without waiting."""
    frames = []
    for number, offset in enumerate(offsets):
        # max wait, min bytes, max bytes, isolation level, session id and epoch; one topic, one partition;
        # partition, leader epoch, offset, last fetched epoch, log start offset, max bytes; no forgotten topics, no rack
        body = struct.pack(">iiiibii", -1, 0, 1, max_bytes, 0, 0, -1) + b"\x02" + topic_id.bytes + b"\x02"
        body += struct.pack(">iiqiqi", 0, -1, offset, -1, -1, max_bytes) + b"\0\0\x01\x01\0"
        frames.append(_frame(1, FETCH_VERSION, number, body))
    return _ring(frames)


def produce_response() -> bytes:
    """Return the bare peer's response: as long as a broker's response, without an error."""
    return PRODUCE_RESPONSE.pack(PRODUCE_RESPONSE.size - 4, 0, 0)


def _produce_body(batch: bytes, partitions: list[int]) -> bytes:
    name = TOPIC.encode()
    body = b"\0" + struct.pack(">hi", -1, 30_000) + b"\x02" + varint(len(name) + 1) + name + varint(len(partitions) + 1)
    for partition in partitions:
        body += struct.pack(">i", partition) + varint(len(batch) + 1) + batch + b"\0"
    return body + b"\0\0"


def _frame(key: int, version: int, correlation_id: int, body: bytes) -> bytes:
    size = REQUEST_HEADER.size - 4 + len(body)
    return REQUEST_HEADER.pack(size, key, version, correlation_id, len(CLIENT_ID), CLIENT_ID, 0) + body


def _ring(frames: list[bytes]) -> Ring:
    lengths = {len(frame) for frame in frames}
    if len(lengths) != 1:
        raise ValueError(f"frames of one ring must be of one length, not {sorted(lengths)}")
    return Ring(memoryview(b"".join(frames)), lengths.pop(), len(frames))


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def from_varint(data: bytes) -> int:
    return sum((byte & 0x7F) << 7 * index for index, byte in enumerate(data))

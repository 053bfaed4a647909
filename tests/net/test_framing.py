"""The frame reader returns the frames that were sent, in whatever pieces they arrive; no I/O."""

from __future__ import annotations

import random
import struct

import pytest

from stratalog.net.buffers import NORMAL, ReceiveBuffers
from stratalog.net.framing import FrameReader, FrameSizeError

LARGEST = 8 * NORMAL
ANY = 1 << 62


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def feed(reader: FrameReader, data: bytes) -> list[bytes]:
    """Return the frames that the reader finds while it receives `data` in as many pieces as it asks for."""
    handed_out = []
    while data:
        room = reader.room(ANY)
        count = min(len(room), len(data))
        room[:count] = data[:count]
        data = data[count:]
        reader.received(count)
        while (frame := reader.next_frame(LARGEST)) is not None:
            handed_out.append(bytes(frame))
        reader.make_room()
    return handed_out


@pytest.mark.parametrize("seed", range(20))
def test_frames_of_any_size_are_returned_complete_and_in_order(seed: int) -> None:
    choice = random.Random(seed)
    sizes = [choice.choice((8, 9, 100, 4096, NORMAL - 4, NORMAL, NORMAL + 1, 3 * NORMAL)) for _ in range(12)]
    payloads = [choice.randbytes(size) for size in sizes]
    stream = b"".join(map(framed, payloads))
    reader, frames = FrameReader(ReceiveBuffers()), []
    while stream:
        count = choice.choice((1, 3, 4, 5, 1000, NORMAL, 4 * NORMAL))
        frames += feed(reader, stream[:count])
        stream = stream[count:]
        if choice.random() < 0.3:
            reader.keep_apart()
    assert frames == payloads
    assert reader.is_empty
    assert reader.buffer is None


def test_piece_that_is_kept_apart_uses_no_buffer_and_can_be_completed() -> None:
    reader = FrameReader(ReceiveBuffers())
    assert feed(reader, framed(b"x" * 100)[:50]) == []
    assert (reader.buffer, reader.held, reader.is_empty) == (None, 0, False)
    assert feed(reader, framed(b"x" * 100)[50:]) == [b"x" * 100]


def test_room_for_a_large_frame_ends_with_the_frame() -> None:
    reader = FrameReader(ReceiveBuffers())
    size = 3 * NORMAL
    assert feed(reader, framed(b"x" * size)[:1000]) == []
    assert reader.missing == size + 4 - 1000
    reader.next_frame(LARGEST)
    reader.make_room()
    assert len(reader.room(ANY)) == reader.missing


@pytest.mark.parametrize("size", [-1, 0, 7, LARGEST + 1])
def test_size_outside_the_limits_is_an_error_with_the_first_bytes(size: int) -> None:
    reader = FrameReader(ReceiveBuffers())
    with pytest.raises(FrameSizeError) as error:
        feed(reader, struct.pack(">i", size) + b"first")
    assert (error.value.size, bytes(error.value.first)) == (size, b"first")


def test_frame_that_is_put_back_is_returned_again() -> None:
    reader = FrameReader(ReceiveBuffers())
    data = framed(b"a" * 10) + framed(b"b" * 10) + framed(b"c" * 10)[:6]
    room = reader.room(ANY)
    room[: len(data)] = data
    reader.received(len(data))
    seen = []
    for _ in range(2):
        frame = reader.next_frame(LARGEST)
        assert frame is not None
        reader.put_back(frame)
        again = reader.next_frame(LARGEST)
        assert again == frame
        seen.append((bytes(frame[:1]), reader.has_complete_frame))
    assert seen == [(b"a", True), (b"b", False)]
    assert reader.next_frame(LARGEST) is None

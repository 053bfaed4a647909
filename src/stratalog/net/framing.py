"""Splits what a client sends into frames: four bytes of size each, and that many bytes. Does no I/O.

The caller receives into `room()`, reports the count with `received()`, and gets frames as views of the buffer. A frame
is valid until the reader is used again. The reader holds a buffer only while there is something in it. It copies a
small piece of a frame, so that other connections can use the buffer.
"""

from __future__ import annotations

from struct import Struct

from stratalog.net.buffers import LARGEST_KEPT, NORMAL, ReceiveBuffers

SMALLEST_FRAME = 8  # API key, version, correlation id
_SIZE = Struct(">i")
_PREFIX = _SIZE.size
_SMALL = 4096  # a piece of a frame up to this size is copied


class FrameSizeError(Exception):
    """A frame announces a size outside the limits. `first` has the bytes of it that have arrived."""

    def __init__(self, size: int, first: memoryview) -> None:
        super().__init__(size)
        self.size = size
        self.first = first


class FrameReader:
    __slots__ = ("_buffers", "_expected", "_filled", "_kept", "_start", "buffer")

    def __init__(self, buffers: ReceiveBuffers) -> None:
        self._buffers = buffers
        self.buffer: memoryview | None = None  # None while nothing is in it
        self._start = 0  # of the bytes that were not returned yet
        self._filled = 0
        self._kept = b""  # a copied piece of a frame
        self._expected = NORMAL  # the size of the last frame: the next is likely as large

    @property
    def is_empty(self) -> bool:
        """True if all received bytes were returned as frames."""
        return self._start == self._filled and not self._kept

    @property
    def can_free_buffer(self) -> bool:
        """True if keep_apart() would free a buffer of the normal size."""
        return self.buffer is not None and len(self.buffer) == NORMAL

    @property
    def held(self) -> int:
        """The bytes of memory in use. A large buffer takes up memory as it is filled, unless it was used before."""
        buffer = self.buffer
        if buffer is not None:
            return len(buffer) if len(buffer) <= LARGEST_KEPT else self._filled
        return len(self._kept) if len(self._kept) > _SMALL else 0

    @property
    def has_little(self) -> bool:
        """True if so little is there that keep_apart() can copy it."""
        return self._filled <= _SMALL

    # Receiving

    def room(self, limit: int) -> memoryview:
        """Return where to receive the next bytes, at most `limit` of them. For a large frame it is only the rest of the
        frame, so that the next frame begins at the start of a buffer."""
        buffer = self.buffer or self._take_buffer()
        end = len(buffer)
        if self._filled - self._start >= _PREFIX:
            end_of_frame: int = self._start + _PREFIX + _SIZE.unpack_from(buffer, self._start)[0]
            if end_of_frame - self._start > NORMAL:
                end = end_of_frame
        elif self._expected > NORMAL and not self._filled:
            end = self._expected
        return buffer[self._filled : min(end, self._filled + limit)]

    def received(self, count: int) -> None:
        self._filled += count

    @property
    def missing(self) -> int:
        """The number of bytes that the next frame lacks, 0 if its size is not known yet."""
        buffer = self.buffer
        if buffer is None or self._filled - self._start < _PREFIX:
            return 0
        size: int = _SIZE.unpack_from(buffer, self._start)[0]
        return self._start + _PREFIX + size - self._filled

    def _take_buffer(self) -> memoryview:
        """Take a buffer, and copy the piece that was kept apart into it."""
        buffer = self._buffers.take(max(self._expected, len(self._kept) + NORMAL // 2))
        self._start, self._filled = 0, len(self._kept)
        buffer[: self._filled] = self._kept
        self._kept = b""
        self.buffer = buffer
        return buffer

    # Frames

    def next_frame(self, largest: int) -> memoryview | None:
        """Return the next frame if it is complete. Raises FrameSizeError."""
        buffer = self.buffer
        if buffer is None:
            if not self._kept:
                return None
            buffer = self._take_buffer()
        start = self._start + _PREFIX
        left = self._filled - start
        if left < 0:
            return None
        size = _SIZE.unpack_from(buffer, self._start)[0]
        if not SMALLEST_FRAME <= size <= largest:
            raise FrameSizeError(size, buffer[start : self._filled])
        if left < size:
            return None
        self._expected = size + _PREFIX
        self._start = start + size
        return buffer[start : self._start]

    def put_back(self, frame: memoryview) -> None:
        """Return the last frame again in the next call."""
        self._start -= len(frame) + _PREFIX

    @property
    def has_complete_frame(self) -> bool:
        buffer = self.buffer
        if buffer is None:
            return False
        left = self._filled - self._start - _PREFIX
        return left > 0 and bool(left >= _SIZE.unpack_from(buffer, self._start)[0])

    # Memory

    def make_room(self) -> bool:
        """Move the rest to where its frame has room, or keep it apart if it is small. Return whether it is a piece of a
        large frame, of which more may have arrived."""
        buffer = self.buffer
        if buffer is None:
            return False
        left = self._filled - self._start
        if left == 0:
            self._release_buffer()
            return False
        size = NORMAL if left < _PREFIX else _PREFIX + _SIZE.unpack_from(buffer, self._start)[0]
        if left <= _SMALL and size <= NORMAL:
            self.keep_apart()
            return False
        if size > len(buffer):
            larger = self._buffers.take(size)
            larger[:left] = buffer[self._start : self._filled]
            self._buffers.give_back(buffer)
            self.buffer = larger
        elif self._start:
            buffer[:left] = bytes(buffer[self._start : self._filled])  # bytes(): the two may overlap
        self._start, self._filled = 0, left
        return size > NORMAL

    def keep_apart(self) -> None:
        """Copy the bytes that are there, and free the buffer for other connections."""
        if self.buffer is not None:
            self._kept = bytes(self.buffer[self._start : self._filled])
            self._release_buffer()

    def close(self) -> None:
        self._release_buffer()
        self._kept = b""

    def _release_buffer(self) -> None:
        if self.buffer is not None:
            self._buffers.give_back(self.buffer)
            self.buffer = None
        self._start = self._filled = 0

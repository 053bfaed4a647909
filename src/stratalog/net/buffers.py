"""Memory to receive into: reused by the broker's connections, or kept by the client's callers.

Large buffers are anonymous mappings, which take up memory page by page as they are written to. So a frame costs what
has arrived of it, not the size that its first four bytes announce. Buffers are used again, because fresh memory costs a
page fault per page, which takes about as long as receiving into it.
"""

from __future__ import annotations

import mmap
import sys

NORMAL = 256 * 1024
LARGEST_KEPT = 2 * 1024 * 1024
_KEPT = 4

_MOST_KEPT = 32 * 1024 * 1024  # bytes, for responses of a usual size
_MOST_PREFETCHED = 64 * 1024 * 1024  # what a consumer with default settings may have in use, besides the next response
_UNUSED = 3  # references: the list, the loop's variable, the argument of getrefcount


class ReceiveBuffers:
    """Buffers of the broker's connections. A connection holds one only while it has part of a frame in it."""

    def __init__(self) -> None:
        self._normal: list[memoryview] = []
        self._large: list[memoryview] = []

    def take(self, capacity: int) -> memoryview:
        """Return a buffer of at least `capacity` bytes."""
        if capacity <= NORMAL:
            return self._normal.pop() if self._normal else memoryview(bytearray(NORMAL))
        for index, buffer in enumerate(self._large):
            if len(buffer) >= capacity:
                return self._large.pop(index)
        return memoryview(mmap.mmap(-1, _rounded(capacity)))

    def give_back(self, buffer: memoryview) -> None:
        """Take back a buffer that no view refers to any more."""
        kept = self._normal if len(buffer) == NORMAL else self._large
        if len(kept) < _KEPT and len(buffer) <= LARGEST_KEPT:
            kept.append(buffer)


class ResponseMemory:
    """Memory for large responses. It is reused once no view of the response exists any more."""

    def __init__(self) -> None:
        self._kept: list[mmap.mmap] = []
        self._kept_size = 0

    def take(self, size: int) -> memoryview:
        """Return a view of exactly `size` bytes that no other view refers to."""
        for memory in self._kept:
            # A view refers to the mapping, however often it was sliced or passed on.
            if size <= len(memory) <= 4 * size and sys.getrefcount(memory) == _UNUSED:
                return memoryview(memory)[:size]
        memory = mmap.mmap(-1, _rounded(size))
        self._keep(memory)
        return memoryview(memory)[:size]

    def _keep(self, memory: mmap.mmap) -> None:
        size = len(memory)
        limit = max(_MOST_KEPT, min(5 * size, _MOST_PREFETCHED + size))
        while self._kept_size + size > limit:
            self._kept_size -= len(self._kept.pop(0))  # it is freed with its last view
        self._kept.append(memory)
        self._kept_size += size


def _rounded(capacity: int) -> int:
    """Round up, so that frames of slightly different sizes can share a buffer."""
    return -(-capacity // NORMAL) * NORMAL

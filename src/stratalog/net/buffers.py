"""Memory for what comes in. A connection holds some only while a frame of its is incomplete.

A frame's memory costs what has arrived of it, not what its first four bytes announce: large buffers are anonymous
mappings, which take up memory page by page as it is written to.
"""

from __future__ import annotations

import mmap

NORMAL = 256 * 1024
LARGEST_KEPT = 2 * 1024 * 1024
_KEPT = 4


class ReceiveBuffers:
    """Buffers that are used again: fresh memory costs a page fault for each of its pages, about as much as recv."""

    def __init__(self) -> None:
        self._normal: list[memoryview] = []
        self._large: list[memoryview] = []

    def take(self, capacity: int) -> memoryview:
        """At least so many bytes."""
        if capacity <= NORMAL:
            return self._normal.pop() if self._normal else memoryview(bytearray(NORMAL))
        for index, buffer in enumerate(self._large):
            if len(buffer) >= capacity:
                return self._large.pop(index)
        return memoryview(mmap.mmap(-1, _rounded(capacity)))

    def give_back(self, buffer: memoryview) -> None:
        """Nobody holds a view of it any more."""
        kept = self._normal if len(buffer) == NORMAL else self._large
        if len(kept) < _KEPT and len(buffer) <= LARGEST_KEPT:
            kept.append(buffer)


def _rounded(capacity: int) -> int:
    """So that frames of slightly different sizes find the same buffer."""
    return -(-capacity // NORMAL) * NORMAL

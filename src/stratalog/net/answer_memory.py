"""Memory for large answers, which whoever asked for them may keep for as long as a view of it is held.

A mapping takes up memory page by page as it is written to, so an answer costs what has arrived of it, not what its
first four bytes announce. Mappings are used again once no view of them is left: fresh memory costs a page fault for
each of its pages, which takes longer than receiving into it.
"""

from __future__ import annotations

import mmap
import sys

_GRAIN = 256 * 1024
_MOST_KEPT = 32 * 1024 * 1024  # bytes, of answers of a usual size
_MOST_FETCHED_AHEAD = 64 * 1024 * 1024  # by a consumer with its defaults: so much may be in use, beside what comes in
_UNUSED = 3  # references: the list, the loop's variable, the question


class AnswerMemory:
    def __init__(self) -> None:
        self._kept: list[mmap.mmap] = []
        self._kept_size = 0

    def take(self, size: int) -> memoryview:
        """A view of exactly so many bytes, of which nobody else has one."""
        for memory in self._kept:
            # A view holds a reference to what it views, however often it was sliced or handed on.
            if size <= len(memory) <= 4 * size and sys.getrefcount(memory) == _UNUSED:
                return memoryview(memory)[:size]
        memory = mmap.mmap(-1, -(-size // _GRAIN) * _GRAIN)
        self._keep(memory)
        return memoryview(memory)[:size]

    def _keep(self, memory: mmap.mmap) -> None:
        size = len(memory)
        most = max(_MOST_KEPT, min(5 * size, _MOST_FETCHED_AHEAD + size))
        while self._kept_size + size > most:
            self._kept_size -= len(self._kept.pop(0))  # with its last view it is gone
        self._kept.append(memory)
        self._kept_size += size

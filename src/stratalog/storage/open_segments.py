"""Limits how many segments keep their file and mappings open, so that the process does not run out of descriptors.

The segment that was opened first is released first. A reader that still uses its file keeps it open by holding a
reference (file_slice.py).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol


class Releasable(Protocol):
    def release(self) -> None: ...


class OpenSegments:
    """The segments that are open. Any thread may call any method. There is no lock, which an interrupt could leave
    acquired: each step is one call into C."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: OrderedDict[Releasable, None] = OrderedDict()

    def opened(self, segment: Releasable) -> None:
        """Record that a segment was opened, and release the oldest ones if there are too many."""
        self._open[segment] = None
        for _ in range(len(self._open) - self._limit):
            try:
                oldest, _ = self._open.popitem(last=False)
            except KeyError:  # other threads have removed the rest
                return
            oldest.release()

    def still_open(self, segment: Releasable) -> None:
        """Record that a segment could not be released. It is tried again later."""
        self._open[segment] = None

    def forget(self, segment: Releasable) -> None:
        self._open.pop(segment, None)

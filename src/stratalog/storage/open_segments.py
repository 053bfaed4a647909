"""How many segments keep their file and mappings open: a bound, so that descriptors do not run out.

The oldest opened goes first. Whoever still reads from one keeps it open by holding on to it (file_slice.py).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol


class Releasable(Protocol):
    def release(self) -> None: ...


class OpenSegments:
    """Any thread. There is no lock, which an interrupt could leave taken: each step is one call into C."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: OrderedDict[Releasable, None] = OrderedDict()

    def opened(self, segment: Releasable) -> None:
        self._open[segment] = None
        for _ in range(len(self._open) - self._limit):
            try:
                oldest, _ = self._open.popitem(last=False)
            except KeyError:  # other threads were faster
                return
            oldest.release()

    def still_open(self, segment: Releasable) -> None:
        """It could not be released: its turn comes again."""
        self._open[segment] = None

    def forget(self, segment: Releasable) -> None:
        self._open.pop(segment, None)

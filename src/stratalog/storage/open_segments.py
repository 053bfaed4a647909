"""How many sealed segments keep their file and mappings open: a bound, so that descriptors do not run out.

The oldest opened goes first. Whoever still reads from one keeps it open by holding on to it (file_slice.py).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Protocol


class Releasable(Protocol):
    def release(self) -> None: ...


class OpenSegments:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._open: OrderedDict[Releasable, None] = OrderedDict()

    def opened(self, segment: Releasable) -> None:
        with self._lock:
            self._open[segment] = None
            oldest = self._open.popitem(last=False)[0] if len(self._open) > self._limit else None
        if oldest is not None:
            oldest.release()

    def forget(self, segment: Releasable) -> None:
        with self._lock:
            self._open.pop(segment, None)

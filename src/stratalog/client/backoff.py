"""Back-off: the wait before a retry. It doubles with each failure up to a limit, and varies at random by a fifth, so
that clients which lost the same broker don't all retry at the same instant (KIP-580)."""

from __future__ import annotations

import random

_MOST_DOUBLINGS = 30
_JITTER = 0.2


class Backoff:
    def __init__(self, first_ms: int, most_ms: int) -> None:
        self._first = first_ms / 1000
        self._most = max(first_ms, most_ms) / 1000

    def seconds(self, failures: int) -> float:
        """Return the wait after this many failures in a row; 0 if there was no failure."""
        if failures <= 0:
            return 0.0
        wait: float = min(self._first * 2 ** min(failures - 1, _MOST_DOUBLINGS), self._most)
        return wait * random.uniform(1 - _JITTER, 1 + _JITTER)

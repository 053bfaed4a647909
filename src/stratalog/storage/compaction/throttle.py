"""Limits the bytes per second that compaction reads and writes, by waiting."""

from __future__ import annotations

import threading

from stratalog.clock import Clock

_NO_LIMIT = 2.0**62


class Throttle:
    """A limit that all threads of a cleaner share. Setting `stop` ends every wait."""

    def __init__(self, bytes_per_second: float, clock: Clock, stop: threading.Event) -> None:
        self.rate = bytes_per_second
        self._clock = clock
        self._stop = stop
        self._lock = threading.Lock()
        self._free_at = clock.monotonic()

    def account(self, size: int) -> None:
        """Count bytes that were read or written, and wait until the rate is within the limit again."""
        rate = self.rate
        if rate >= _NO_LIMIT:
            return
        with self._lock:
            now = self._clock.monotonic()
            self._free_at = max(self._free_at, now) + size / rate
            wait = self._free_at - now
        if wait > 0:
            self._stop.wait(wait)

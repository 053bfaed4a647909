"""The clock of a broker in a test. It follows the system's clock, and can be moved ahead and stopped.

Only wall-clock time changes, which the age of records, files and committed offsets depends on. Long polls and the
sessions of group members use monotonic time: a test that moves the clock by a week does not lose its consumers.
"""

from __future__ import annotations

import threading
import time


class MovableClock:
    monotonic = staticmethod(time.monotonic)

    def __init__(self, ahead_ms: int = 0, stopped_at_ms: int | None = None) -> None:
        self._lock = threading.Lock()
        self._ahead_ms = ahead_ms
        self._stopped_at_ms = stopped_at_ms

    def now_ms(self) -> int:
        with self._lock:
            return self._now_ms()

    def _now_ms(self) -> int:
        if self._stopped_at_ms is not None:
            return self._stopped_at_ms
        return time.time_ns() // 1_000_000 + self._ahead_ms

    def advance(self, milliseconds: int) -> None:
        with self._lock:
            self._ahead_ms += milliseconds
            if self._stopped_at_ms is not None:
                self._stopped_at_ms += milliseconds

    def stop(self) -> None:
        with self._lock:
            self._stopped_at_ms = self._now_ms()

    def go(self) -> None:
        """Continue at the time where the clock was stopped."""
        with self._lock:
            if self._stopped_at_ms is not None:
                self._ahead_ms = self._stopped_at_ms - time.time_ns() // 1_000_000
                self._stopped_at_ms = None

    def reset(self) -> None:
        """Return to the system's time."""
        with self._lock:
            self._ahead_ms, self._stopped_at_ms = 0, None

    def state(self) -> tuple[int, int | None]:
        """Return the arguments for a clock that continues where this one is."""
        with self._lock:
            return self._ahead_ms, self._stopped_at_ms

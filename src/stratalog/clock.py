"""Where time comes from. Nothing below the command line asks the system for the time: it asks a Clock."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for records and files, monotonic time for waits."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary point; never goes back."""


class SystemClock:
    monotonic = staticmethod(time.monotonic)  # itself: it is asked several times a request

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class ManualClock:
    """A clock that moves only when told to: retention and rolling by time can be tested without waiting."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._lock = threading.Lock()
        self._now_ms = now_ms
        self._monotonic = 0.0

    def now_ms(self) -> int:
        with self._lock:
            return self._now_ms

    def monotonic(self) -> float:
        with self._lock:
            return self._monotonic

    def advance(self, milliseconds: int) -> None:
        with self._lock:
            self._now_ms += milliseconds
            self._monotonic += milliseconds / 1000

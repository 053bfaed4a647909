"""The source of time. Only this module and the command line read the system's time; everything else reads a Clock."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for records and files, monotonic time for waits."""

    def now_ms(self) -> int:
        """Return the milliseconds since the Unix epoch."""

    def monotonic(self) -> float:
        """Return seconds since an arbitrary point. They never go back."""


class SystemClock:
    monotonic = staticmethod(time.monotonic)  # no method around it: each request calls it several times

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class BootClock(SystemClock):
    """A clock for leases. Its monotonic time also goes on while the machine is suspended (CLOCK_BOOTTIME). The system's
    monotonic clock stops then, so after a suspension it would show a lease as valid that others have seen end."""

    @staticmethod
    def monotonic() -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)


class ManualClock:
    """A clock that moves only by advance(), so that tests of retention and rolling by time need not wait."""

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

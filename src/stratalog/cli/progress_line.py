"""How many records have gone by, and how fast: one line on stderr that is written over, and only for people.

In a pipe, and where the records themselves go to the same terminal, nothing is shown.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

from stratalog.cli import wording

_INTERVAL = 0.2
_CLEAR = "\r\x1b[2K"
_standing: list[ProgressLine] = []  # at most one; what else is written must clear it first


def clearing() -> str:
    """What clears the line that stands on the terminal, if any."""
    return _CLEAR if _standing else ""


class ProgressLine:
    def __init__(self, *, also_if: bool = True) -> None:
        self.records = 0
        self.bytes = 0
        self.total: int | None = None  # of records, where it is known
        self._is_shown = also_if and sys.stderr.isatty()
        self._started = time.monotonic()
        self._next = self._started + _INTERVAL

    def add(self, records: int, size: int) -> None:
        self.records += records
        self.bytes += size
        if self._is_shown and time.monotonic() >= self._next:
            self._next = time.monotonic() + _INTERVAL
            _standing[:] = [self]
            sys.stderr.write(f"{_CLEAR}{self._line()}")
            sys.stderr.flush()

    def _line(self) -> str:
        seconds = max(time.monotonic() - self._started, 1e-9)
        share = f" of {self.total:,} ({self.records / self.total:.0%})" if self.total else ""
        rate = f"{self.records / seconds:,.0f} records/s, {wording.size(int(self.bytes / seconds))}/s"
        return f"{self.records:,}{share} records, {wording.size(self.bytes)}, {rate}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _standing.clear()
        if self._is_shown:
            sys.stderr.write(f"{_CLEAR}{self._line()}\n")

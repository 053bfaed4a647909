"""How many records have gone by, how fast, and how long it still takes: on stderr.

On a terminal it is one line that is written over, with a bar where the total is known; where the records themselves go
to the same terminal, nothing is shown. Elsewhere it is a plain line every few seconds.
"""

from __future__ import annotations

import os
import shutil
import sys
from types import TracebackType
from typing import Self, TextIO

from stratalog.cli import wording
from stratalog.clock import Clock, SystemClock

_REDRAW_SECONDS = 0.2
_LINE_SECONDS = 5.0
_RAREST_LINE_SECONDS = 60.0  # where there is no end in sight, nobody wants a line every few seconds
_BAR_WIDTHS = (20, 10)
_CLEAR = "\r\x1b[2K"
_standing: list[ProgressLine] = []  # at most one; what else is written must clear it first


def clearing() -> str:
    """What clears the line that stands on the terminal, if any."""
    return _CLEAR if _standing else ""


def is_stderr_stdout() -> bool:
    """Whether both go to the same file or pipe, where lines about records would stand between records."""
    try:
        return os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno())
    except (OSError, ValueError):
        return False  # one without a file behind it


class ProgressLine:
    """`total` and `total_bytes`: what there is to do, where it is known. `also_if`: whether a terminal is free for it;
    `in_pipe`: whether lines are wanted where there is none."""

    def __init__(
        self,
        *,
        also_if: bool = True,
        in_pipe: bool = True,
        total_bytes: int | None = None,
        stream: TextIO | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.records = 0
        self.bytes = 0
        self.total: int | None = None
        self.total_bytes = total_bytes
        self._stream = stream or sys.stderr
        self._clock = clock or SystemClock()
        is_terminal = self._stream.isatty()
        self._is_drawn = is_terminal and also_if
        self._has_lines = not is_terminal and in_pipe
        self._lines = 0
        self._started = self._clock.monotonic()
        self._next = self._started + (_REDRAW_SECONDS if self._is_drawn else _LINE_SECONDS)

    def add(self, records: int, size: int) -> None:
        self.records += records
        self.bytes += size
        if not (self._is_drawn or self._has_lines) or self._clock.monotonic() < self._next:
            return
        if self._is_drawn:
            self._next = self._clock.monotonic() + _REDRAW_SECONDS
            _standing[:] = [self]
            self._write(f"{_CLEAR}{self._drawn()}")
        else:
            pause = _LINE_SECONDS if self._share() is not None else _LINE_SECONDS * 2.0 ** min(self._lines, 10)
            self._next = self._clock.monotonic() + min(pause, _RAREST_LINE_SECONDS)
            self._lines += 1
            self._write(f"stratalog: {', '.join([*self._counted(), *self._rates(), *self._left()])}\n")

    def _share(self) -> float | None:
        done, total = (self.records, self.total) if self.total else (self.bytes, self.total_bytes)
        return min(done / total, 1.0) if total else None

    def _counted(self) -> list[str]:
        share = self._share()
        percent = "" if share is None else f" ({share:.0%})"
        if self.total:
            return [f"{self.records:,} of {self.total:,}{percent} records", wording.size(self.bytes)]
        of_bytes = f" of {wording.size(self.total_bytes)}{percent}" if self.total_bytes else ""
        return [f"{self.records:,} records", f"{wording.size(self.bytes)}{of_bytes}"]

    def _rates(self) -> list[str]:
        seconds = max(self._clock.monotonic() - self._started, 1e-9)
        return [f"{self.records / seconds:,.0f} records/s", f"{wording.size(int(self.bytes / seconds))}/s"]

    def _left(self) -> list[str]:
        share, seconds = self._share(), self._clock.monotonic() - self._started
        return [f"about {seconds / share - seconds:,.0f} s left"] if share and share < 1 else []

    def _drawn(self) -> str:
        """The most that fits the terminal: a line that is longer than it could not be written over."""
        share = self._share()
        bars = [""] if share is None else [f"{_bar(share, width)} " for width in _BAR_WIDTHS]
        counted, rates, left = self._counted(), self._rates(), self._left()
        parts = ([*counted, *rates, *left], [*counted, rates[1], *left], [*counted, *left], counted)
        lines = [*(f"{bar}{', '.join(some)}" for some in parts for bar in bars), ", ".join(counted)]
        width = shutil.get_terminal_size().columns
        return next((line for line in lines if len(line) < width), lines[-1][: width - 1])

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _standing.clear()
        line = ", ".join([*self._counted(), *self._rates()])
        if self._is_drawn:
            self._write(f"{_CLEAR}{line}\n")
        elif self._lines:
            self._write(f"stratalog: {line}\n")


def _bar(share: float, width: int) -> str:
    filled = int(width * share)
    return "━" * filled + "╌" * (width - filled)

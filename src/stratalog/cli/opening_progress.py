"""How far a broker's start has come, while it opens its partitions: a bar on a terminal, elsewhere a line in the log
now and then. A start that is over in a moment shows neither."""

from __future__ import annotations

import logging
import sys
from typing import TextIO

from stratalog.clock import Clock, SystemClock

logger = logging.getLogger(__name__)

_QUIET_SECONDS = 0.5
_REDRAW_SECONDS = 0.1
_LINE_SECONDS = 5.0
_WIDTH = 30
_CLEAR = "\r\x1b[2K"


class OpeningProgress:
    """Called with (done, total) after each partition."""

    def __init__(self, stream: TextIO | None = None, clock: Clock | None = None) -> None:
        self._stream = stream or sys.stderr
        self._clock = clock or SystemClock()
        self._is_terminal = self._stream.isatty()
        self._started = self._clock.monotonic()
        self._next = self._started + (_QUIET_SECONDS if self._is_terminal else _LINE_SECONDS)
        self._was_shown = False

    def __call__(self, done: int, total: int) -> None:
        now = self._clock.monotonic()
        if done == total and self._was_shown:
            self._write(_CLEAR)  # the line that says "ready" follows
        elif now >= self._next and done < total:
            seconds = now - self._started
            left = f"about {seconds / done * (total - done):.0f} s left"
            if self._is_terminal:
                self._next = now + _REDRAW_SECONDS
                self._was_shown = True
                filled = _WIDTH * done // total
                self._write(
                    f"{_CLEAR}opening partitions {'━' * filled}{'╌' * (_WIDTH - filled)} {done:,} of {total:,}, {left}"
                )
            else:
                self._next = now + _LINE_SECONDS
                logger.info("opened %d of %d partitions in %.0f s, %s", done, total, seconds, left)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()

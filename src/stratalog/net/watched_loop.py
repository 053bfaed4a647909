"""An event loop that tells whether it does nothing but wait for events: then nothing that only its thread changes is
half changed, and another thread that holds the GIL may do something in its stead (_pipeline.pyx)."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable

Events = list[tuple[selectors.SelectorKey, int]]


class _WatchedSelector(selectors.DefaultSelector):
    def __init__(self, tell: Callable[[bool], None]) -> None:
        super().__init__()
        self._tell = tell

    def select(self, timeout: float | None = None) -> Events:
        self._tell(True)
        try:
            return super().select(timeout)
        finally:
            self._tell(False)


def watched_loop(tell: Callable[[bool], None]) -> asyncio.AbstractEventLoop:
    """`tell` is called in the loop's thread before and after each wait, and must not raise."""
    return asyncio.SelectorEventLoop(_WatchedSelector(tell))

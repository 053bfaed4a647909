"""An event loop that reports when it waits for events and does nothing else. During that time the state that only its
thread changes is consistent, so another thread that holds the GIL may act instead of it (_pipeline.pyx)."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable

Events = list[tuple[selectors.SelectorKey, int]]


class _WatchedSelector(selectors.DefaultSelector):
    def __init__(self, report: Callable[[bool], None]) -> None:
        super().__init__()
        self._report = report

    def select(self, timeout: float | None = None) -> Events:
        self._report(True)
        try:
            return super().select(timeout)
        finally:
            self._report(False)


def watched_loop(report: Callable[[bool], None]) -> asyncio.AbstractEventLoop:
    """Return a loop that calls `report` in its thread: with True before each wait, with False after it. `report` must
    not raise."""
    return asyncio.SelectorEventLoop(_WatchedSelector(report))

"""Long polls: a fetch that found too few bytes waits until enough were appended or its time is over.

A waiting fetch costs nothing but a timer: each append to one of its partitions reports its size.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from stratalog.broker.partition import Partition


class WaitingFetch:
    """`done` when `missing` bytes were appended, when `seconds` are over, or when finish() is called. Followers wait
    for the log to grow, consumers for what they may read of it."""

    __slots__ = ("_missing", "_registered_in", "_timer", "done")

    def __init__(
        self, partitions: Iterable[Partition], missing: int, seconds: float, *, is_follower: bool = False
    ) -> None:
        loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = loop.create_future()
        self._missing = missing
        self._registered_in = [partition.waiting_fetches(of_followers=is_follower) for partition in partitions]
        self._timer = loop.call_later(seconds, self.finish)
        for fetches in self._registered_in:
            fetches.add(self)
        self.done.add_done_callback(self._leave)

    def grew(self, size: int) -> None:
        self._missing -= size
        if self._missing <= 0:
            self.finish()

    def finish(self) -> None:
        if not self.done.done():
            self.done.set_result(None)
            self._leave(self.done)

    def _leave(self, _: asyncio.Future[None]) -> None:
        """Leave the partitions; also called when the client closed its connection, which cancels the future."""
        self._timer.cancel()
        for fetches in self._registered_in:
            fetches.discard(self)
        self._registered_in = []

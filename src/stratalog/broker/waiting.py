"""Long polls: a fetch that found too little waits until enough was appended, or its time is over.

While it waits it costs nothing but a timer: appends to its partitions tell it how many bytes came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from stratalog.broker.partition import Partition


class WaitingFetch:
    """Done when `missing` bytes came, at the deadline, or when finish() is called, whichever is first."""

    __slots__ = ("_missing", "_partitions", "_timer", "done")

    def __init__(self, partitions: Iterable[Partition], missing: int, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = loop.create_future()
        self._missing = missing
        self._partitions = list(partitions)
        self._timer = loop.call_later(seconds, self.finish)
        for partition in self._partitions:
            partition.waiting.add(self)
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
        """Also where the client went away, which cancels the future."""
        self._timer.cancel()
        for partition in self._partitions:
            partition.waiting.discard(self)
        self._partitions = []

"""Requests that go on after their client went away: a producer with acks=0 sends and hangs up, and its records count.

The requests of clients that are gone are bounded in number and bytes, or a client that connects, sends and hangs up
again and again could fill the memory. Past the bound such a request is dropped: it was never acknowledged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine

from stratalog.net.response_queue import Response

logger = logging.getLogger(__name__)

MOST_ABANDONED_BYTES = 64 * 1024 * 1024
MOST_ABANDONED = 256


class DetachedRequests:
    def __init__(self, most_abandoned_bytes: int = MOST_ABANDONED_BYTES) -> None:
        self._tasks: set[asyncio.Task[Response]] = set()
        self._most_abandoned_bytes = most_abandoned_bytes
        self._abandoned_bytes = 0
        self._abandoned = 0

    def start(self, work: Coroutine[None, None, Response], size: int) -> asyncio.Future[Response]:
        """The response of a request of `size` bytes. Cancelling it does not stop the work, as long as there is room."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        response = asyncio.shield(task)
        response.add_done_callback(lambda _: self._abandon(task, size))
        return response

    def _abandon(self, task: asyncio.Task[Response], size: int) -> None:
        if task.done():
            return
        if self._abandoned_bytes + size > self._most_abandoned_bytes or self._abandoned == MOST_ABANDONED:
            logger.warning("a request of %d bytes is dropped: its client hung up, and too many like it wait", size)
            task.cancel()
            return
        self._abandoned_bytes += size
        self._abandoned += 1
        task.add_done_callback(lambda done: self._ended(done, size))

    def _ended(self, task: asyncio.Task[Response], size: int) -> None:
        self._abandoned_bytes -= size
        self._abandoned -= 1
        if not task.cancelled():
            task.exception()  # there is nobody to tell; or it would be complained about

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

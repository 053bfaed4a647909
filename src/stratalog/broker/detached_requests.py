"""Requests that the broker completes after their client has disconnected. A producer with acks=0 may send records and
disconnect at once, and those records count.

The number and the bytes of such requests are limited, because a client that connects, sends and disconnects in a loop
could fill the memory. A request over the limit is dropped: it was never acknowledged.
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
        """Start serving a request of `size` bytes, and return its response. Cancelling the response does not stop the
        work, unless too many requests without a client are running."""
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
            logger.warning(
                "a request of %d bytes is dropped: its client disconnected, and %d such requests wait",
                size,
                self._abandoned,
            )
            task.cancel()
            return
        self._abandoned_bytes += size
        self._abandoned += 1
        task.add_done_callback(lambda done: self._ended(done, size))

    def _ended(self, task: asyncio.Task[Response], size: int) -> None:
        self._abandoned_bytes -= size
        self._abandoned -= 1
        if not task.cancelled():
            task.exception()  # marks it as retrieved, or asyncio would log it

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

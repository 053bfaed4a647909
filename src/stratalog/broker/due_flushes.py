"""Flushes of the state topics that `flush.messages` requires before a response is sent.

Coordinators append on the event loop, which must not wait for a disk. So a due flush runs in a thread, and every
response that is ready in the meantime waits until all state that was appended before it is durable. Without
`flush.messages`, which is the default, nothing is ever due.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from stratalog.errors import LogClosedError, StratalogError
from stratalog.storage.log import Log

logger = logging.getLogger(__name__)

WaitForDisk = Callable[[Callable[[], None]], Awaitable[None]]


class DueFlushes:
    def __init__(self, wait_for_disk: WaitForDisk) -> None:
        self._wait_for_disk = wait_for_disk
        self._due: set[Log] = set()
        self._failed: set[Log] = set()
        self._last_round: asyncio.Future[StratalogError | None] | None = None

    def add(self, log: Log) -> None:
        """Flush the log before any response is sent that is not ready yet."""
        if not self._due:
            self._begin_round()
        self._due.add(log)

    def pending(self) -> Awaitable[StratalogError | None] | None:
        """Return what a response that is ready now has to wait for, None if it may be sent. The awaited result is the
        error of a flush that failed. A flush that failed before is tried again."""
        if self._last_round is None and self._failed:
            self._begin_round()
        return None if self._last_round is None else asyncio.shield(self._last_round)

    def _begin_round(self) -> None:
        self._last_round = asyncio.ensure_future(self._flush_after(self._last_round))

    async def _flush_after(self, earlier: asyncio.Future[StratalogError | None] | None) -> StratalogError | None:
        if earlier is not None:
            await earlier
        logs, self._due, self._failed = self._due | self._failed, set(), set()
        failure = None
        for log in logs:
            try:
                await self._wait_for_disk(log.flush)
            except LogClosedError:
                pass  # its topic is deleted
            except StratalogError as error:
                logger.error("%s: can't be flushed, as flush.messages requires: %s", log.path, error)
                self._failed.add(log)
                failure = error
        if self._last_round is asyncio.current_task():
            self._last_round = None
        return failure

"""Turns for requests whose responses are many times larger than the requests: one at a time, while there is room.

A response is counted as held memory (net.held_memory) once it is complete. So the broker begins the next response only
after it has handed the previous one to its connection, and only while the unread responses are below the limit. While a
request waits for room, the server closes connections that keep their bytes for too long.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stratalog.net.held_memory import HeldMemory

_COUNTED = 64 * 1024  # the connection counts a request from this size on while it is being served
_LOOK_AGAIN_SECONDS = 0.25


class AnswerTurns:
    def __init__(self) -> None:
        self.memory: HeldMemory | None = None
        """Counts the bytes that the server's connections hold. None: no limit."""
        self._turn = asyncio.Lock()
        self._requests = 0  # bytes of the requests that have a turn or wait for one, if their connections count them

    @asynccontextmanager
    async def take(self, request_size: int) -> AsyncIterator[None]:
        counted = request_size if request_size > _COUNTED else 0
        self._requests += counted
        try:
            async with self._turn:
                await asyncio.sleep(0)  # the previous response reaches its connection, which counts it
                if self.memory is not None and not self._has_room(self.memory):
                    await self._wait_for_room(self.memory)
                yield
        finally:
            self._requests -= counted

    def _has_room(self, memory: HeldMemory) -> bool:
        """Return whether there is room. Requests that wait for a turn don't count, or they would block each other."""
        return memory.held - self._requests < memory.limit

    async def _wait_for_room(self, memory: HeldMemory) -> None:
        waiting = _Waiting()
        memory.wait(waiting)
        try:
            while not self._has_room(memory):
                waiting.woken.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(waiting.woken.wait(), _LOOK_AGAIN_SECONDS)
        finally:
            memory.stop_waiting(waiting)


class _Waiting:
    """A waiter for HeldMemory."""

    def __init__(self) -> None:
        self.woken = asyncio.Event()

    def read_again(self) -> None:
        self.woken.set()

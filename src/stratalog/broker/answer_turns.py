"""Turns for requests whose answer is many times as large as they are: one at a time, and only while there is room.

What is held is counted when an answer is whole (net.held_memory). So the next answer is begun only when the one before
is with its connection, and while what clients have not read yet is below the limit. While a request waits for room, the
server closes connections that hold on to theirs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stratalog.net.held_memory import HeldMemory

_COUNTED = 64 * 1024  # a request of this size is counted by its connection while it is answered
_LOOK_AGAIN_SECONDS = 0.25


class AnswerTurns:
    def __init__(self) -> None:
        self.memory: HeldMemory | None = None
        """What the server's connections hold; None: no limit."""
        self._turn = asyncio.Lock()
        self._requests = 0  # bytes of those that have or want a turn, as far as their connections count them

    @asynccontextmanager
    async def take(self, request_size: int) -> AsyncIterator[None]:
        counted = request_size if request_size > _COUNTED else 0
        self._requests += counted
        try:
            async with self._turn:
                await asyncio.sleep(0)  # the answer before is given to its connection, which counts it
                if self.memory is not None and not self._has_room(self.memory):
                    await self._wait_for_room(self.memory)
                yield
        finally:
            self._requests -= counted

    def _has_room(self, memory: HeldMemory) -> bool:
        """Requests that wait for their turn must not make each other wait."""
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

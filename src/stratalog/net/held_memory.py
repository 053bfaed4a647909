"""The bytes that clients make the broker hold: requests that are not whole yet, and responses that are not read.

Their sum is bounded (queued.max.request.bytes). A connection that keeps bytes when its turn is over says how many.
When the bound is reached nobody is read from, except for whoever holds a piece of a request for longest, so that
somebody gets on, and those who hold nothing and send little, for whom there is a reserve: a few large requests must
not stop all the small ones. Who waited for a few seconds is made room for: the connections that held on to their bytes
for as long are closed.
"""

from __future__ import annotations

import asyncio
import ctypes
from itertools import islice
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from stratalog.net.connection import Connection

PATIENCE_SECONDS = 3.0
_CHECK_SECONDS = 0.5
_A_FEW = 16
_RESERVE = 4  # the fourth part of the limit on top of it, for small requests
_LITTLE = 4096
_ANY = 1 << 62
_WORTH_A_TRIM = 32 * 1024 * 1024


class Waiter(Protocol):
    """A connection, or other work, that waits for room."""

    def read_again(self) -> None: ...


class HeldMemory:
    def __init__(self, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        """A limit of -1: none."""
        self.limit = limit if limit >= 0 else 1 << 62
        self.held = 0
        self._most_held = 0  # since memory was last given back to the system
        self._loop = loop
        self._holders: dict[Connection, tuple[int, float]] = {}  # how much, since when; the oldest first
        self._senders: dict[Connection, None] = {}  # those of them that have to send the rest of a request
        self._waiting: dict[Waiter, float] = {}  # since when
        self._check: asyncio.TimerHandle | None = None

    @property
    def is_scarce(self) -> bool:
        """Worth a copy to hold less."""
        return self.held * 2 > self.limit

    def hold(self, connection: Connection, size: int, *, is_sending: bool) -> None:
        """What the connection holds from now on, and whether it is to send more of it."""
        before, since = self._holders.get(connection, (0, 0.0))
        self.held += size - before
        if self.held > self._most_held:
            self._most_held = self.held
        elif self._most_held > _WORTH_A_TRIM and self.held * 2 < self._most_held:
            self._most_held = self.held
            give_back_to_the_system()
        if size == 0:
            self._holders.pop(connection, None)
        else:
            self._holders[connection] = (size, since or self._loop.time())
        if size and is_sending:
            self._senders[connection] = None
        else:
            self._senders.pop(connection, None)
        if self._waiting and size < before:
            self._wake(_A_FEW)

    def most_to_read(self, connection: Connection) -> int:
        """So many bytes at a time; 0: it has to wait."""
        if self.held < self.limit or connection is next(iter(self._senders), None):
            return _ANY
        if connection not in self._holders and self.held < self.limit + self.limit // _RESERVE:
            return _LITTLE
        return 0

    def wait(self, waiter: Waiter) -> None:
        """Call `read_again` when there is room."""
        self._waiting.setdefault(waiter, self._loop.time())
        if self._check is None:
            self._check = self._loop.call_later(_CHECK_SECONDS, self._make_room)

    def forget(self, connection: Connection) -> None:
        self._waiting.pop(connection, None)
        if connection in self._holders:
            self.hold(connection, 0, is_sending=False)

    def stop_waiting(self, waiter: Waiter) -> None:
        self._waiting.pop(waiter, None)

    def _wake(self, most: int) -> None:
        """Who finds that the room was taken by another meanwhile waits on, in its place."""
        if self.held < self.limit:
            for connection in islice(self._waiting, most):
                self._loop.call_soon(connection.read_again)
        elif (oldest := next(iter(self._senders), None)) in self._waiting:
            self._loop.call_soon(oldest.read_again)

    def _make_room(self) -> None:
        self._check = None
        if not self._waiting:
            return
        now = self._loop.time()
        if now - next(iter(self._waiting.values())) >= PATIENCE_SECONDS:
            for connection, (size, since) in list(self._holders.items()):
                if not self.is_scarce or now - since < PATIENCE_SECONDS:
                    break
                connection.close(f"it holds {size} bytes for {now - since:.0f} s, and others wait for room")
        self._wake(len(self._waiting))
        self._check = self._loop.call_later(_CHECK_SECONDS, self._make_room)


def give_back_to_the_system() -> None:
    """C's allocator keeps what lies below a piece in use: after a rush, a few left-overs would hold on to all of it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; others need none
    if trim is not None:
        trim(0)

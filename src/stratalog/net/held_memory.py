"""Limits the bytes that clients make the broker hold: incomplete requests, and responses that clients do not read.

The sum is limited by queued.max.request.bytes. A connection that holds bytes at the end of its turn reports how many.
Once the sum reaches the limit, connections are not read from, with two exceptions. The connection that has held part
of a request for the longest time continues, so that requests complete. Connections that hold nothing and send little
have a reserve, so that a few large requests can't stop all small ones. After a few seconds, waiting connections get
room: the connections that have held their bytes for as long are closed.
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
_WOKEN_AT_ONCE = 16
_RESERVE = 4  # small requests may use a fourth of the limit on top of it
_SMALL_READ = 4096
_ANY = 1 << 62
_WORTH_A_TRIM = 32 * 1024 * 1024


class Waiter(Protocol):
    """A connection or other work that waits for room."""

    def read_again(self) -> None: ...


class HeldMemory:
    def __init__(self, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        """Create the limit in bytes. -1 means no limit."""
        self.limit = limit if limit >= 0 else 1 << 62
        self.held = 0
        self._most_held = 0  # since memory was last returned to the system
        self._loop = loop
        self._holders: dict[Connection, tuple[int, float]] = {}  # size and start time, the oldest first
        self._senders: dict[Connection, None] = {}  # holders that have to send the rest of a request
        self._waiting: dict[Waiter, float] = {}  # start time
        self._check: asyncio.TimerHandle | None = None

    @property
    def is_scarce(self) -> bool:
        """True if saving memory is worth a copy."""
        return self.held * 2 > self.limit

    def hold(self, connection: Connection, size: int, *, is_sending: bool) -> None:
        """Record how many bytes the connection holds from now on, and whether its request is incomplete."""
        before, since = self._holders.get(connection, (0, 0.0))
        self.held += size - before
        if self.held > self._most_held:
            self._most_held = self.held
        elif self._most_held > _WORTH_A_TRIM and self.held * 2 < self._most_held:
            self._most_held = self.held
            return_memory_to_system()
        if size == 0:
            self._holders.pop(connection, None)
        else:
            self._holders[connection] = (size, since or self._loop.time())
        if size and is_sending:
            self._senders[connection] = None
        else:
            self._senders.pop(connection, None)
        if self._waiting and size < before:
            self._wake(_WOKEN_AT_ONCE)

    def read_limit(self, connection: Connection) -> int:
        """Return how many bytes the connection may read at a time; 0 if it has to wait."""
        if self.held < self.limit or connection is next(iter(self._senders), None):
            return _ANY
        if connection not in self._holders and self.held < self.limit + self.limit // _RESERVE:
            return _SMALL_READ
        return 0

    def wait(self, waiter: Waiter) -> None:
        """Call the waiter's `read_again` when there is room."""
        self._waiting.setdefault(waiter, self._loop.time())
        if self._check is None:
            self._check = self._loop.call_later(_CHECK_SECONDS, self._make_room)

    def forget(self, connection: Connection) -> None:
        self._waiting.pop(connection, None)
        if connection in self._holders:
            self.hold(connection, 0, is_sending=False)

    def stop_waiting(self, waiter: Waiter) -> None:
        self._waiting.pop(waiter, None)

    def _wake(self, count: int) -> None:
        """Wake the first `count` waiters. One that finds the room taken keeps its position in the queue."""
        if self.held < self.limit:
            for connection in islice(self._waiting, count):
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
                connection.close(f"it held {size} bytes for {now - since:.0f} s while others waited for memory")
        self._wake(len(self._waiting))
        self._check = self._loop.call_later(_CHECK_SECONDS, self._make_room)


def return_memory_to_system() -> None:
    """Trim the heap. C's allocator keeps all memory below a block in use, so a few leftovers would keep it all."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only glibc has it, and only glibc needs it
    if trim is not None:
        trim(0)

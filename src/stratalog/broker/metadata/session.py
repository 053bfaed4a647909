"""A broker's session with ZooKeeper: reads, watches and transactions, and the lease that shows that it still lasts.

A ZooKeeperSession outlives ZooKeeper's sessions: when a session expires, it makes the next one by itself. Ephemeral
znodes and watches belong to one session of ZooKeeper. Each request belongs to the session in which it was made, and
never happens in a later one.

Kazoo, which speaks the protocol, is loaded when a session starts: a broker without a ZooKeeper does not need it.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, TypeVar

from stratalog.broker.metadata.zookeeper_errors import (
    OutcomeUnknownError,
    SessionEndedError,
    ZooKeeperConnectionLostError,
    ZooKeeperError,
    ZooKeeperUnreachableError,
)
from stratalog.broker.metadata.zookeeper_requests import Operation, Watch, Znode, check_size
from stratalog.clock import Clock
from stratalog.errors import ConfigError

if TYPE_CHECKING:
    from stratalog.broker.metadata.kazoo_session import KazooSession

logger = logging.getLogger(__name__)

MAX_IN_FLIGHT = 128
"""Requests of a session that are sent and not answered. ZooKeeper stops reading at 1000 of all its clients."""
_RENEWAL_SECONDS = 0.1  # between two sessions
_SYNCS_PER_TIMEOUT = 6
_LEASE_PART = 2 / 3  # of the session timeout
_SILENCE_PART = 1 / 3  # of the session timeout; a connection that is silent for longer is given up

T = TypeVar("T")


class SessionEvent(Enum):
    """A change of the session of ZooKeeper that its users must know."""

    RECONNECTED = "reconnected"
    """The connection was lost and made again in the same session, whose ephemeral znodes still exist. Reads show all
    that happened meanwhile. Watches that were lost with the connection fire directly after this event."""
    EXPIRED = "expired"
    """The session is over, and its ephemeral znodes are gone. Requests raise SessionEndedError until RENEWED."""
    RENEWED = "renewed"
    """There is a new session. It has no ephemeral znodes and no watches."""


class ZooKeeperSession:
    """A session of ZooKeeper, and those after it. All methods are called on the event loop."""

    def __init__(self, connect: str, *, session_timeout_ms: int, connection_timeout_ms: int, clock: Clock) -> None:
        """`connect` is host:port,host:port/root; the root is created if it does not exist. The clock decides when the
        lease ends: use stratalog.clock.BootClock, unless a test moves the time."""
        self.hosts, self._root = parse_connect(connect)
        self._session_timeout_ms = session_timeout_ms
        self._connection_timeout_ms = connection_timeout_ms
        self._clock = clock
        self._lease_end = -math.inf
        self._callbacks: list[Callable[[SessionEvent], None]] = []
        self._announced: KazooSession | None = None  # the session that requests use
        self._first_sync: tuple[float, asyncio.Future[str]] | None = None  # of a new connection
        self._is_interrupted = False  # whether the connection was lost since the last event
        self._ready: asyncio.Future[None] | None = None
        self._runner: asyncio.Task[None] | None = None
        self._slots = asyncio.Semaphore(MAX_IN_FLIGHT)

    @property
    def session_id(self) -> int:
        """The id of the session that requests use, as in Znode.owner; 0 while there is no session."""
        return 0 if self._announced is None else self._announced.session_id

    @property
    def timeout_ms(self) -> int:
        """The session timeout that ZooKeeper granted; before that, the requested one."""
        return self._session_timeout_ms if self._announced is None else self._announced.timeout_ms

    def is_leased(self) -> bool:
        """Return whether ZooKeeper can't have ended the session yet, so its ephemeral znodes exist. The clock decides,
        so this is right even if the process or its machine was stopped a moment ago."""
        return self._clock.monotonic() < self._lease_end

    def on_session(self, callback: Callable[[SessionEvent], None]) -> None:
        """Call back on the event loop after each event, but not for the session that start() makes."""
        self._callbacks.append(callback)

    async def start(self) -> None:
        """Connect, create the root, and get the first lease. Raises ZooKeeperUnreachableError, naming the address,
        after the connection timeout."""
        _require_kazoo()
        self._ready = asyncio.get_running_loop().create_future()
        self._runner = asyncio.create_task(self._run(), name="ZooKeeper session")
        try:
            async with asyncio.timeout(self._connection_timeout_ms / 1000):
                await asyncio.wait([self._ready, self._runner], return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            await self.close()
            raise ZooKeeperUnreachableError(
                f"ZooKeeper at {self.hosts} did not respond within {self._connection_timeout_ms} ms; is it running, "
                "and is zookeeper.connect right?"
            ) from None
        except BaseException:
            await self.close()
            raise
        if self._runner.done():
            runner = self._runner
            await self.close()
            runner.result()

    async def close(self) -> None:
        """End the session, so that its ephemeral znodes are deleted at once. No thread is left afterwards."""
        self._lease_end = -math.inf
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.cancel()
            await asyncio.wait([runner])

    # Reads, which are sent again if their connection is lost

    async def get(self, path: str) -> Znode | None:
        """Return a znode; None if it does not exist."""
        return await self._read(lambda session: session.get(path))

    async def get_all(self, paths: Sequence[str]) -> list[Znode | None]:
        """Return several znodes, with many requests in flight. Each is read at a time of its own."""
        znodes: list[Znode | None] = []
        for start in range(0, len(paths), 8 * MAX_IN_FLIGHT):
            reads = [self.get(path) for path in paths[start : start + 8 * MAX_IN_FLIGHT]]
            results = await asyncio.gather(*reads, return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException):
                    raise result
                znodes.append(result)
        return znodes

    async def children(self, path: str, on_change: Callable[[], None] | None = None) -> list[str]:
        """Return the names of a znode's children, in no order. `on_change` is called once: after a child was created or
        deleted, or after a lost connection, when that may have happened. Raises MissingZnodeError."""
        watch = None if on_change is None else Watch(on_change)
        return await self._read(lambda session: session.children(path, watch))

    async def watch(self, path: str, on_change: Callable[[], None]) -> Znode | None:
        """Return a znode; None if it does not exist. `on_change` is called once: after the znode was created, changed
        or deleted, or after a lost connection, when that may have happened."""
        watch = Watch(on_change)

        def send(session: KazooSession) -> Awaitable[Znode | None]:
            # ZooKeeper handles them in this order, so the watch covers all changes after the read.
            session.exists(path, watch)
            return session.get(path)

        return await self._read(send)

    async def sync(self) -> None:
        """Return when later reads show everything that has happened so far."""
        await self._read(lambda session: session.sync())

    async def ensure(self, path: str) -> None:
        """Create a persistent znode and its parents, unless they exist."""
        for part in _with_parents(path):
            await self._read(functools.partial(_make, path=part))

    async def commit(self, operations: Sequence[Operation]) -> list[str | None]:
        """Carry out all operations or none of them, and return the path of each Create, and None for the others.

        Raises ConflictError, OutcomeUnknownError, SessionEndedError, TooLargeError or ZooKeeperUnreachableError; only
        after an OutcomeUnknownError they may have happened.
        """
        check_size(operations, self._root)
        session, deadline = self._session()
        while True:
            await self._wait_until_connected(session, deadline)
            async with self._slots:
                if not session.is_connected:
                    continue
                try:
                    return await session.commit(operations)
                except ZooKeeperConnectionLostError as error:
                    raise OutcomeUnknownError(
                        "the connection to ZooKeeper was lost before the response to a transaction of "
                        f"{len(operations)} operations, the first on {operations[0].path}; read again to see whether "
                        "it has happened"
                    ) from error

    async def _read(self, send: Callable[[KazooSession], Awaitable[T]]) -> T:
        session, deadline = self._session()
        while True:
            await self._wait_until_connected(session, deadline)
            async with self._slots:
                if session.is_connected:
                    try:
                        return await send(session)
                    except ZooKeeperConnectionLostError:
                        pass

    def _session(self) -> tuple[KazooSession, float]:
        """Return the session for a request, and the deadline for a connection, by the event loop's time."""
        session = self._announced
        if session is None:
            raise SessionEndedError(f"there is no session with ZooKeeper at {self.hosts} now; the request was not sent")
        return session, asyncio.get_running_loop().time() + session.timeout_ms / 1000

    async def _wait_until_connected(self, session: KazooSession, deadline: float) -> None:
        session.check_not_ended()
        if session.is_connected:
            return
        try:
            async with asyncio.timeout_at(deadline):
                await session.wait_until_connected()
        except TimeoutError:
            raise ZooKeeperUnreachableError(
                f"ZooKeeper at {self.hosts} could not be reached for {session.timeout_ms} ms; the request was not sent"
            ) from None

    # The life of the sessions

    async def _run(self) -> None:
        from stratalog.broker.metadata.kazoo_session import KazooSession

        while True:
            session = KazooSession(self.hosts, self._root, self._session_timeout_ms, self)
            try:
                session.start()
                await self._keep_leased(session)
            except SessionEndedError:
                self._note_end(session)
            except Exception:
                if self._ready is not None and not self._ready.done():
                    raise  # to the caller of start()
                logger.exception("the session with ZooKeeper at %s failed; making a new one", self.hosts)
                self._note_end(session)
            finally:
                self._lease_end = -math.inf
                self._announced = None
                await session.stop(_part(session, _SILENCE_PART))
            await asyncio.sleep(_RENEWAL_SECONDS)

    async def _keep_leased(self, session: KazooSession) -> None:
        """Renew the lease until the session has ended, and announce what happens. Raises SessionEndedError.

        A sync goes through ZooKeeper's leader. A plain read would not do: a server that is cut off from the leader
        answers it. Until the leader hears of the session, a session on a follower may seem older by half a tick than
        the last sync. A session timeout has at least two ticks, so the third of it after the lease covers that.
        """
        await self._make_root(session)
        while True:
            await session.wait_until_connected()
            sent, response = self._first_sync or (self._clock.monotonic(), session.sync())
            self._first_sync = None
            if not await self._has_succeeded(session, response):
                continue
            self._lease_end = max(self._lease_end, sent + _part(session, _LEASE_PART))
            self._announce_connection(session)
            try:
                async with asyncio.timeout(_part(session, 1 / _SYNCS_PER_TIMEOUT)):
                    await session.wait_for_change()
            except TimeoutError:
                pass

    async def _make_root(self, session: KazooSession) -> None:
        for part in _with_parents(self._root):
            while True:
                await session.wait_until_connected()
                try:
                    await session.make_root_part(part)
                    break
                except ZooKeeperConnectionLostError:
                    pass

    async def _has_succeeded(self, session: KazooSession, response: asyncio.Future[str]) -> bool:
        """Wait for the response to a sync, and return False if its connection was lost. A silent connection is dropped:
        kazoo would not notice it, because it waits for pings, and sends none while there are requests to send."""
        loop = asyncio.get_running_loop()
        sent = loop.time()
        silence = _part(session, _SILENCE_PART)
        while not response.done():
            remaining = max(sent, session.last_response) + silence - loop.time()
            if remaining <= 0:
                session.drop_connection(f"ZooKeeper has not responded for {round(silence * 1000)} ms")
            await asyncio.wait([response], timeout=remaining if remaining > 0 else silence)
        try:
            response.result()
        except ZooKeeperConnectionLostError:
            return False
        return True

    def connected(self, session: KazooSession) -> None:
        """Send a sync as the first request of a connection, so that all reads after it show what happened before."""
        self._first_sync = self._clock.monotonic(), session.sync()

    def disconnected(self, session: KazooSession) -> None:
        self._first_sync = None
        self._is_interrupted = True
        logger.warning("lost the connection to ZooKeeper at %s in session %#x", self.hosts, session.session_id)

    def _announce_connection(self, session: KazooSession) -> None:
        was_interrupted, self._is_interrupted = self._is_interrupted, False
        if self._announced is None:
            self._announced = session
            logger.info("ZooKeeper session %#x at %s", session.session_id, self.hosts)
            if self._ready is not None and not self._ready.done():
                self._ready.set_result(None)
            else:
                self._announce(SessionEvent.RENEWED)
        elif was_interrupted:
            logger.info("ZooKeeper session %#x is connected again", session.session_id)
            lost, session.lost_watches = session.lost_watches, []
            self._announce(SessionEvent.RECONNECTED)
            for watch in lost:
                _call(watch.fire)

    def _note_end(self, session: KazooSession) -> None:
        self._lease_end = -math.inf
        self._first_sync = None
        self._is_interrupted = False
        session.end()
        if self._announced is session:
            self._announced = None
            logger.warning("ZooKeeper session %#x has ended; making a new one", session.session_id)
            self._announce(SessionEvent.EXPIRED)

    def _announce(self, event: SessionEvent) -> None:
        for callback in list(self._callbacks):
            _call(callback, event)


def parse_connect(connect: str) -> tuple[str, str]:
    """Return the hosts of zookeeper.connect, and the path after them; it is empty for the root. Raises ConfigError."""
    hosts, slash, path = connect.strip().partition("/")
    root = (slash + path).rstrip("/")
    names = [host.strip() for host in hosts.split(",")]
    if not all(names):
        raise ConfigError(f"zookeeper.connect={connect!r} is not valid: write host:port,host:port/path")
    if any(part in ("", ".", "..") for part in root.split("/")[1:]):
        raise ConfigError(f"zookeeper.connect={connect!r} is not valid: {root} is not an absolute path without '.'")
    return ",".join(names), root


def _with_parents(path: str) -> list[str]:
    """Return /a, /a/b and /a/b/c for /a/b/c."""
    parts = path.split("/")[1:]
    return ["/" + "/".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _make(session: KazooSession, path: str) -> Awaitable[bool]:
    return session.make(path)


def _part(session: KazooSession, part: float) -> float:
    """Return a part of the session timeout, in seconds."""
    return session.timeout_ms * part / 1000


def _call(callback: Callable[..., None], *arguments: object) -> None:
    try:
        callback(*arguments)
    except Exception:
        logger.exception("a callback of the ZooKeeper session failed")


def _require_kazoo() -> None:
    try:
        importlib.import_module("stratalog.broker.metadata.kazoo_session")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "kazoo":
            raise
        raise ZooKeeperError(
            "zookeeper.connect is set, but kazoo is not installed, which speaks to ZooKeeper: "
            "pip install 'stratalog[cluster]'"
        ) from error

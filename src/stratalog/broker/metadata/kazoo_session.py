"""One ZooKeeper session, from its first connection to its end, as kazoo speaks it. Only this module imports kazoo.

Kazoo's thread owns the connection. It hands everything over to the event loop in the order in which ZooKeeper sent it:
responses, watches and changes of the connection. A kazoo client would start a new session when its session expires, and
run the requests of the old session in it. So each session has a client of its own, which refuses to connect again
after the end of its session.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import os
import select
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from kazoo import exceptions
from kazoo.client import KazooClient, KazooState
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import EventType
from kazoo.retry import KazooRetry

from stratalog.broker.metadata.zookeeper_errors import (
    ConflictError,
    ConflictReason,
    MissingZnodeError,
    SessionEndedError,
    ZooKeeperConnectionLostError,
    ZooKeeperError,
)
from stratalog.broker.metadata.zookeeper_requests import Check, Create, Delete, Operation, SetData, Watch, Znode

_CONFLICTS: dict[type[Exception], ConflictReason] = {
    exceptions.NodeExistsError: "exists",
    exceptions.NoNodeError: "missing",
    exceptions.BadVersionError: "version",
    exceptions.NotEmptyError: "children",
}
_CONSEQUENCES = (exceptions.RolledBackError, exceptions.RuntimeInconsistency)
"""The results of the operations before and after the one that failed."""
_LOST = (
    exceptions.ConnectionLoss,
    exceptions.ConnectionClosedError,
    exceptions.OperationTimeoutError,
    exceptions.SessionMovedError,
)
_logger = logging.getLogger(__name__)

T = TypeVar("T")

_FIRST_RETRY_SECONDS = 0.05
_LAST_RETRY_SECONDS = 1.0


class SessionListener(Protocol):
    """Called on the event loop."""

    def connected(self, session: KazooSession) -> None:
        """Handle a connection, the first one or a later one of the same session. The requests of this call are the
        first on the connection."""

    def disconnected(self, session: KazooSession) -> None:
        """Handle the loss of the connection, which kazoo makes again."""


class KazooSession:
    """A session. All methods are called on the event loop."""

    def __init__(self, hosts: str, root: str, timeout_ms: int, listener: SessionListener) -> None:
        self._root = root  # an absolute path, or empty
        self.session_id = 0
        self.timeout_ms = timeout_ms
        self.is_connected = False
        self.has_ended = False
        self.last_response = 0.0  # by the event loop's time
        self.lost_watches: list[Watch] = []
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._requests: set[asyncio.Future[Any]] = set()
        self._waiters: set[asyncio.Future[None]] = set()
        self._is_refusing = False  # set on kazoo's thread when the session has ended, before the event loop knows
        host_count = hosts.count(",") + 1
        self._handler = _Handler(self._hand_over, attempt_seconds=timeout_ms / 1000 / (2 * host_count))
        self._client = KazooClient(
            hosts,
            timeout=timeout_ms / 1000,
            handler=self._handler,
            connection_retry=KazooRetry(
                max_tries=-1,
                delay=_FIRST_RETRY_SECONDS,
                max_delay=min(_LAST_RETRY_SECONDS, timeout_ms / 10_000),
                sleep_func=self._handler.sleep_func,
            ),
            logger=_quiet_logger(),
        )
        self._connect_once = self._client._connection._connect
        self._client._connection._connect = self._connect
        self._client.add_listener(self._on_state)

    def start(self) -> None:
        self._client.start_async()

    # The connection

    async def wait_until_connected(self) -> None:
        """Wait for a connection. Raises SessionEndedError."""
        self.check_not_ended()
        while not self.is_connected:
            await self.wait_for_change()
            self.check_not_ended()

    async def wait_for_change(self) -> None:
        """Wait until the connection is lost or made, or the session ends."""
        waiter = self._loop.create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)

    def check_not_ended(self) -> None:
        """Raise SessionEndedError if the session has ended."""
        if self.has_ended:
            raise SessionEndedError(f"ZooKeeper session {self.session_id:#x} is over; the request was not sent")

    def drop_connection(self, reason: str) -> None:
        """Make kazoo give up its connection and connect again."""
        self._handler.interrupt(reason)

    async def stop(self, grace_seconds: float) -> None:
        """Close the session and release everything it holds, also if the call is cancelled. A connection that does not
        respond is given up after `grace_seconds`."""
        self.end()
        stopped = self._loop.create_future()
        thread = threading.Thread(target=self._stop_client, args=(stopped,), name="stratalog-zookeeper-stop")
        thread.start()
        timer = self._loop.call_later(grace_seconds, self.drop_connection, "it is being closed")
        cancellation: asyncio.CancelledError | None = None
        while not stopped.done():
            try:
                await asyncio.wait([stopped])
            except asyncio.CancelledError as error:
                cancellation = error
        timer.cancel()
        thread.join()
        self._handler.close()
        if cancellation is not None:
            raise cancellation

    def end(self) -> None:
        """Fail all requests: the session is over."""
        self.is_connected = False
        self.has_ended = True
        self._is_refusing = True
        self.lost_watches.clear()
        for request in list(self._requests):
            if not request.done():
                request.set_exception(
                    SessionEndedError(f"ZooKeeper session {self.session_id:#x} ended before the response")
                )
        self._wake_waiters()

    # Requests

    def get(self, path: str) -> asyncio.Future[Znode | None]:
        return self._send(self._client.get_async(self._root + path), _znode_or_none)

    def exists(self, path: str, watch: Watch) -> asyncio.Future[bool]:
        """Return whether a znode exists. The watch fires when it is created, changed or deleted."""
        result = self._client.exists_async(self._root + path, self._kazoo_watch(watch))
        return self._send(result, lambda result: result.get() is not None)

    def children(self, path: str, watch: Watch | None) -> asyncio.Future[list[str]]:
        """Return the names of a znode's children. The watch fires when one of them is created or deleted."""
        result = self._client.get_children_async(self._root + path, watch and self._kazoo_watch(watch))
        return self._send(result, lambda result: list(result.get()))

    def sync(self) -> asyncio.Future[str]:
        return self._send(self._client.sync_async(self._root or "/"), lambda result: str(result.get()))

    def make(self, path: str) -> asyncio.Future[bool]:
        """Create an empty znode, and return False if it exists already."""
        return self._send(self._client.create_async(self._root + path), _is_created)

    def make_root_part(self, path: str) -> asyncio.Future[bool]:
        """Create an empty znode at a path that includes the root. Return False if it exists already."""
        return self._send(self._client.create_async(path), _is_created)

    def commit(self, operations: Sequence[Operation]) -> asyncio.Future[list[str | None]]:
        """Return the paths that a transaction created; None for each operation that is no Create."""
        transaction = self._client.transaction()
        for operation in operations:
            path = self._root + operation.path
            match operation:
                case Create(_, data, ephemeral, sequential):
                    transaction.create(path, data, ephemeral=ephemeral, sequence=sequential)
                case SetData(_, data, version):
                    transaction.set_data(path, data, version)
                case Delete(_, version):
                    transaction.delete(path, version)
                case Check(_, version):
                    transaction.check(path, version)
        return self._send(transaction.commit_async(), lambda result: self._created(operations, result.get()))

    def _created(self, operations: Sequence[Operation], results: Sequence[object]) -> list[str | None]:
        for index, (operation, result) in enumerate(zip(operations, results, strict=True)):
            if isinstance(result, Exception) and not isinstance(result, _CONSEQUENCES):
                reason = _CONFLICTS.get(type(result))
                if reason is None:
                    raise ZooKeeperError(f"ZooKeeper refused {operation.path}: {type(result).__name__}")
                raise ConflictError(index, reason, operation.path)
        return [result.removeprefix(self._root) if isinstance(result, str) else None for result in results]

    def _send(self, result: Any, convert: Callable[[Any], T]) -> asyncio.Future[T]:
        """Return a future for kazoo's result. Requests are sent in the order of these calls."""
        self.check_not_ended()
        future: asyncio.Future[T] = self._loop.create_future()
        future.add_done_callback(_mark_as_retrieved)
        self._requests.add(future)
        result.rawlink(lambda result: self._hand_over(self._complete, future, result, convert))
        return future

    def _complete(self, future: asyncio.Future[T], result: Any, convert: Callable[[Any], T]) -> None:
        self._requests.discard(future)
        if isinstance(result.exception, exceptions.ConnectionLoss):
            self._on_disconnected()  # before a waiting task sends its request again
        else:
            self.last_response = self._loop.time()
        if future.done():
            return
        try:
            future.set_result(convert(result))
        except Exception as error:
            future.set_exception(self._translate(error))

    def _translate(self, error: Exception) -> Exception:
        if isinstance(error, ZooKeeperError):
            return error
        if isinstance(error, _LOST):
            return ZooKeeperConnectionLostError("the connection to ZooKeeper was lost before its response")
        if isinstance(error, exceptions.SessionExpiredError):
            return SessionEndedError(f"ZooKeeper session {self.session_id:#x} has expired; the request was refused")
        if isinstance(error, exceptions.NoNodeError):
            return MissingZnodeError("the znode or its parent does not exist in ZooKeeper")
        return ZooKeeperError(f"ZooKeeper refused a request: {type(error).__name__} {error}".rstrip())

    def _kazoo_watch(self, watch: Watch) -> Callable[[Any], None]:
        def on_event(event: Any) -> None:  # on the event loop, see _Handler.dispatch_callback
            if event.type != EventType.NONE:
                watch.fire()
            elif not self.has_ended:  # kazoo forgets all watches with their connection
                self.lost_watches.append(watch)

        return on_event

    # On kazoo's thread

    def _connect(self, *address: Any) -> Any:
        """Connect once, as kazoo's ConnectionHandler does, and report the negotiated timeout, which kazoo does not
        show. A session that has ended does not connect again."""
        if self._is_refusing:
            raise exceptions.ConnectionDropped("the session has ended")
        try:
            timeouts = self._connect_once(*address)
        except exceptions.SessionExpiredError:
            self._is_refusing = True
            raise
        self._handler.end_attempt()
        read_timeout_ms: float = timeouts[0]  # two thirds of the session timeout
        session_id: int = self._client.client_id[0]
        self._hand_over(self._on_connected, session_id, round(read_timeout_ms * 3 / 2))
        return timeouts

    def _on_state(self, state: str) -> None:
        if state == KazooState.SUSPENDED:
            self._hand_over(self._on_disconnected)
        elif state == KazooState.LOST:
            self._is_refusing = True
            self._hand_over(self.end)

    def _hand_over(self, call: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:
            _logger.debug("the event loop is closed: an event of ZooKeeper was dropped")

    def _stop_client(self, stopped: asyncio.Future[None]) -> None:
        try:
            self._client.stop()
            self._client.close()
        finally:
            self._hand_over(_resolve, stopped)

    # On the event loop, handed over by kazoo's thread

    def _on_connected(self, session_id: int, timeout_ms: int) -> None:
        if self.has_ended:
            return
        self.session_id = session_id
        self.timeout_ms = timeout_ms
        self.is_connected = True
        self.last_response = self._loop.time()
        self._listener.connected(self)
        self._wake_waiters()

    def _on_disconnected(self) -> None:
        if not self.is_connected:
            return
        self.is_connected = False
        self._listener.disconnected(self)
        self._wake_waiters()

    def _wake_waiters(self) -> None:
        for waiter in list(self._waiters):
            _resolve(waiter)


class _Handler:
    """Kazoo's handler of threads and sockets, with three differences. Callbacks go to the event loop, so there are no
    threads for them. Attempts to connect are short, so that one dead server does not use up the session timeout. And a
    connection can be dropped from outside, also while kazoo waits for a response."""

    def __init__(self, hand_over: Callable[..., None], attempt_seconds: float) -> None:
        self._kazoo = SequentialThreadingHandler()
        self._hand_over = hand_over
        self._attempt_seconds = attempt_seconds
        self._is_attempting = False
        self._is_closed = False
        self._reason = ""
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_reader, False)
        os.set_blocking(self._wake_writer, False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kazoo, name)

    def start(self) -> None:
        """Start no thread for callbacks: results and watches are handed over where they arrive."""

    def stop(self) -> None:
        """Do nothing: see start."""

    def close(self) -> None:
        """Release the descriptors. Kazoo's thread has ended."""
        os.close(self._wake_reader)
        os.close(self._wake_writer)
        self._is_closed = True

    def spawn(self, function: Callable[..., None], *arguments: object) -> threading.Thread:
        def run() -> None:
            try:
                function(*arguments)
            except Exception:
                # Kazoo has reported the end of the session already.
                _logger.exception("the thread of a ZooKeeper session has failed")

        thread = threading.Thread(target=run, name="stratalog-zookeeper", daemon=True)
        thread.start()
        return thread

    def dispatch_callback(self, callback: Any) -> None:
        self._hand_over(callback.func, *callback.args)

    def create_connection(self, *arguments: Any, **options: Any) -> Any:
        self._drain()  # an interruption of the connection before
        self._is_attempting = True
        options["timeout"] = min(options.get("timeout", self._attempt_seconds), self._attempt_seconds)
        return self._kazoo.create_connection(*arguments, **options)

    def end_attempt(self) -> None:
        """Let later waits take as long as kazoo likes: the session is connected."""
        self._is_attempting = False

    def interrupt(self, reason: str) -> None:
        self._reason = reason
        if self._is_closed:
            return
        try:
            os.write(self._wake_writer, b"\0")
        except BlockingIOError:
            pass  # there is an interruption that kazoo's thread has not seen yet

    def select(
        self, readers: Sequence[Any], writers: Sequence[Any], _: Sequence[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Wait for sockets, as select.select does. Raises OSError after an interruption, which drops the connection."""
        if self._is_attempting:
            timeout = self._attempt_seconds if timeout is None else min(timeout, self._attempt_seconds)
        poll = select.poll()  # kazoo's own makes an epoll object for each wait
        poll.register(self._wake_reader, select.POLLIN)
        for reader in readers:
            poll.register(reader, select.POLLIN)
        for writer in writers:
            poll.register(writer, select.POLLOUT)
        ready = {descriptor for descriptor, _ in poll.poll(None if timeout is None else math.ceil(timeout * 1000))}
        if self._wake_reader in ready:
            self._drain()
            raise OSError(errno.ECONNABORTED, self._reason)
        return [r for r in readers if r.fileno() in ready], [w for w in writers if w.fileno() in ready], []

    def _drain(self) -> None:
        try:
            os.read(self._wake_reader, 4096)
        except BlockingIOError:
            pass


def _znode_or_none(result: Any) -> Znode | None:
    try:
        data, stat = result.get()
    except exceptions.NoNodeError:
        return None
    return Znode(data, stat.version, stat.czxid, stat.ephemeralOwner)


def _is_created(result: Any) -> bool:
    try:
        result.get()
    except exceptions.NodeExistsError:
        return False
    return True


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _mark_as_retrieved(future: asyncio.Future[Any]) -> None:
    """Keep asyncio from logging the error of a request that its caller has stopped to wait for."""
    if not future.cancelled():
        future.exception()


def _quiet_logger() -> logging.Logger:
    """Return a logger for kazoo that hides what a session reports in its own words, unless its level was set."""
    logger = logging.getLogger("kazoo.stratalog")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.CRITICAL)
    return logger

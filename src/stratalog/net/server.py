"""The listener: accepts connections within the limits, and closes connections that are idle for too long.

It runs on one event loop. The last file descriptors are reserved for files, and when none are free, it waits.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from stratalog.net.buffers import ReceiveBuffers
from stratalog.net.connection import Connection
from stratalog.net.held_memory import HeldMemory
from stratalog.net.response_queue import Response

logger = logging.getLogger(__name__)

Serve = Callable[[memoryview, str], Response | Awaitable[Response]]
"""A complete frame without its size, and the client's host -> the response. The frame is valid during the call only."""

_ACCEPTS = 64  # per turn
_PAUSE_WITHOUT_DESCRIPTORS = 0.5
_FEWEST_DESCRIPTORS_LEFT = 50
_LONGEST_SWEEP_INTERVAL = 5.0
_IDLE_BUFFER_SECONDS = 1.0
_LONGEST_TURN = 0.005
_SHORTEST_TURN = 0.0005
_ROUND_SECONDS = 0.1
_LOGGED_AT_ONCE = 100
_LOGGED_PER_SECOND = 10


@dataclass(frozen=True)
class Limits:
    """Limits of what clients may use."""

    idle_seconds: float
    connections: int
    connections_per_host: int
    held_bytes: int = -1  # incomplete requests and responses that clients do not read; -1: no limit
    backlog: int = 128
    send_buffer: int = -1  # -1: the system's default
    receive_buffer: int = -1


def bind(host: str, port: int, receive_buffer: int = -1) -> socket.socket:
    """Return a socket that has this address reserved. Clients are refused until a server listens on it."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    listener = socket.socket(family[0], socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if receive_buffer > 0:  # before listening, since the window scale is fixed then
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        listener.setblocking(False)
        listener.bind(family[4])
    except BaseException:
        listener.close()
        raise
    return listener


class Server:
    def __init__(
        self,
        serve: Serve,
        largest_frame: Callable[[memoryview], int],
        limits: Limits,
        *,
        small_frame: int,
        is_heavy: Callable[[memoryview], bool] = lambda _: False,
        outlives_its_client: Callable[[memoryview], bool] = lambda _: False,
    ) -> None:
        self.serve = serve
        self.largest_frame = largest_frame
        """Returns how large a frame may be, from its first bytes."""
        self.small_frame = small_frame
        """A frame size that is allowed for every request."""
        self.is_heavy = is_heavy
        """Returns whether a large frame is a request that takes long for its size."""
        self.outlives_its_client = outlives_its_client
        """Returns whether a request, and the requests after it, are served even if the client has hung up."""
        self.limits = limits
        self.loop = asyncio.get_running_loop()
        self.buffers = ReceiveBuffers()
        self.memory = HeldMemory(limits.held_bytes, self.loop)
        self.received = 0  # bytes
        self.sent = 0
        self.accepted = 0
        self.refused = 0
        self.connections: set[Connection] = set()
        self.turn_seconds = _LONGEST_TURN
        """How long one connection's complete requests are served before other connections get their turn."""
        self._with_heavy: deque[Connection] = deque()
        self._gives_turns = False
        self._per_host: Counter[str] = Counter()
        self._listeners: list[socket.socket] = []
        self._sweep: asyncio.TimerHandle | None = None
        self._log_budget = float(_LOGGED_AT_ONCE)
        self._logged_at = 0.0
        self._suppressed = 0

    def listen(self, host: str, port: int) -> int:
        """Bind, listen, and return the port. The system chooses it if `port` is 0."""
        return self.listen_on(bind(host, port, self.limits.receive_buffer))

    def listen_on(self, listener: socket.socket) -> int:
        """Listen on a bound socket, which this server takes over, and return its port."""
        try:
            listener.listen(self.limits.backlog)
        except BaseException:
            listener.close()
            raise
        self._listeners.append(listener)
        self.loop.add_reader(listener.fileno(), self._accept, listener)
        if self._sweep is None:
            self._sweep_idle()
        bound: int = listener.getsockname()[1]
        return bound

    def stop_listening(self) -> None:
        for listener in self._listeners:
            self.loop.remove_reader(listener.fileno())
            listener.close()
        self._listeners.clear()

    async def close(self, grace_seconds: float) -> None:
        """Wait up to `grace_seconds` for responses to requests in flight, then close all connections."""
        self.stop_listening()
        if self._sweep is not None:
            self._sweep.cancel()
        deadline = self.loop.time() + grace_seconds
        while any(connection.is_busy for connection in self.connections) and self.loop.time() < deadline:
            await asyncio.sleep(0.01)
        for connection in list(self.connections):
            connection.close()

    def forget(self, connection: Connection) -> None:
        """Forget a connection that was closed. The connection calls this itself."""
        self.connections.discard(connection)
        self._share_time()
        self._per_host[connection.host] -= 1
        if not self._per_host[connection.host]:
            del self._per_host[connection.host]

    def _share_time(self) -> None:
        """Set the length of a turn: the more connections, the shorter, so that a round of all stays short."""
        self.turn_seconds = max(_SHORTEST_TURN, min(_LONGEST_TURN, _ROUND_SECONDS / max(len(self.connections), 1)))

    def wait_for_turn(self, connection: Connection) -> None:
        """Queue a request that takes long. Such requests run one at a time, and all other requests run in between."""
        self._with_heavy.append(connection)
        if not self._gives_turns:
            self._gives_turns = True
            self.loop.call_soon(self._give_turn)

    def _give_turn(self) -> None:
        connection = self._with_heavy.popleft()
        if self._with_heavy:
            self.loop.call_soon(self._give_turn)
        else:
            self._gives_turns = False
        connection.take_turn()

    def note(self, level: int, message: str) -> None:
        """Log what a client did. The rate is limited, so that a client can't fill the disk with log lines."""
        now = self.loop.time()
        self._log_budget = min(self._log_budget + (now - self._logged_at) * _LOGGED_PER_SECOND, _LOGGED_AT_ONCE)
        self._logged_at = now
        if self._log_budget < 1:
            self._suppressed += 1
            return
        self._log_budget -= 1
        if self._suppressed:
            logger.warning("%d lines about connections were left out of the log", self._suppressed)
            self._suppressed = 0
        logger.log(level, "%s", message)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTS):
            try:
                sock, address = listener.accept()
            except (BlockingIOError, ConnectionAbortedError, InterruptedError):
                return
            except OSError as error:
                # No descriptor is free. Without a pause the loop would spin, since the listener stays readable.
                logger.error("can't accept connections: %s; trying again in %s s", error, _PAUSE_WITHOUT_DESCRIPTORS)
                self.loop.remove_reader(listener.fileno())
                self.loop.call_later(_PAUSE_WITHOUT_DESCRIPTORS, self._accept_again, listener)
                return
            self._admit(sock, address[0])

    def _accept_again(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            self.loop.add_reader(listener.fileno(), self._accept, listener)

    def _admit(self, sock: socket.socket, host: str) -> None:
        limits = self.limits
        if len(self.connections) >= limits.connections:
            self._refuse(sock, host, f"max.connections is {limits.connections}")
            return
        if self._per_host[host] >= limits.connections_per_host:
            self._refuse(sock, host, f"max.connections.per.ip is {limits.connections_per_host}")
            return
        if sock.fileno() >= (limit := _descriptors_for_clients()):
            self._refuse(
                sock,
                host,
                f"{limit} file descriptors are in use, and the rest is reserved for files; "
                "raise ulimit -n or lower max.connections",
            )
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if limits.send_buffer > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, limits.send_buffer)
        self.accepted += 1
        self._per_host[host] += 1
        self.connections.add(Connection(sock, host, self))
        self._share_time()

    def _refuse(self, sock: socket.socket, host: str, reason: str) -> None:
        self.refused += 1
        self.note(logging.WARNING, f"connection from {host} refused: {reason}")
        sock.close()

    def _sweep_idle(self) -> None:
        """Close idle connections, with one timer for all. A connection that waits for the broker is not idle, unless
        its client has hung up while reading was paused."""
        idle = self.limits.idle_seconds
        self._sweep = self.loop.call_later(min(idle / 4, _LONGEST_SWEEP_INTERVAL), self._sweep_idle)
        now = self.loop.time()
        for connection in list(self.connections):
            silent = now - connection.last_active
            if connection.close_if_client_is_gone():
                continue
            if silent > idle and not connection.waits_for_the_broker:
                connection.close(f"no bytes were received or sent for {idle:g} s (connections.max.idle.ms)")
            elif silent > _IDLE_BUFFER_SECONDS:
                connection.free_buffer()


def _descriptors_for_clients() -> int:
    """Return the limit for connections. A tenth of the process's descriptors is reserved for the files of the logs."""
    limit: int = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 2**31 if limit == resource.RLIM_INFINITY else limit - max(limit // 10, _FEWEST_DESCRIPTORS_LEFT)

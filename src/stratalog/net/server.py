"""The listener: accepts connections within the limits, and ends those that are idle for too long.

Serves on one event loop. The last file descriptors are not for clients, and a full table makes it wait, not die.
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
"""A whole frame without its size, and the client's host -> the response. The frame is only lent."""

_ACCEPTS = 64  # a turn
_PAUSE_WITHOUT_DESCRIPTORS = 0.5
_FEWEST_DESCRIPTORS_LEFT = 50
_LONGEST_SWEEP_INTERVAL = 5.0
_A_PAUSE = 1.0
_LONGEST_TURN = 0.005
_SHORTEST_TURN = 0.0005
_ROUND_SECONDS = 0.1
_NOTES_AT_ONCE = 100
_NOTES_A_SECOND = 10


@dataclass(frozen=True)
class Limits:
    """A stranger's share."""

    idle_seconds: float
    connections: int
    connections_per_host: int
    held_bytes: int = -1  # of requests that are not whole and responses that are not read; -1: no limit
    backlog: int = 128
    send_buffer: int = -1  # -1: as the system sees fit
    receive_buffer: int = -1


def bind(host: str, port: int, receive_buffer: int = -1) -> socket.socket:
    """A socket with this address, which nobody else has then. Clients are refused until a server listens on it."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    listener = socket.socket(family[0], socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if receive_buffer > 0:  # before listening, or it comes too late for the window's scale
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
        """Given how a frame begins: how large it may be."""
        self.small_frame = small_frame
        """A size that is fine for any."""
        self.is_heavy = is_heavy
        """Whether a large frame is one of those that take long for their size."""
        self.outlives_its_client = outlives_its_client
        """Whether a request, and what was sent behind it, is served though its client has hung up."""
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
        """For requests of one connection that are all there."""
        self._with_heavy: deque[Connection] = deque()
        self._gives_turns = False
        self._per_host: Counter[str] = Counter()
        self._listeners: list[socket.socket] = []
        self._sweep: asyncio.TimerHandle | None = None
        self._notes_left = float(_NOTES_AT_ONCE)
        self._noted_at = 0.0
        self._unnoted = 0

    def listen(self, host: str, port: int) -> int:
        """Bind and listen; the port, which the system chose where 0 was asked for."""
        return self.listen_on(bind(host, port, self.limits.receive_buffer))

    def listen_on(self, listener: socket.socket) -> int:
        """Listen on a socket that is bound, and becomes this server's; its port."""
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
        """Let requests under way be answered, for so long; then close every connection."""
        self.stop_listening()
        if self._sweep is not None:
            self._sweep.cancel()
        deadline = self.loop.time() + grace_seconds
        while any(connection.is_busy for connection in self.connections) and self.loop.time() < deadline:
            await asyncio.sleep(0.01)
        for connection in list(self.connections):
            connection.close()

    def forget(self, connection: Connection) -> None:
        """Called by a connection that was closed."""
        self.connections.discard(connection)
        self._share_time()
        self._per_host[connection.host] -= 1
        if not self._per_host[connection.host]:
            del self._per_host[connection.host]

    def _share_time(self) -> None:
        """The more connections there are, the shorter are their turns: so that a round of all is not too long."""
        self.turn_seconds = max(_SHORTEST_TURN, min(_LONGEST_TURN, _ROUND_SECONDS / max(len(self.connections), 1)))

    def wait_for_turn(self, connection: Connection) -> None:
        """Requests that take long have their turns one by one, and between two of them all others have theirs."""
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
        """What a client did, for the log; only some a second, or a stranger could fill a disk with it."""
        now = self.loop.time()
        self._notes_left = min(self._notes_left + (now - self._noted_at) * _NOTES_A_SECOND, _NOTES_AT_ONCE)
        self._noted_at = now
        if self._notes_left < 1:
            self._unnoted += 1
            return
        self._notes_left -= 1
        if self._unnoted:
            logger.warning("%d lines about connections were left out of the log", self._unnoted)
            self._unnoted = 0
        logger.log(level, "%s", message)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTS):
            try:
                sock, address = listener.accept()
            except (BlockingIOError, ConnectionAbortedError, InterruptedError):
                return
            except OSError as error:
                # No descriptor is free. Without a pause the loop would spin, as the listener stays readable.
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
        if sock.fileno() >= (most := _descriptors_for_clients()):
            self._refuse(
                sock, host, f"{most} descriptors are in use; the rest is for the logs (ulimit -n, max.connections)"
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
        self.note(logging.WARNING, f"connection of {host} refused: {reason}")
        sock.close()

    def _sweep_idle(self) -> None:
        """One timer for all connections. One that waits for the broker's answer is not idle, unless its client has gone
        while reading was paused."""
        idle = self.limits.idle_seconds
        self._sweep = self.loop.call_later(min(idle / 4, _LONGEST_SWEEP_INTERVAL), self._sweep_idle)
        now = self.loop.time()
        for connection in list(self.connections):
            silent = now - connection.last_active
            if connection.close_if_client_is_gone():
                continue
            if silent > idle and not connection.waits_for_the_broker:
                connection.close(f"nothing came or went for {idle:g} s (connections.max.idle.ms)")
            elif silent > _A_PAUSE:
                connection.let_go_of_buffer()


def _descriptors_for_clients() -> int:
    """Connections leave a tenth of the process's descriptors to the logs, which have to open files to go on."""
    limit: int = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 2**31 if limit == resource.RLIM_INFINITY else limit - max(limit // 10, _FEWEST_DESCRIPTORS_LEFT)

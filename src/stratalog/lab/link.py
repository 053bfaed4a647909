"""A TCP proxy whose link can be cut, reset and restored, to put between two programs.

with Link("127.0.0.1:2181") as link:
    ... a client of link.address ...
    link.cut()      # connections stay open, and nothing is delivered
    link.restore()  # what was sent meanwhile is delivered
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
import threading
from types import TracebackType
from typing import Self

_HOST = "127.0.0.1"
_PIECE_BYTES = 64 * 1024
_CONNECT_SECONDS = 5.0
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER with 0 seconds: closing sends a reset


class Link:
    """A proxy in a thread of its own. Each call has taken effect when it returns."""

    def __init__(self, target: str | None = None) -> None:
        """`target` is host:port; nothing needs to listen there yet. Without it, connections are reset until there is
        one."""
        self._target: tuple[str, int] | None = None
        if target is not None:
            self.lead_to(target)
        self._listener = socket.create_server((_HOST, 0), backlog=128)
        self._listener.setblocking(False)
        self.address = f"{_HOST}:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()  # held while the thread delivers
        self._is_closed = False
        self._delivers_requests = True
        self._delivers_responses = True
        self._pairs: list[_Pair] = []
        self._wake_reader, self._wake_writer = os.pipe()
        self._thread = threading.Thread(target=self._run, name=f"link to {target or 'a target'}", daemon=True)
        self._thread.start()

    def lead_to(self, target: str) -> None:
        """Connect new connections with this target."""
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))

    @property
    def connection_count(self) -> int:
        """The number of open connections."""
        with self._lock:
            return len(self._pairs)

    def cut(self, *, requests: bool = True, responses: bool = True) -> None:
        """Deliver nothing from now on, or nothing in one direction. Nothing is lost: bytes wait until the link is
        restored. With both directions cut, new connections wait too: they are made, and nothing responds."""
        with self._lock:
            self._delivers_requests = self._delivers_requests and not requests
            self._delivers_responses = self._delivers_responses and not responses
        self._wake()

    def restore(self) -> None:
        """Deliver again what was sent, and what will be."""
        with self._lock:
            self._delivers_requests = self._delivers_responses = True
        self._wake()

    def reset(self) -> None:
        """Close all connections with a reset on both sides. Bytes that were not delivered are lost. New connections are
        possible, unless the link is cut."""
        with self._lock:
            for pair in self._pairs:
                pair.reset()
            self._pairs.clear()
        self._wake()

    def close(self) -> None:
        """Close the listener and all connections. No thread is left afterwards."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._wake()
        self._thread.join()
        self.reset()
        self._listener.close()
        os.close(self._wake_reader)
        os.close(self._wake_writer)

    def _wake(self) -> None:
        os.write(self._wake_writer, b"\0")

    # In the thread

    def _run(self) -> None:
        while True:
            with self._lock:
                if self._is_closed:
                    return
                selector = self._selector()
            with selector:
                selector.select()
            with self._lock:
                self._deliver()

    def _selector(self) -> selectors.BaseSelector:
        """Return a selector of everything that can be delivered now."""
        selector = selectors.PollSelector()
        selector.register(self._wake_reader, selectors.EVENT_READ)
        if self._delivers_requests or self._delivers_responses:
            selector.register(self._listener, selectors.EVENT_READ)
        interests: dict[socket.socket, int] = {}
        for stream in self._streams():
            for connection, event in stream.interests():
                interests[connection] = interests.get(connection, 0) | event
        for connection, events in interests.items():
            selector.register(connection, events)
        return selector

    def _deliver(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.set_blocking(self._wake_reader, False)
            os.read(self._wake_reader, 4096)
        if self._delivers_requests or self._delivers_responses:
            self._accept()
        for stream in self._streams():
            stream.deliver()
        for pair in [pair for pair in self._pairs if pair.has_ended]:
            self._pairs.remove(pair)
            pair.reset() if pair.has_failed else pair.close()

    def _streams(self) -> list[_Stream]:
        streams = []
        for pair in self._pairs:
            if self._delivers_requests:
                streams.append(pair.requests)
            if self._delivers_responses:
                streams.append(pair.responses)
        return streams

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                client, _ = self._listener.accept()
                target = self._target
                if target is None:
                    _reset(client)
                    continue
                try:
                    server = socket.create_connection(target, _CONNECT_SECONDS)
                except OSError:
                    _reset(client)
                else:
                    self._pairs.append(_Pair(client, server))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Stream:
    """One direction of a connection, with the bytes that were received and not delivered."""

    def __init__(self, source: socket.socket, destination: socket.socket) -> None:
        self._source = source
        self._destination = destination
        self._pending = b""
        self._is_at_end = False  # the source has closed its side
        self.has_ended = False  # the destination knows
        self.has_failed = False

    def interests(self) -> list[tuple[socket.socket, int]]:
        if self.has_ended:
            return []
        if self._pending:
            return [(self._destination, selectors.EVENT_WRITE)]
        return [(self._source, selectors.EVENT_READ)]

    def deliver(self) -> None:
        """Deliver as much as possible without waiting."""
        try:
            if not self._pending and not self._is_at_end:
                self._pending = self._source.recv(_PIECE_BYTES)
                self._is_at_end = not self._pending
            if self._pending:
                self._pending = self._pending[self._destination.send(self._pending) :]
            if self._is_at_end and not self.has_ended:
                self.has_ended = True
                self._destination.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            pass
        except OSError:
            self.has_ended = self.has_failed = True


class _Pair:
    """A client's connection and the one to the target."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self._connections = (client, server)
        for connection in self._connections:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.requests = _Stream(client, server)
        self.responses = _Stream(server, client)

    @property
    def has_failed(self) -> bool:
        return self.requests.has_failed or self.responses.has_failed

    @property
    def has_ended(self) -> bool:
        return self.has_failed or (self.requests.has_ended and self.responses.has_ended)

    def close(self) -> None:
        for connection in self._connections:
            connection.close()

    def reset(self) -> None:
        for connection in self._connections:
            _reset(connection)


def _reset(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    connection.close()

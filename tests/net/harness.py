"""A server on loopback sockets with a handler that the test chooses, and clients that can send any bytes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from struct import Struct
from typing import Any, TypeVar

from stratalog.net.response_queue import Response
from stratalog.net.server import Limits, Serve, Server

T = TypeVar("T")
SIZE = Struct(">i")
SECONDS = 20.0
LARGEST = 64 * 1024 * 1024


def run(scenario: Callable[[], Coroutine[Any, Any, T]]) -> T:
    async def limited() -> T:
        return await asyncio.wait_for(scenario(), 3 * SECONDS)

    return asyncio.run(limited())


def frame(payload: bytes) -> bytes:
    return SIZE.pack(len(payload)) + payload


def echo(payload: memoryview, host: str) -> Response | Awaitable[Response]:
    return [frame(bytes(payload))]


def limits(**changed: Any) -> Limits:
    return Limits(**{"idle_seconds": 600.0, "connections": 1000, "connections_per_host": 1000} | changed)


@asynccontextmanager
async def serving(
    serve: Serve = echo,
    limited_by: Limits | None = None,
    *,
    largest_frame: Callable[[memoryview], int] = lambda start: LARGEST,
    small_frame: int = 4 * 1024 * 1024,
    is_heavy: Callable[[memoryview], bool] = lambda frame: False,
    outlives_its_client: Callable[[memoryview], bool] = lambda frame: False,
) -> AsyncIterator[tuple[Server, int]]:
    server = Server(
        serve,
        largest_frame,
        limited_by or limits(),
        small_frame=small_frame,
        is_heavy=is_heavy,
        outlives_its_client=outlives_its_client,
    )
    port = server.listen("127.0.0.1", 0)
    try:
        yield server, port
    finally:
        await server.close(0)


class Client:
    """A client that sends without waiting for the broker to read, and reads only when the test calls for it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def connect(cls, port: int, *, receive_buffer: int | None = None) -> Client:
        sock = socket.socket()
        sock.setblocking(False)
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        except OSError:
            sock.close()
            raise
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return cls(sock)

    async def send(self, data: bytes) -> None:
        await asyncio.wait_for(self._loop.sock_sendall(self.sock, data), SECONDS)

    def send_some(self, data: bytes) -> int:
        """Send as much as the sockets take, and return the number of bytes."""
        sent = 0
        try:
            while sent < len(data):
                sent += self.sock.send(data[sent : sent + 65536])
        except BlockingIOError:
            pass
        return sent

    async def exactly(self, count: int) -> bytes:
        parts = []
        while count:
            part = await asyncio.wait_for(self._loop.sock_recv(self.sock, min(count, 1 << 20)), SECONDS)
            if not part:
                raise EOFError
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    async def receive(self) -> bytes:
        """Return the payload of one frame."""
        return await self.exactly(SIZE.unpack(await self.exactly(SIZE.size))[0])

    async def ask(self, payload: bytes) -> bytes:
        await self.send(frame(payload))
        return await self.receive()

    async def is_closed(self) -> bool:
        """Wait for the broker to close the connection without a response."""
        try:
            return await asyncio.wait_for(self._loop.sock_recv(self.sock, 1), SECONDS) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self.sock.close()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition while the event loop runs."""
    deadline = asyncio.get_running_loop().time() + SECONDS
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "the condition did not become true"
        await asyncio.sleep(0.002)


async def settle(server: Server) -> None:
    """Wait until the server has received nothing for some turns of the event loop."""
    quiet, before = 0, -1
    while quiet < 10:
        quiet = quiet + 1 if server.received == before else 0
        before = server.received
        await asyncio.sleep(0.005)

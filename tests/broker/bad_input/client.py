"""A client that sends any bytes, and parses responses with kio."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from stratalog.protocol.api_keys import VERSIONS, ApiKey
from tests.protocol.kio_messages import SIZE, framed, read_response, request_body, request_header

SECONDS = 20.0


class ClosedByBrokerError(Exception):
    pass


class RawClient:
    """One connection. `request` expects a response; `send` and `receive` can be used separately."""

    def __init__(self, port: int, *, seconds: float = SECONDS, receive_buffer: int | None = None) -> None:
        self._sock = socket.socket()
        self._sock.settimeout(seconds)
        if receive_buffer is not None:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self._sock.connect(("127.0.0.1", port))
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_ids = itertools.count(1)

    def request(self, key: ApiKey, values: Mapping[str, Any], version: int | None = None) -> Any:
        """Send a request, by default of the newest version, and return the response as kio's dataclass."""
        version = VERSIONS[key].highest if version is None else version
        return self.request_with(key, version, request_body(key, version, values))

    def request_with(self, key: ApiKey, version: int, body: bytes, client_id: str | None = "test") -> Any:
        correlation_id = next(self._correlation_ids)
        header = request_header(key, version, correlation_id=correlation_id, client_id=client_id)
        self.send(framed(header + body))
        answered, response = read_response(key, version, self.receive())
        assert answered == correlation_id
        return response

    def send(self, data: bytes) -> None:
        try:
            self._sock.sendall(data)
        except (ConnectionResetError, BrokenPipeError) as error:
            raise ClosedByBrokerError from error

    def receive(self) -> bytes:
        """Return the next response without its size."""
        return self._exactly(SIZE.unpack(self._exactly(SIZE.size))[0])

    def _exactly(self, count: int) -> bytes:
        parts = []
        while count:
            try:
                part = self._sock.recv(min(count, 1 << 20))
            except ConnectionResetError as error:
                raise ClosedByBrokerError from error
            if not part:
                raise ClosedByBrokerError
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def is_refused(self, data: bytes | Iterable[bytes]) -> bool:
        """Send bytes, and return whether the broker closes the connection without a response."""
        try:
            for piece in (data,) if isinstance(data, bytes) else data:
                self.send(piece)
            self.receive()
        except ClosedByBrokerError:
            return True
        return False

    def half_close(self) -> None:
        self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

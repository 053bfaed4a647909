"""A connection that sends ApiVersions and Metadata requests by hand: it shows faults without a client's retries."""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import Self

API_VERSIONS, METADATA = 18, 3


class Wire:
    def __init__(self, port: int, timeout: float = 30.0) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout)
        self._correlation_id = 0

    def send(self, api_key: int) -> None:
        self._correlation_id += 1
        body = struct.pack(">i", 0) if api_key == METADATA else b""  # for no topics
        frame = struct.pack(">hhih", api_key, 1 if api_key == METADATA else 0, self._correlation_id, -1) + body
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)

    def receive(self) -> int | None:
        """Return the correlation id of the next response, or None if the connection is closed."""
        prefix = self._exactly(4)
        if prefix is None:
            return None
        answer = self._exactly(struct.unpack(">i", prefix)[0])
        assert answer is not None
        return int.from_bytes(answer[:4])

    def ask(self, api_key: int = API_VERSIONS) -> int | None:
        self.send(api_key)
        return self.receive()

    def is_silent(self, seconds: float = 0.2) -> bool:
        """Return whether no response arrives while the connection stays open."""
        before = self._socket.gettimeout()
        self._socket.settimeout(seconds)
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return True
        finally:
            self._socket.settimeout(before)
        return False

    def _exactly(self, count: int) -> bytes | None:
        data = b""
        while len(data) < count:
            try:
                more = self._socket.recv(count - len(data))
            except ConnectionResetError:
                return None
            if not more:
                return None
            data += more
        return data

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

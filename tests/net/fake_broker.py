"""A broker whose responses a test chooses: threads and blocking sockets, so that clients of any kind can use it.

By default it responds to ApiVersions and Metadata as a cluster of one broker with the topics of the test, and to
nothing else. `say` sets the response to one API: bytes are sent as they are, a dict is encoded as that API's response,
and None means no response. After SILENCE the connection never gets a response again, and CLOSE ends it.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from struct import Struct
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from stratalog.protocol._wire import parse_request_header
from stratalog.protocol.api_keys import VERSIONS, ApiKey
from stratalog.protocol.frames import frame_response
from stratalog.protocol.messages import encode_reply

SIZE = Struct(">i")
CLOSE = object()
SILENCE = object()
TOPIC_ID = UUID(int=7)
Answer = bytes | dict[str, Any] | object | None


@dataclass
class Request:
    key: ApiKey
    version: int
    correlation_id: int
    client_id: str | None
    body: memoryview

    def encoded(self, reply: dict[str, Any]) -> bytes:
        """Return a complete and valid response to this request."""
        return self.framed(encode_reply(self.key, self.version, reply))

    def framed(self, body: bytes | bytearray, correlation_id: int | None = None) -> bytes:
        flexible = self.version >= VERSIONS[self.key].first_flexible and self.key is not ApiKey.API_VERSIONS
        number = self.correlation_id if correlation_id is None else correlation_id
        return frame_response(number, body, flexible=flexible)


class FakeBroker:
    def __init__(self, topics: Mapping[str, int] | None = None) -> None:
        """Take the topics with their number of partitions."""
        self.topics = dict(topics or {})
        self.requests: list[ApiKey] = []
        self.connections = 0
        self._answers: dict[ApiKey, Callable[[Request], Answer]] = {
            ApiKey.API_VERSIONS: lambda request: versions(),
            ApiKey.METADATA: lambda request: self.metadata(),
        }
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def say(self, key: ApiKey, answer: Callable[[Request], Answer] | Answer) -> None:
        self._answers[key] = answer if callable(answer) else lambda request: answer

    def metadata(self, **changed: Any) -> dict[str, Any]:
        topics = [topic(name, count) for name, count in self.topics.items()]
        brokers = [{"node_id": 1, "host": "127.0.0.1", "port": self.port, "rack": None}]
        return {"brokers": brokers, "cluster_id": "fake", "controller_id": 1, "topics": topics} | changed

    def close(self) -> None:
        if self._listener.fileno() >= 0:
            self._listener.shutdown(socket.SHUT_RDWR)  # otherwise accept would continue to block
            self._listener.close()
        self.cut()

    def cut(self) -> None:
        """Close all connections."""
        for sock in self._open:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(sock)
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with sock:
            try:
                while True:
                    request = _read(sock)
                    self.requests.append(request.key)
                    answer = self._answers[request.key](request) if request.key in self._answers else SILENCE
                    if answer is CLOSE:
                        return
                    while answer is SILENCE:
                        if not sock.recv(65536):
                            return
                    if isinstance(answer, dict):
                        answer = request.encoded(answer)
                    if isinstance(answer, bytes):
                        sock.sendall(answer)
            except (EOFError, OSError):
                return


def _read(sock: socket.socket) -> Request:
    frame = memoryview(_exactly(sock, SIZE.unpack(_exactly(sock, SIZE.size))[0]))
    number, version, correlation_id, client_id, position = parse_request_header(frame)
    return Request(ApiKey(number), version, correlation_id, client_id, frame[position:])


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = sock.recv(count - len(data))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


def versions(**changed: tuple[int, int]) -> dict[str, Any]:
    """Return the response to ApiVersions of a broker with our versions, except the changed ones, by API name."""
    ranges = {key.name: (served.lowest, served.highest) for key, served in VERSIONS.items()} | changed
    keys = [
        {"api_key": int(ApiKey[name]), "min_version": low, "max_version": high} for name, (low, high) in ranges.items()
    ]
    return {"error_code": 0, "api_keys": keys}


def topic(name: str, count: int = 0, **changed: Any) -> dict[str, Any]:
    return {
        "error_code": 0,
        "name": name,
        "topic_id": TOPIC_ID,
        "is_internal": False,
        "partitions": [partition(number) for number in range(count)],
    } | changed


def partition(number: int, **changed: Any) -> dict[str, Any]:
    return {
        "error_code": 0,
        "partition_index": number,
        "leader_id": 1,
        "leader_epoch": 0,
        "replica_nodes": [1],
        "isr_nodes": [1],
        "offline_replicas": [],
    } | changed

"""A client's connection to a broker: pipelined requests, and responses in the same order.

Runs on one event loop. Every request has an outcome: its response, or an error that says what happened to the
connection. A late response ends the connection. So does a response that does not belong to the oldest request, or that
announces more bytes than allowed, because the bytes after it could not be interpreted. Requests are sent from the
buffers of the caller. Each response has its own memory, which the caller may keep.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Self
from weakref import WeakSet

from stratalog.errors import (
    BrokerUnreachableError,
    ClientError,
    ConnectTimeoutError,
    MalformedResponseError,
    RequestTimeoutError,
    UnsupportedVersionError,
)
from stratalog.net._pipeline import InFlight, Pipeline, send_small
from stratalog.net._receive import receive_now, receive_rest
from stratalog.net.buffers import ResponseMemory
from stratalog.net.connecting import connect
from stratalog.protocol.api_keys import OWN_VERSIONS, VERSIONS, ApiKey, OwnApiKey
from stratalog.protocol.error_codes import ErrorCode
from stratalog.protocol.features import finalized_features
from stratalog.protocol.frames import (
    CORRELATION,
    SIZE,
    encoded_client_id,
    has_flexible_response,
    request_start,
    response_body,
)
from stratalog.protocol.messages import decode_response, encode_request

Buffer = bytes | bytearray | memoryview
Answered = Callable[[memoryview | None, ClientError | None], None]

_RECEIVE = 64 * 1024  # size of the receive buffer; larger responses are received into memory of their own
_RECEIVES = 16  # per turn; then other connections are served
_WAIT_MS = (2, 20)  # for the next piece of a large response, and for all of it, before other connections are served
_SMALL = 16 * 1024  # requests up to this size are copied and sent in one piece
_MOST_PARTS = 64  # per system call; IOV_MAX is 1024
_API_VERSIONS_BYTES = 1024 * 1024
_GREETINGS = {b"HTTP": "HTTP", b"\x15\x03": "TLS", b"\x16\x03": "TLS", b"SSH-": "SSH"}


class BrokerConnection:
    """A connection, created by `open`. Another thread may send a request through `pipeline`, see _pipeline.pyx."""

    def __init__(self, sock: socket.socket, host: str, port: int, *, client_id: str, most_response_bytes: int) -> None:
        self.host = host
        self.port = port
        self.is_closed = False
        self.was_closed_here = False
        self.versions: dict[int, tuple[int, int]] = {}  # by API key, as the broker serves them
        self.features: dict[str, int] = {}  # finalized features and their levels
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._fd = sock.fileno()
        self._client_id = encoded_client_id(client_id)
        self._most_response_bytes = most_response_bytes
        self.pipeline = Pipeline(self._fd, self._client_id)
        self.pipeline.last_used = self._loop.time()
        self._in_flight = self.pipeline.in_flight
        self._out = self.pipeline.out
        self._buffer = memoryview(bytearray(_RECEIVE))
        self._filled = 0
        self._memory = ResponseMemory()
        self._large: memoryview | None = None  # a response that does not fit the buffer
        self._large_filled = 0
        self._timer: asyncio.TimerHandle | None = None
        self._on_close: list[Callable[[ClientError], None]] = []
        self._loop.add_reader(self._fd, self._on_readable)
        _open_connections.add(self)

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        *,
        client_id: str,
        timeout: float,
        most_response_bytes: int = 100_000_000,
        send_buffer: int = -1,
        receive_buffer: int = -1,
    ) -> Self:
        """Connect, and learn which versions the broker serves. `timeout` limits both, in seconds. Raises
        BrokerUnreachableError, RequestTimeoutError, MalformedResponseError or UnsupportedVersionError."""
        connection: Self | None = None
        try:
            async with asyncio.timeout(timeout):
                sock = await connect(host, port, send_buffer, receive_buffer)
                connection = cls(sock, host, port, client_id=client_id, most_response_bytes=_API_VERSIONS_BYTES)
                await connection._learn_versions(timeout)
                connection._most_response_bytes = most_response_bytes
                return connection
        except TimeoutError as error:
            if isinstance(error, RequestTimeoutError):
                raise
            what = "no connection" if connection is None else "no response to ApiVersions"
            late = ConnectTimeoutError(f"{what} from {host}:{port} within {timeout:g} s")
            if connection is not None:
                connection._end(late)
            raise late from error
        except BaseException:
            if connection is not None:
                connection.close()
            raise

    @property
    def last_used(self) -> float:
        """The loop's time at which it last sent or received something."""
        return self.pipeline.last_used

    @property
    def in_flight(self) -> int:
        """The number of requests without a response."""
        return len(self._in_flight)

    @property
    def unsent(self) -> bool:
        """True if the socket has not taken all bytes of the requests yet."""
        return bool(self._out)

    def version_of(self, key: ApiKey | OwnApiKey, lowest: int = 0, highest: int | None = None) -> int:
        """Return the highest version within the limits that the broker serves and this client knows."""
        ours = VERSIONS[key] if isinstance(key, ApiKey) else OWN_VERSIONS[key]
        low = max(lowest, ours.lowest)
        high = ours.highest if highest is None else min(highest, ours.highest)
        theirs = self.versions.get(int(key))
        if theirs is None:
            raise UnsupportedVersionError(f"the broker at {self.host}:{self.port} does not serve {key.name}")
        if max(low, theirs[0]) > min(high, theirs[1]):
            raise UnsupportedVersionError(
                f"the broker at {self.host}:{self.port} serves versions {theirs[0]} to {theirs[1]} of {key.name}, "
                f"but this call needs {low} to {high}; use a newer broker or client"
            )
        return min(high, theirs[1])

    def exchange(
        self,
        key: ApiKey | OwnApiKey,
        version: int,
        body: Sequence[Buffer],
        *,
        timeout: float,
        expects_answer: bool = True,
    ) -> asyncio.Future[memoryview]:
        """Send a request, and return a future of the response's body. `body` must not change until the request has an
        outcome. Cancelling the future does not cancel the request: the client discards the response."""
        future: asyncio.Future[memoryview] = self._loop.create_future()

        def answered(response: memoryview | None, error: ClientError | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                assert response is not None
                future.set_result(response)

        self.post(key, version, body, timeout=timeout, answered=answered, expects_answer=expects_answer)
        return future

    def post(
        self,
        key: ApiKey | OwnApiKey,
        version: int,
        body: Sequence[Buffer],
        *,
        timeout: float,
        answered: Answered,
        expects_answer: bool = True,
    ) -> None:
        """Send a request like `exchange`, but without the delay of a future: `answered` is called exactly once, as soon
        as the response is there. It is called from within this method only if the connection is already closed."""
        if self.is_closed:
            answered(
                None,
                BrokerUnreachableError(f"the connection to {self.host}:{self.port} is closed; send the request again"),
            )
            return
        pipeline = self.pipeline
        size = sum(map(len, body))
        pipeline.last_used = now = self._loop.time()
        if expects_answer:
            deadline = now + timeout
            correlation_id = pipeline.expect(has_flexible_response(key, version), deadline, answered, key, version)
            if deadline < pipeline.timer_at:
                self._wake_at(deadline)
        else:
            correlation_id = pipeline.number()
        start = request_start(key, version, correlation_id, self._client_id, size)
        if self._out:
            self._out.append(memoryview(start))
            self._out.extend(map(memoryview, body))
        elif size < _SMALL:
            self._write_small(b"".join((start, *body)))
        else:
            self._out.append(memoryview(start))
            self._out.extend(map(memoryview, body))
            self._write()
        if not expects_answer:
            self._loop.call_soon(answered, memoryview(b""), None)

    def write_on(self) -> None:
        """Write what `Pipeline.send_now` could not, which another thread called."""
        if self._out and not self.is_closed:
            self._write()

    def on_close(self, callback: Callable[[ClientError], None]) -> None:
        """Call `callback` once when the connection has ended, for whatever reason."""
        self._on_close.append(callback)

    def close(self) -> None:
        """Close the connection. Requests in flight fail with BrokerUnreachableError."""
        self.was_closed_here = True
        self._end(BrokerUnreachableError(f"the connection to {self.host}:{self.port} was closed by this client"))

    def drop_in_child(self) -> None:
        """Close a forked child's copy of the socket. Otherwise the broker would not see the parent close its own."""
        self.is_closed = True
        self._sock.close()

    def _end(self, error: ClientError) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        _open_connections.discard(self)
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._sock.close()
        if self._timer is not None:
            self._timer.cancel()
        self._large = None
        for request in self.pipeline.close():
            request.answered(None, error)
        for callback in self._on_close:
            callback(error)
        self._on_close.clear()

    # Versions

    async def _learn_versions(self, timeout: float) -> None:
        """Request ApiVersions. A broker that does not know our version of it responds in version 0 (KIP-511)."""
        newest = version = VERSIONS[ApiKey.API_VERSIONS].highest
        body = encode_request(ApiKey.API_VERSIONS, newest, _software())
        response = await self.exchange(ApiKey.API_VERSIONS, newest, [body], timeout=timeout)
        if len(response) >= 2 and int.from_bytes(response[:2], "big") == ErrorCode.unsupported_version:
            served = decode_response(ApiKey.API_VERSIONS, 0, response).api_keys
            known = next((each.max_version for each in served if each.api_key == ApiKey.API_VERSIONS), 0)
            version = max(0, min(newest - 1, known))
            body = encode_request(ApiKey.API_VERSIONS, version, _software())
            response = await self.exchange(ApiKey.API_VERSIONS, version, [body], timeout=timeout)
        decoded = decode_response(ApiKey.API_VERSIONS, version, response)
        if decoded.error_code != ErrorCode.none:
            raise UnsupportedVersionError(
                f"the broker at {self.host}:{self.port} responds to ApiVersions with {decoded.error_code.name}; "
                f"it is too old for this client"
            )
        self.versions = {int(each.api_key): (each.min_version, each.max_version) for each in decoded.api_keys}
        self.features = finalized_features(version, response)

    # Writing

    def _write_small(self, request: bytes) -> None:
        """Send a request, before which nothing is unsent."""
        try:
            sent = send_small(self._fd, request)
        except OSError:
            sent = 0  # the error shows again when it is tried again
        if sent < len(request):
            self._out.append(memoryview(request)[sent:])
            self._write()

    def _write(self) -> None:
        out = self._out
        try:
            while out:
                if len(out) == 1:
                    part = out[0]
                    sent = self._sock.send(part)
                    if sent == len(part):
                        out.clear()
                    else:
                        out[0] = part[sent:]
                    continue
                parts = list(out) if len(out) <= _MOST_PARTS else [out[index] for index in range(_MOST_PARTS)]
                sent = self._sock.sendmsg(parts)
                for part in parts:
                    if sent < len(part):
                        out[0] = part[sent:]
                        break
                    sent -= len(part)
                    out.popleft()
        except (BlockingIOError, InterruptedError):
            self._loop.add_writer(self._fd, self._on_writable)
        except OSError as error:
            # Not now, since the caller does not have its future yet. Also, what the broker sent before is read first.
            self._loop.call_soon(self._lost, error)

    def _on_writable(self) -> None:
        self._loop.remove_writer(self._fd)
        if not self.is_closed:
            self._write()

    # Reading

    def _on_readable(self) -> None:
        try:
            for _ in range(_RECEIVES):
                if self._large is not None:
                    self._receive_large()
                    return  # the loop calls again if there is more
                room = _RECEIVE - self._filled
                count = receive_now(self._fd, self._buffer, self._filled)
                if count <= 0:
                    if count == 0:
                        self._lost(None)
                    return
                self._received(count)
                if self.is_closed or (count < room and self._large is None):
                    return
        except OSError as error:
            self._lost(error)
        except MalformedResponseError as error:
            self._end(error)

    def _receive_large(self) -> None:
        assert self._large is not None
        self._large_filled, is_over = receive_rest(self._fd, self._large, self._large_filled, *_WAIT_MS)
        if self._large_filled == len(self._large):
            response, self._large = self._large, None
            self._on_response(response)
        elif is_over:
            self._lost(None)

    def _lost(self, error: OSError | None) -> None:
        if self.is_closed:
            return
        why = "the broker closed it" if error is None else (error.strerror or str(error))
        waiting = f" with {len(self._in_flight)} requests in flight" if self._in_flight else ""
        self._end(BrokerUnreachableError(f"the connection to {self.host}:{self.port} was lost{waiting}: {why}"))

    def _received(self, count: int) -> None:
        self._filled += count
        start = 0
        while self._filled - start >= SIZE.size and not self.is_closed:
            size = SIZE.unpack_from(self._buffer, start)[0]
            if not CORRELATION.size <= size <= self._most_response_bytes:
                raise self._bad_size(size, bytes(self._buffer[start : start + SIZE.size]))
            end = start + SIZE.size + size
            if end > self._filled:
                if size + SIZE.size > _RECEIVE:
                    self._begin_large(size, start + SIZE.size)
                    return
                break
            frame = bytes(self._buffer[start + SIZE.size : end])
            start = end
            self._on_response(memoryview(frame))
        left = self._filled - start
        if start and left:
            self._buffer[:left] = bytes(self._buffer[start : self._filled])  # bytes(): the two may overlap
        self._filled = left

    def _begin_large(self, size: int, position: int) -> None:
        if not self._in_flight:
            raise MalformedResponseError(f"{self.host}:{self.port} sent {size} bytes without a request")
        self._large_filled = self._filled - position
        self._filled = 0
        try:
            self._large = self._memory.take(size)
        except OSError as error:
            raise MalformedResponseError(f"there is no memory for a response of {size} bytes: {error}") from error
        self._large[: self._large_filled] = self._buffer[position : position + self._large_filled]

    def _on_response(self, frame: memoryview) -> None:
        if not self._in_flight:
            raise MalformedResponseError(f"{self.host}:{self.port} sent {len(frame)} bytes without a request")
        correlation_id = CORRELATION.unpack_from(frame)[0]
        oldest = self._in_flight[0]
        if correlation_id != oldest.correlation_id:
            raise MalformedResponseError(
                f"{self.host}:{self.port} responded to request {correlation_id}, but the oldest request in flight is "
                f"{oldest.correlation_id} ({oldest.what}); is there a proxy in between?"
            )
        body = response_body(frame, oldest.flexible)
        self._in_flight.popleft()
        self.pipeline.last_used = self._loop.time()
        try:
            oldest.answered(body, None)
        except Exception as error:  # a bug in the caller must not cost other requests their responses
            message = f"the handler of the response to {oldest.what} failed"
            self._loop.call_exception_handler({"message": message, "exception": error})

    def _bad_size(self, size: int, start: bytes) -> MalformedResponseError:
        protocol = next((name for first, name in _GREETINGS.items() if start.startswith(first)), None)
        if protocol is not None:
            return MalformedResponseError(
                f"{self.host}:{self.port} uses {protocol}, but Kafka's protocol in plain text is expected; "
                f"is it the right port?"
            )
        return MalformedResponseError(
            f"a response of {self.host}:{self.port} announces {size} bytes; {CORRELATION.size} to "
            f"{self._most_response_bytes} are allowed (receive.message.max.bytes)"
        )

    # Time

    def _wake_at(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline, self._on_timer)
        self.pipeline.timer_at = deadline

    def _on_timer(self) -> None:
        """Check for late responses. There is one timer per connection, set again when it fires, since most requests
        have a response long before."""
        self._timer = None
        self.pipeline.timer_at = float("inf")
        if not self._in_flight:
            return
        first = min(self._in_flight, key=_deadline)
        if first.deadline > self._loop.time():
            self._wake_at(first.deadline)
            return
        self._end(
            RequestTimeoutError(
                f"{self.host}:{self.port} did not respond to {first.what} in time, with {len(self._in_flight)} "
                f"requests in flight; its connection is closed. If the broker is only slow, raise request.timeout.ms"
            )
        )


def _deadline(request: InFlight) -> float:
    return request.deadline


@cache
def _software() -> dict[str, str]:
    try:
        ours = version("stratalog")
    except PackageNotFoundError:
        ours = "unknown"
    return {"client_software_name": "stratalog", "client_software_version": ours}


_open_connections: WeakSet[BrokerConnection] = WeakSet()


def _close_in_child() -> None:
    for connection in list(_open_connections):
        connection.drop_in_child()
    _open_connections.clear()


os.register_at_fork(after_in_child=_close_in_child)

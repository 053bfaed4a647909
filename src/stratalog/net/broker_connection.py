"""A client's connection to a broker: requests out, answers in, pipelined and in order, as Kafka's brokers answer.

All of it happens in one event loop. Every request has an outcome: its answer, or an error that says what became of the
connection. An answer that is late ends the connection, and so does one that is not the answer to the oldest request, or
announces more bytes than are allowed: what follows could not be told apart. Requests go out from the buffers they were
given in; answers come in memory of their own, which may be kept.
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
from stratalog.net.answer_memory import AnswerMemory
from stratalog.net.connecting import connect
from stratalog.protocol.api_keys import OWN_VERSIONS, VERSIONS, ApiKey, OwnApiKey
from stratalog.protocol.error_codes import ErrorCode
from stratalog.protocol.features import finalized_features
from stratalog.protocol.messages import decode_response, encode_request
from stratalog.protocol.requests import (
    CORRELATION,
    SIZE,
    answer_body,
    encoded_client_id,
    has_flexible_answer,
    request_start,
)

Buffer = bytes | bytearray | memoryview
Answered = Callable[[memoryview | None, ClientError | None], None]

_RECEIVE = 64 * 1024  # what comes in is received into so much; answers that don't fit, into memory of their size
_RECEIVES = 16  # a turn; then others have theirs
_PATIENCE_MS = (2, 20)  # with the next piece of a large answer, and with all of it, before others have their turn
_SMALL = 16 * 1024  # requests up to so much are sent in one piece, which is worth the copy
_MOST_PARTS = 64  # a system call; IOV_MAX is 1024
_API_VERSIONS_BYTES = 1024 * 1024
_GREETINGS = {b"HTTP": "HTTP", b"\x15\x03": "TLS", b"\x16\x03": "TLS", b"SSH-": "SSH"}


class BrokerConnection:
    """Made by `open`. Another thread may send a request through `pipeline`, as _pipeline.pyx says."""

    def __init__(self, sock: socket.socket, host: str, port: int, *, client_id: str, most_response_bytes: int) -> None:
        self.host = host
        self.port = port
        self.is_closed = False
        self.was_closed_here = False
        self.versions: dict[int, tuple[int, int]] = {}  # that the broker serves
        self.features: dict[str, int] = {}  # that are finalized, and at which level
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
        self._memory = AnswerMemory()
        self._large: memoryview | None = None  # an answer that does not fit the buffer
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
        """Connected, and told which versions the broker serves. `timeout` in seconds is for all of that. Raises
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
            what = "no connection" if connection is None else "no answer to ApiVersions"
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
        """When it last sent or received something, in the loop's time."""
        return self.pipeline.last_used

    @property
    def in_flight(self) -> int:
        """Requests without an answer yet."""
        return len(self._in_flight)

    @property
    def unsent(self) -> bool:
        """Whether the socket has not taken all yet that it was given."""
        return bool(self._out)

    def version_of(self, key: ApiKey | OwnApiKey, lowest: int = 0, highest: int | None = None) -> int:
        """The highest version that the broker serves, that we speak, and that lies within these bounds."""
        ours = VERSIONS[key] if isinstance(key, ApiKey) else OWN_VERSIONS[key]
        low = max(lowest, ours.lowest)
        high = ours.highest if highest is None else min(highest, ours.highest)
        theirs = self.versions.get(int(key))
        if theirs is None:
            raise UnsupportedVersionError(f"the broker at {self.host}:{self.port} does not serve {key.name}")
        if max(low, theirs[0]) > min(high, theirs[1]):
            raise UnsupportedVersionError(
                f"the broker at {self.host}:{self.port} serves {key.name} in versions {theirs[0]} to {theirs[1]}, and "
                f"{low} to {high} are needed here; use a newer broker or client"
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
        """Send a request; the future has the body of the answer. `body` must stay as it is until there is an outcome. A
        future that is cancelled takes nothing back: the answer to what was sent is thrown away."""
        future: asyncio.Future[memoryview] = self._loop.create_future()

        def answered(answer: memoryview | None, error: ClientError | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                assert answer is not None
                future.set_result(answer)

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
        """As `exchange`, for who can't wait for a future's turn: `answered` is called, exactly once and never from
        within this call but where the connection is closed already, as soon as the answer is there."""
        if self.is_closed:
            answered(None, BrokerUnreachableError(f"the connection to {self.host}:{self.port} is closed; ask again"))
            return
        pipeline = self.pipeline
        size = sum(map(len, body))
        pipeline.last_used = now = self._loop.time()
        if expects_answer:
            deadline = now + timeout
            correlation_id = pipeline.expect(has_flexible_answer(key, version), deadline, answered, key, version)
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
        """Write what `Pipeline.send_now` left, which another thread called."""
        if self._out and not self.is_closed:
            self._write()

    def on_close(self, callback: Callable[[ClientError], None]) -> None:
        """To be told once when the connection is over, whoever ended it."""
        self._on_close.append(callback)

    def close(self) -> None:
        """What is in flight fails with BrokerUnreachableError."""
        self.was_closed_here = True
        self._end(BrokerUnreachableError(f"the connection to {self.host}:{self.port} was closed by this client"))

    def drop_in_child(self) -> None:
        """Close a fork's copy of the socket: kept open, the broker would not see the parent close its own."""
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
        """KIP-511: a broker that does not know our version of ApiVersions answers in version 0, with what it knows."""
        newest = version = VERSIONS[ApiKey.API_VERSIONS].highest
        body = encode_request(ApiKey.API_VERSIONS, newest, _software())
        answer = await self.exchange(ApiKey.API_VERSIONS, newest, [body], timeout=timeout)
        if len(answer) >= 2 and int.from_bytes(answer[:2], "big") == ErrorCode.unsupported_version:
            served = decode_response(ApiKey.API_VERSIONS, 0, answer).api_keys
            known = next((one.max_version for one in served if one.api_key == ApiKey.API_VERSIONS), 0)
            version = max(0, min(newest - 1, known))
            body = encode_request(ApiKey.API_VERSIONS, version, _software())
            answer = await self.exchange(ApiKey.API_VERSIONS, version, [body], timeout=timeout)
        response = decode_response(ApiKey.API_VERSIONS, version, answer)
        if response.error_code != ErrorCode.none:
            raise UnsupportedVersionError(
                f"the broker at {self.host}:{self.port} answers ApiVersions with {response.error_code.name}; it is "
                f"older than the versions of Kafka's protocol spoken here"
            )
        self.versions = {int(one.api_key): (one.min_version, one.max_version) for one in response.api_keys}
        self.features = finalized_features(version, answer)

    # Writing

    def _write_small(self, request: bytes) -> None:
        """Nothing is unsent before it."""
        try:
            sent = send_small(self._fd, request)
        except OSError:
            sent = 0  # what is wrong is found out when it is tried again
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
            # Not at once: the caller has not got its future yet. What the broker said before it went is read first.
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
                    return  # the loop comes back if there is more
                wanted = _RECEIVE - self._filled
                count = receive_now(self._fd, self._buffer, self._filled)
                if count <= 0:
                    if count == 0:
                        self._lost(None)
                    return
                self._received(count)
                if self.is_closed or (count < wanted and self._large is None):
                    return
        except OSError as error:
            self._lost(error)
        except MalformedResponseError as error:
            self._end(error)

    def _receive_large(self) -> None:
        assert self._large is not None
        self._large_filled, is_over = receive_rest(self._fd, self._large, self._large_filled, *_PATIENCE_MS)
        if self._large_filled == len(self._large):
            answer, self._large = self._large, None
            self._answer(answer)
        elif is_over:
            self._lost(None)

    def _lost(self, error: OSError | None) -> None:
        if self.is_closed:
            return
        why = "the broker closed it" if error is None else (error.strerror or str(error))
        waiting = f" with {len(self._in_flight)} requests unanswered" if self._in_flight else ""
        self._end(BrokerUnreachableError(f"the connection to {self.host}:{self.port} broke off{waiting}: {why}"))

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
            self._answer(memoryview(frame))
        left = self._filled - start
        if start and left:
            self._buffer[:left] = bytes(self._buffer[start : self._filled])  # bytes(): the two may overlap
        self._filled = left

    def _begin_large(self, size: int, position: int) -> None:
        if not self._in_flight:
            raise MalformedResponseError(f"{self.host}:{self.port} sends {size} bytes that nobody asked for")
        self._large_filled = self._filled - position
        self._filled = 0
        try:
            self._large = self._memory.take(size)
        except OSError as error:
            raise MalformedResponseError(f"no memory for an answer of {size} bytes: {error}") from error
        self._large[: self._large_filled] = self._buffer[position : position + self._large_filled]

    def _answer(self, frame: memoryview) -> None:
        if not self._in_flight:
            raise MalformedResponseError(f"{self.host}:{self.port} sends {len(frame)} bytes that nobody asked for")
        correlation_id = CORRELATION.unpack_from(frame)[0]
        oldest = self._in_flight[0]
        if correlation_id != oldest.correlation_id:
            raise MalformedResponseError(
                f"{self.host}:{self.port} answers request {correlation_id}, where {oldest.correlation_id} "
                f"({oldest.what}) is the oldest without an answer; is there a proxy in between?"
            )
        body = answer_body(frame, oldest.flexible)
        self._in_flight.popleft()
        self.pipeline.last_used = self._loop.time()
        try:
            oldest.answered(body, None)
        except Exception as error:  # a fault of ours must not cost the others their answers
            message = f"the answer to {oldest.what} could not be handled"
            self._loop.call_exception_handler({"message": message, "exception": error})

    def _bad_size(self, size: int, start: bytes) -> MalformedResponseError:
        spoken = next((name for first, name in _GREETINGS.items() if start.startswith(first)), None)
        if spoken is not None:
            return MalformedResponseError(
                f"{self.host}:{self.port} speaks {spoken} where Kafka's protocol is expected, in plain text; is it the "
                f"right port?"
            )
        return MalformedResponseError(
            f"an answer of {self.host}:{self.port} announces {size} bytes; {CORRELATION.size} to "
            f"{self._most_response_bytes} are allowed (receive.message.max.bytes)"
        )

    # Time

    def _wake_at(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline, self._on_timer)
        self.pipeline.timer_at = deadline

    def _on_timer(self) -> None:
        """One timer a connection, set anew when it fires: most requests are answered long before."""
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
                f"{self.host}:{self.port} did not answer {first.what} in time, with {len(self._in_flight)} requests in "
                f"flight; its connection is closed. If the broker is only slow, raise request.timeout.ms"
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

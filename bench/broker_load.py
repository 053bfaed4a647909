"""The load generator: sends prepared frames, keeps a number of them in flight, and checks every response's error code.

It runs in a process and on a core of its own, and costs so little there that the other side is what is measured.
`Load.busy` says how busy it was. Sockets block, with a timeout set in the kernel, so the only system calls are send and
recv.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from dataclasses import dataclass
from types import TracebackType

from bench.broker_frames import FETCH_RESPONSE, PRODUCE_RESPONSE, Ring, from_varint

WAIT_SECONDS = 30
FETCH_BUFFER = 2 * 1024 * 1024


class WrongResponseError(Exception):
    """The other side sent an error, a response out of order, or a different response than requested."""


@dataclass(frozen=True)
class Load:
    """The work that one side did in a period, and its cost."""

    requests: int
    bytes: int
    wall: float
    busy: float  # the generator's CPU seconds per second
    user: float = 0.0  # the other side's process
    system: float = 0.0

    @property
    def cpu(self) -> float:
        return self.user + self.system

    @property
    def gb(self) -> float:
        return self.bytes / 1e9


@dataclass(frozen=True)
class Limit:
    """The limits of a period of load, which ends when the first of them is reached."""

    seconds: float
    requests: int


def connect(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), WAIT_SECONDS)
    sock.settimeout(None)
    # Python's own timeouts would cost a poll before each call
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        sock.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", WAIT_SECONDS, 0))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


class Producing:
    """One connection with `in_flight` Produce requests in flight. With `ordered`, correlation ids have to match."""

    def __init__(self, port: int, ring: Ring, in_flight: int, *, ordered: bool) -> None:
        self._sock = connect(port)
        self._ring = ring
        self._in_flight = in_flight
        self._ordered = ordered
        self._buffer = bytearray(PRODUCE_RESPONSE.size * max(in_flight, 64))
        self._view = memoryview(self._buffer)
        self._have = 0
        self.sent = 0
        self.responses = 0

    @property
    def bytes(self) -> int:
        return self.responses * self._ring.frame_bytes

    def begin(self) -> None:
        self._send(self._in_flight)

    def step(self, *, more: bool) -> None:
        """Wait for responses, check them, and send as many new requests if `more` is true."""
        got = self._sock.recv_into(self._view[self._have :])
        if not got:
            raise WrongResponseError(f"the connection was closed after {self.responses} responses")
        self._have += got
        count = self._have // PRODUCE_RESPONSE.size
        if not count:
            self._check_size()
            return
        if more:  # send before checking the responses, so that the other side has work in the meantime
            self._send(count)
        whole = count * PRODUCE_RESPONSE.size
        self._check(self._view[:whole])
        self.responses += count
        self._have -= whole
        self._view[: self._have] = self._view[whole : whole + self._have]

    def _send(self, count: int) -> None:
        for part in self._ring.slices(self.sent, count):
            self._sock.sendall(part)
        self.sent += count

    def _check_size(self) -> None:
        if self._have >= 4 and int.from_bytes(self._buffer[:4], "big") != PRODUCE_RESPONSE.size - 4:
            raise WrongResponseError(f"a response of another size: {self._buffer[: self._have].hex(' ')}")

    def _check(self, responses: memoryview) -> None:
        expected = self.responses % self._ring.count
        for size, correlation_id, error in PRODUCE_RESPONSE.iter_unpack(responses):
            if error or size != PRODUCE_RESPONSE.size - 4 or (self._ordered and correlation_id != expected):
                raise WrongResponseError(
                    f"Produce response: {size} bytes, error {error}, correlation id {correlation_id}, not {expected}: "
                    f"{bytes(responses[: PRODUCE_RESPONSE.size * 2]).hex(' ')}"
                )
            expected += 1
            if expected == self._ring.count:
                expected = 0

    def close(self) -> None:
        self._sock.close()


class Fetching:
    """One connection with `in_flight` Fetch requests in flight.

    The head of a response is received and checked. Its records are received into one buffer, or dropped by the kernel
    with `discard` (MSG_TRUNC). A sleeping reader is woken by each packet, at the sender's cost, or once `wake_bytes`
    have arrived. The last response may have fewer bytes, so `wake_bytes` is for several requests in flight.
    """

    def __init__(
        self,
        port: int,
        ring: Ring,
        in_flight: int,
        *,
        least: int,
        ordered: bool,
        discard: bool = False,
        wake_bytes: int = 1,
    ) -> None:
        self._sock = connect(port)
        self._wake_bytes = wake_bytes if in_flight > 1 else 1
        self._ring = ring
        self._in_flight = in_flight
        self._least = least
        self._ordered = ordered
        self._flags = socket.MSG_WAITALL | (socket.MSG_TRUNC if discard else 0)
        self._head = bytearray(FETCH_RESPONSE.size)
        self._rest = memoryview(bytearray(FETCH_BUFFER))
        self.sent = 0
        self.responses = 0
        self.bytes = 0

    def begin(self) -> None:
        self._wake_at(self._wake_bytes)
        for _ in range(self._in_flight):
            self._send()

    def step(self, *, more: bool) -> None:
        if not more:
            self._wake_at(1)
        self._exactly(self._sock.recv_into(self._head, len(self._head), socket.MSG_WAITALL), len(self._head))
        size = self._check()
        rest = size + 4 - len(self._head)
        got = 0
        while got < rest:  # WAITALL may still return early
            part = self._sock.recv_into(self._rest, rest - got, self._flags)
            if not part:
                break
            got += part
        self._exactly(got, rest)
        self.responses += 1
        self.bytes += size + 4
        if more:
            self._send()

    def _send(self) -> None:
        at = self.sent % self._ring.count * self._ring.frame_bytes
        self._sock.sendall(self._ring.frames[at : at + self._ring.frame_bytes])
        self.sent += 1

    def _wake_at(self, count: int) -> None:
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)

    def _check(self) -> int:
        size, correlation_id, error, topics, partitions, partition_error, _, length = FETCH_RESPONSE.unpack(self._head)
        if self._ordered and (
            correlation_id != self.responses % self._ring.count
            or (error, topics, partitions, partition_error) != (0, 2, 2, 0)
            or from_varint(length) - 1 < self._least
        ):
            raise WrongResponseError(f"Fetch response of {size} bytes: {self._head.hex(' ')}")
        return int(size)

    @staticmethod
    def _exactly(got: int, expected: int) -> None:
        if got != expected:
            raise WrongResponseError(f"the connection was closed {expected - got} bytes early")

    def close(self) -> None:
        self._sock.close()


class Generator:
    """Drives several connections in turn. It is a context manager that closes them."""

    def __init__(self, connections: list[Producing] | list[Fetching]) -> None:
        self._connections = connections

    def __enter__(self) -> Generator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in self._connections:
            connection.close()

    def run(self, limit: Limit) -> Load:
        """Send load until the limit, then wait for the responses that are due; they count."""
        connections = self._connections
        requests, size = self._responses(), self._bytes()
        clock = time.perf_counter
        before, start = os.times(), clock()
        deadline = start + limit.seconds
        for connection in connections:
            connection.begin()
        while clock() < deadline and self._responses() - requests < limit.requests:
            for connection in connections:
                connection.step(more=True)
        for connection in connections:
            while connection.responses < connection.sent:
                connection.step(more=False)
        wall, after = clock() - start, os.times()
        cpu = after.user - before.user + after.system - before.system
        return Load(self._responses() - requests, self._bytes() - size, wall, cpu / wall)

    def _responses(self) -> int:
        return sum(connection.responses for connection in self._connections)

    def _bytes(self) -> int:
        return sum(connection.bytes for connection in self._connections)

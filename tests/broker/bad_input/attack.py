"""Sends a fuzzer's frames to a broker over a few connections at once, and counts the outcomes.

After each frame, a request follows that every broker answers. The frame is done when this response comes or the
connection is closed. A frame that makes the broker wait (a long poll, a rebalance) is abandoned after a while.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from struct import Struct

from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode
from tests.broker.bad_input.client import RawClient
from tests.broker.bad_input.fuzzer import Fuzzer, World
from tests.broker.bad_input.healthy import topic
from tests.protocol.kio_messages import request_frame

TOPICS = {"fuzz-1": 1, "fuzz-2": 3, "fuzz-3": 2}
_GROUPS = ["fuzz-group-1", "fuzz-group-2", "fuzz-group-3"]
_LANES = 12
_PATIENCE_SECONDS = 0.5
_RESPONSE_START = Struct(">ii")


def prepare(port: int) -> World:
    """Create topics and members, and return their names for the requests."""
    world = World(list(TOPICS), [], _GROUPS, [""] * len(_GROUPS))
    refresh(port, world)
    return world


def refresh(port: int, world: World) -> None:
    """Create missing topics and members: the fuzzer deletes topics, and makes groups remove members."""
    with RawClient(port) as client:
        wanted = [topic(name, count) for name, count in TOPICS.items()]
        client.request(ApiKey.CREATE_TOPICS, {"topics": wanted, "timeout": 30_000})
        described = client.request(ApiKey.METADATA, {"topics": [{"name": name} for name in TOPICS]}, version=12)
        found = [each.topic_id for each in described.topics if each.error_code == ErrorCode.none]
        world.topic_ids[:] = found or world.topic_ids
    for index, group in enumerate(world.groups):
        world.members[index] = _joined(port, group) or world.members[index]


def _joined(port: int, group: str) -> str:
    """Join as a static member again, and return the member id; "" if other members delay the group."""
    joining = {
        "group_id": group,
        "group_instance_id": "instance-1",
        "session_timeout": 300_000,
        "rebalance_timeout": 100,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }
    with RawClient(port, seconds=0.3) as client:
        try:
            return client.request(ApiKey.JOIN_GROUP, joining, version=7).member_id  # type: ignore[no-any-return]
        except TimeoutError:
            return ""


class Attack:
    def __init__(self, port: int, fuzzer: Fuzzer) -> None:
        self.outcomes: Counter[str] = Counter()
        self._port = port
        self._fuzzer = fuzzer
        self._selector = selectors.DefaultSelector()

    def run(self, numbers: range, progress: Callable[[int], None] = lambda _: None) -> None:
        """Send these frames of the fuzzer. Call `progress` with the number of frames that are done, now and then."""
        waiting = iter(numbers)
        lanes = [_Lane(self._port, self._selector) for _ in range(_LANES)]
        busy = [lane for lane in lanes if self._next(lane, waiting)]
        dealt_with = 0
        while busy:
            ready = {key.data for key, _ in self._selector.select(_PATIENCE_SECONDS)}
            now = time.monotonic()
            for lane in list(busy):
                outcome = lane.outcome(now, is_readable=lane in ready)
                if outcome is None:
                    continue
                self.outcomes[outcome] += 1
                dealt_with += 1
                if dealt_with % 1000 == 0:
                    progress(dealt_with)
                if not self._next(lane, waiting):
                    busy.remove(lane)
        for lane in lanes:
            lane.close()

    def _next(self, lane: _Lane, waiting: Iterator[int]) -> bool:
        number = next(waiting, None)
        if number is None:
            return False
        lane.send(self._fuzzer.frame(number), number)
        return True


class _Lane:
    """Uses one connection at a time for one frame at a time."""

    def __init__(self, port: int, selector: selectors.BaseSelector) -> None:
        self._port = port
        self._selector = selector
        self._sock: socket.socket | None = None
        self._received = bytearray()
        self._probe = 0
        self._since = 0.0

    def send(self, frame: bytes, number: int) -> None:
        self._probe = number % 2**31
        self._since = time.monotonic()
        if self._sock is None:
            self._sock = socket.create_connection(("127.0.0.1", self._port), timeout=10)
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(self._sock, selectors.EVENT_READ, self)
        try:
            self._sock.sendall(frame + request_frame(ApiKey.API_VERSIONS, 0, {}, correlation_id=self._probe))
        except OSError:  # closed by the broker, which the next read detects
            pass

    def outcome(self, now: float, *, is_readable: bool) -> str | None:
        """Return the outcome of the frame; None if it is not known yet."""
        if is_readable:
            assert self._sock is not None
            try:
                data = self._sock.recv(1 << 20)
            except OSError:
                data = b""
            if not data:
                self.close()
                return "closed"
            self._received += data
            if self._is_answered():
                return "answered"
        if now - self._since > _PATIENCE_SECONDS:
            self.close()
            return "left waiting"
        return None

    def _is_answered(self) -> bool:
        while len(self._received) >= _RESPONSE_START.size:
            size, correlation_id = _RESPONSE_START.unpack_from(self._received)
            if len(self._received) < 4 + size:
                return False
            del self._received[: 4 + size]
            if correlation_id == self._probe:
                return True
        return False

    def close(self) -> None:
        if self._sock is not None:
            self._selector.unregister(self._sock)
            self._sock.close()
            self._sock = None
        self._received.clear()

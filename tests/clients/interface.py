"""The interface of clients for the scenarios, so that one scenario runs with each client.

The adapters (confluent.py, kafka_python.py, aio.py) only translate: they don't retry or repair. A client names what it
can't do in `lacks`, and scenarios that need it are skipped by that name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Self

import pytest

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
ASSIGNORS = ("range", "roundrobin", "sticky", "cooperative-sticky")

# A crashed member is noticed quickly. A living one sends twenty heartbeats in that time, as the machine may be busy.
SESSION_MS = 6_000
HEARTBEAT_MS = 300
RECONNECT_MS = 200  # the longest wait between attempts
REFRESH_MS = 300  # age of metadata, for consumers that wait for new topics


class Place(NamedTuple):
    topic: str
    partition: int


@dataclass(frozen=True)
class Message:
    """A record to send."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int = 1_700_000_000_000
    partition: int = 0


@dataclass(frozen=True)
class Received:
    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    @property
    def place(self) -> Place:
        return Place(self.topic, self.partition)


@dataclass(frozen=True, kw_only=True)
class ConsumerOptions:
    """The options of a consumer: `topics` or `pattern` for a member of a group, or `partitions` without a group."""

    group: str | None = None
    topics: Sequence[str] = ()
    pattern: str | None = None
    partitions: Sequence[Place] = ()
    assignor: str = "range"
    protocol: str = "classic"
    instance_id: str | None = None
    isolation: str = "read_uncommitted"
    auto_commit: bool = False
    session_ms: int = SESSION_MS


class Producer(ABC):
    @abstractmethod
    def send(self, topic: str, messages: Sequence[Message]) -> list[int]:
        """Send records, and return their offsets when all are acknowledged. With acks=0, return when they are sent; the
        offsets then mean nothing."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Consumer(ABC):
    owned: frozenset[Place] = frozenset()  # as of the last poll; other threads may read it

    def poll(self, seconds: float) -> list[Received]:
        received = self._poll(seconds)
        self.owned = self._assignment()
        return received

    @abstractmethod
    def _poll(self, seconds: float) -> list[Received]: ...

    @abstractmethod
    def _assignment(self) -> frozenset[Place]: ...

    @abstractmethod
    def commit(self) -> None:
        """Commit the positions, and return when the broker has confirmed it."""

    @abstractmethod
    def commit_async(self) -> list[BaseException | None]:
        """Start a commit, and return a list that is empty until the broker has responded, in a later poll at the
        earliest. Then it contains the outcome."""

    @abstractmethod
    def committed(self, place: Place) -> int | None: ...

    @abstractmethod
    def position(self, place: Place) -> int: ...

    @abstractmethod
    def seek(self, place: Place, offset: int) -> None: ...

    @abstractmethod
    def offset_for_time(self, place: Place, timestamp: int) -> int | None:
        """Return the first offset with this timestamp or a later one; None if all timestamps are earlier."""

    @abstractmethod
    def beginning_and_end(self, place: Place) -> tuple[int, int]: ...

    @abstractmethod
    def pause(self, place: Place) -> None: ...

    @abstractmethod
    def resume(self, place: Place) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Client(ABC):
    name: ClassVar[str]
    lacks: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def producer(
        self, address: str, *, codec: str = "none", acks: int = -1, idempotent: bool = False, give_up_ms: int = 60_000
    ) -> Producer: ...

    @abstractmethod
    def consumer(self, address: str, options: ConsumerOptions) -> Consumer: ...

    def must_have(self, feature: str) -> None:
        """Skip the scenario if the client can't do this with any broker."""
        if feature in self.lacks:
            pytest.skip(f"{self.name} has no {feature}")

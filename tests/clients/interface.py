"""What the scenarios ask of a client, so that one scenario runs with each of them.

The adapters (confluent.py, kafka_python.py, aio.py) only translate: no retries, no repairs. What a client lacks is
named in its `lacks`, and a scenario that needs it is skipped with that name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Self

import pytest

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
ASSIGNORS = ("range", "roundrobin", "sticky", "cooperative-sticky")

# Crashed members are missed quickly, living ones have twenty heartbeats until then: the machine may be busy.
SESSION_MS = 6_000
HEARTBEAT_MS = 300
RECONNECT_MS = 200  # at most, between attempts
REFRESH_MS = 300  # of metadata, for those who wait for new topics


class Place(NamedTuple):
    topic: str
    partition: int


@dataclass(frozen=True)
class Message:
    """To be sent."""

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
    """Give `topics` or `pattern` for a member of a group, or `partitions` to read those."""

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
        """Returns when all are acknowledged or, with acks=0, gone; their offsets, which mean nothing with acks=0."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Consumer(ABC):
    owned: frozenset[Place] = frozenset()  # as of the last poll: a consumer is one thread's, but others may look

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
        """What was polled; returns when the broker has it."""

    @abstractmethod
    def commit_async(self) -> list[BaseException | None]:
        """Empty until the broker answered, at the earliest with a later poll; then how it went."""

    @abstractmethod
    def committed(self, place: Place) -> int | None: ...

    @abstractmethod
    def position(self, place: Place) -> int: ...

    @abstractmethod
    def seek(self, place: Place, offset: int) -> None: ...

    @abstractmethod
    def offset_for_time(self, place: Place, timestamp: int) -> int | None:
        """The first offset with this timestamp or a later one; None where all are earlier."""

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
        """Skips the scenario, naming what this client can't do against any broker."""
        if feature in self.lacks:
            pytest.skip(f"{self.name} has no {feature}")

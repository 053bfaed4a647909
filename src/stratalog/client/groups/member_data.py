"""What members of a classic consumer group tell each other, byte for byte as Java's: subscriptions and assignments.

    subscription: version i16, [topic], user data, 1: owned [topic [partition]], 2: generation i32, 3: rack
    assignment:   version i16, [topic [partition]], user data

A newer version begins with the fields of the older ones, so what is read is what is known of it. Sans-IO.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from struct import Struct, error

from stratalog.client.metadata import TopicPartition
from stratalog.errors import MalformedResponseError

VERSION = 3  # of the subscriptions that are sent
ASSIGNMENT_VERSION = 1
NO_GENERATION = -1

_INT16 = Struct(">h")
_INT32 = Struct(">i")


@dataclass(frozen=True)
class Subscription:
    """What one member wants and has."""

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION
    rack: str | None = None


@dataclass(frozen=True)
class Assignment:
    partitions: tuple[TopicPartition, ...] = ()
    user_data: bytes | None = field(default=None, repr=False)


def encode_subscription(subscription: Subscription) -> bytes:
    out = bytearray(_INT16.pack(VERSION))
    out += _INT32.pack(len(subscription.topics))
    for topic in subscription.topics:
        _write_string(out, topic)
    _write_bytes(out, subscription.user_data)
    write_partitions(out, subscription.owned)
    out += _INT32.pack(subscription.generation)
    _write_string(out, subscription.rack)
    return bytes(out)


def decode_subscription(data: bytes) -> Subscription:
    reader = FieldReader(data, "a member's subscription")
    version = reader.int16()
    topics = tuple(reader.text() for _ in range(reader.count()))
    user_data = reader.optional_bytes()
    owned = reader.partitions() if version >= 1 and reader.is_more else ()
    generation = reader.int32() if version >= 2 and reader.is_more else NO_GENERATION
    rack = reader.optional_text() if version >= 3 and reader.is_more else None
    return Subscription(topics, user_data, owned, generation, rack)


def encode_assignment(assignment: Assignment) -> bytes:
    out = bytearray(_INT16.pack(ASSIGNMENT_VERSION))
    write_partitions(out, assignment.partitions)
    _write_bytes(out, assignment.user_data)
    return bytes(out)


def decode_assignment(data: bytes) -> Assignment:
    """Empty bytes are what a member gets that was left out: nothing."""
    if not data:
        return Assignment()
    reader = FieldReader(data, "an assignment")
    reader.int16()
    partitions = reader.partitions()
    return Assignment(partitions, reader.optional_bytes() if reader.is_more else None)


def write_partitions(out: bytearray, partitions: Iterable[TopicPartition]) -> None:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    out += _INT32.pack(len(by_topic))
    for topic, indexes in by_topic.items():
        _write_string(out, topic)
        out += _INT32.pack(len(indexes))
        for index in indexes:
            out += _INT32.pack(index)


def _write_string(out: bytearray, text: str | None) -> None:
    if text is None:
        out += _INT16.pack(-1)
        return
    data = text.encode()
    out += _INT16.pack(len(data))
    out += data


def _write_bytes(out: bytearray, data: bytes | None) -> None:
    out += _INT32.pack(-1 if data is None else len(data))
    out += data or b""


class FieldReader:
    """Another member wrote these bytes, in whatever language: nothing in them is believed."""

    def __init__(self, data: bytes, what: str) -> None:
        self._data = data
        self._at = 0
        self._what = what

    @property
    def is_more(self) -> bool:
        return self._at < len(self._data)

    def int16(self) -> int:
        return int(self._number(_INT16))

    def int32(self) -> int:
        return int(self._number(_INT32))

    def count(self) -> int:
        """Of an array; null counts as empty. No element has less than two bytes."""
        count = self.int32()
        if count * 2 > len(self._data) - self._at:
            raise self._error(f"announces {count} elements, and has {len(self._data) - self._at} bytes left")
        return max(count, 0)

    def text(self) -> str:
        text = self.optional_text()
        if text is None:
            raise self._error("has null in place of a name")
        return text

    def optional_text(self) -> str | None:
        length = self.int16()
        if length < 0:
            return None
        try:
            return self._take(length).decode()
        except UnicodeDecodeError as problem:
            raise self._error(f"has a name that is not UTF-8: {problem}") from problem

    def optional_bytes(self) -> bytes | None:
        length = self.int32()
        return None if length < 0 else self._take(length)

    def partitions(self) -> tuple[TopicPartition, ...]:
        found = []
        for _ in range(self.count()):
            topic = self.text()
            found += [TopicPartition(topic, self.int32()) for _ in range(self.count())]
        return tuple(found)

    def _number(self, kind: Struct) -> int:
        try:
            (number,) = kind.unpack_from(self._data, self._at)
        except error as problem:
            raise self._error("ends too early") from problem
        self._at += kind.size
        return int(number)

    def _take(self, length: int) -> bytes:
        if length > len(self._data) - self._at:
            raise self._error(f"announces {length} bytes, and has {len(self._data) - self._at} left")
        self._at += length
        return self._data[self._at - length : self._at]

    def _error(self, problem: str) -> MalformedResponseError:
        return MalformedResponseError(f"{self._what} of {len(self._data)} bytes {problem}, at position {self._at}")

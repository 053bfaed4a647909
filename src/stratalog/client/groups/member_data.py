"""Subscriptions and assignments that members of a classic consumer group exchange, byte for byte as Java writes them.

    subscription: version i16, [topic], user data, 1: owned [topic [partition]], 2: generation i32, 3: rack
    assignment:   version i16, [topic [partition]], user data

A newer version begins with the fields of the older ones, so unknown fields at the end are ignored. Sans-IO.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from stratalog.client.metadata import TopicPartition
from stratalog.errors import MalformedResponseError
from stratalog.protocol.fields import FieldReader, FieldWriter

VERSION = 3  # of the subscriptions that this client sends
ASSIGNMENT_VERSION = 1
NO_GENERATION = -1


@dataclass(frozen=True)
class MemberSubscription:
    """The topics that a member subscribes to, and the partitions that it owns."""

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION
    rack: str | None = None


@dataclass(frozen=True)
class MemberAssignment:
    partitions: tuple[TopicPartition, ...] = ()
    user_data: bytes | None = field(default=None, repr=False)


def encode_subscription(subscription: MemberSubscription) -> bytes:
    fields = FieldWriter().int16(VERSION).count(len(subscription.topics))
    for topic in subscription.topics:
        fields.string(topic)
    fields.byte_string(subscription.user_data)
    write_partitions(fields, subscription.owned)
    return fields.int32(subscription.generation).string(subscription.rack).done()


def decode_subscription(data: bytes) -> MemberSubscription:
    fields = member_fields(data, "a member's subscription")
    version = fields.int16()
    topics = tuple(fields.nullable_array(fields.string) or ())
    user_data = fields.nullable_byte_string()
    owned = read_partitions(fields) if version >= 1 and fields.left else ()
    generation = fields.int32() if version >= 2 and fields.left else NO_GENERATION
    rack = fields.nullable_string() if version >= 3 and fields.left else None
    return MemberSubscription(topics, user_data, owned, generation, rack)


def encode_assignment(assignment: MemberAssignment) -> bytes:
    fields = FieldWriter().int16(ASSIGNMENT_VERSION)
    write_partitions(fields, assignment.partitions)
    return fields.byte_string(assignment.user_data).done()


def decode_assignment(data: bytes) -> MemberAssignment:
    """Decode an assignment. Empty bytes mean no partitions: the leader left the member out."""
    if not data:
        return MemberAssignment()
    fields = member_fields(data, "an assignment")
    fields.int16()
    partitions = read_partitions(fields)
    return MemberAssignment(partitions, fields.nullable_byte_string() if fields.left else None)


def member_fields(data: bytes, what: str) -> FieldReader:
    """Return a reader of bytes that another member wrote, in any language. It trusts none of them."""
    return FieldReader(data, what, error=MalformedResponseError)


def write_partitions(fields: FieldWriter, partitions: Iterable[TopicPartition]) -> None:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    fields.count(len(by_topic))
    for topic, indexes in by_topic.items():
        fields.string(topic).count(len(indexes))
        for index in indexes:
            fields.int32(index)


def read_partitions(fields: FieldReader) -> tuple[TopicPartition, ...]:
    def topic() -> list[TopicPartition]:
        name = fields.string()
        return [TopicPartition(name, index) for index in fields.nullable_array(fields.int32) or ()]

    return tuple(partition for of_topic in fields.nullable_array(topic) or () for partition in of_topic)

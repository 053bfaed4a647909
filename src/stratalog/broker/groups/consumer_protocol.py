"""Kafka's ConsumerProtocol, versions 0 to 3: the data of consumers in JoinGroup and SyncGroup. Pure.

    subscription: version (int16), topics, user data; from 1 owned partitions; from 2 generation; from 3 rack
    assignment:   version (int16), topics with partitions, user data

Each version begins with the fields of the version before, so the known fields of a newer version can be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from stratalog.protocol.fields import FieldReader, FieldWriter

PROTOCOL_TYPE = "consumer"
MOST_TOPICS = 10_000  # in one subscription or assignment: a name takes a few bytes here and a hundred in memory
_MOST_PARTITIONS = 100_000  # of one topic
_HIGHEST_VERSION = 3
_FIRST_WITH_OWNED = 1
_FIRST_WITH_GENERATION = 2
_FIRST_WITH_RACK = 3

NamedPartitions = Mapping[str, frozenset[int]]


class ConsumerSubscription(NamedTuple):
    version: int
    topics: tuple[str, ...]  # sorted, each once
    owned: NamedPartitions = MappingProxyType({})  # partitions that it keeps while it joins; older consumers keep none
    rack_id: str | None = None


class ConsumerAssignment(NamedTuple):
    partitions: NamedPartitions
    has_user_data: bool = False  # True if the assignor gives its members more than their partitions


def subscribed_topics(metadata: bytes) -> set[str]:
    """Return the topics of a subscription. Raises GroupRecordError if it is not valid or has more than MOST_TOPICS."""
    fields = FieldReader(metadata, "a consumer's subscription")
    _read_version(fields)
    return set(fields.array(fields.string, MOST_TOPICS))


def parse_subscription(metadata: bytes) -> ConsumerSubscription:
    """Parse a subscription. Raises GroupRecordError if it is not valid."""
    fields = FieldReader(metadata, "a consumer's subscription")
    version = _read_version(fields)
    topics = tuple(sorted(set(fields.array(fields.string, MOST_TOPICS))))
    fields.nullable_byte_string()  # user data
    owned = _read_partitions(fields) if version >= _FIRST_WITH_OWNED else {}
    if version >= _FIRST_WITH_GENERATION:
        fields.int32()
    rack_id = fields.nullable_string() if version >= _FIRST_WITH_RACK else None
    return ConsumerSubscription(version, topics, owned, rack_id)


def parse_assignment(assignment: bytes) -> ConsumerAssignment:
    """Parse an assignment. Empty bytes mean no partitions. Raises GroupRecordError if it is not valid."""
    if not assignment:
        return ConsumerAssignment({})
    fields = FieldReader(assignment, "a consumer's assignment")
    _read_version(fields)
    return ConsumerAssignment(_read_partitions(fields), bool(fields.nullable_byte_string()))


def encode_assignment(partitions: NamedPartitions, version: int) -> bytes:
    """Encode an assignment for a consumer whose subscription has this version."""
    fields = FieldWriter().int16(min(version, _HIGHEST_VERSION)).count(len(partitions))
    for topic, indexes in sorted(partitions.items()):
        fields.string(topic).count(len(indexes))
        for index in sorted(indexes):
            fields.int32(index)
    return fields.int32(-1).done()  # no user data


def _read_version(fields: FieldReader) -> int:
    version = fields.int16()
    if version < 0:
        raise fields.error(f"has version {version}, which is negative")
    return version


def _read_partitions(fields: FieldReader) -> NamedPartitions:
    def read_topic() -> tuple[str, frozenset[int]]:
        return fields.string(), frozenset(fields.array(fields.int32, _MOST_PARTITIONS))

    partitions: dict[str, frozenset[int]] = {}
    for topic, indexes in fields.array(read_topic, MOST_TOPICS):
        if indexes:
            partitions[topic] = partitions.get(topic, frozenset()) | indexes
    return partitions

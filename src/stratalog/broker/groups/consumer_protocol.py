"""What consumers put into JoinGroup and get out of SyncGroup: Kafka's ConsumerProtocol, versions 0 to 3. Pure.

    subscription: version (int16), topics, user data; from 1 the partitions owned; from 2 a generation; from 3 the rack
    assignment:   version (int16), topics with partitions, user data

Every version begins with the fields of the one before it, so a newer one is read as far as it is known here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from stratalog.protocol.fields import FieldReader, FieldWriter

PROTOCOL_TYPE = "consumer"
MOST_TOPICS = 10_000  # in one subscription or assignment: what takes a few bytes here takes a hundred as a name
_MOST_PARTITIONS = 100_000  # of one topic
_HIGHEST_VERSION = 3
_FIRST_WITH_OWNED = 1
_FIRST_WITH_GENERATION = 2
_FIRST_WITH_RACK = 3

NamedPartitions = Mapping[str, frozenset[int]]


class ConsumerSubscription(NamedTuple):
    version: int
    topics: tuple[str, ...]  # sorted, each once
    owned: NamedPartitions = MappingProxyType({})  # what it reads while it joins; older consumers give up all before
    rack_id: str | None = None


class ConsumerAssignment(NamedTuple):
    partitions: NamedPartitions
    has_user_data: bool = False  # of an assignor that tells its members more than their partitions


def subscribed_topics(metadata: bytes) -> set[str]:
    """Raises GroupRecordError where the bytes are something else, or name more than MOST_TOPICS."""
    fields = FieldReader(metadata, "a consumer's subscription")
    _read_version(fields)
    return set(fields.array(fields.string, MOST_TOPICS))


def parse_subscription(metadata: bytes) -> ConsumerSubscription:
    """Raises GroupRecordError where the bytes are something else."""
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
    """No bytes: no partitions. Raises GroupRecordError where the bytes are something else."""
    if not assignment:
        return ConsumerAssignment({})
    fields = FieldReader(assignment, "a consumer's assignment")
    _read_version(fields)
    return ConsumerAssignment(_read_partitions(fields), bool(fields.nullable_byte_string()))


def encode_assignment(partitions: NamedPartitions, version: int) -> bytes:
    """For a consumer whose subscription has this version."""
    fields = FieldWriter().int16(min(version, _HIGHEST_VERSION)).count(len(partitions))
    for topic, indexes in sorted(partitions.items()):
        fields.string(topic).count(len(indexes))
        for index in sorted(indexes):
            fields.int32(index)
    return fields.int32(-1).done()  # no user data


def _read_version(fields: FieldReader) -> int:
    version = fields.int16()
    if version < 0:
        raise fields.error(f"has version {version}")
    return version


def _read_partitions(fields: FieldReader) -> NamedPartitions:
    def read_topic() -> tuple[str, frozenset[int]]:
        return fields.string(), frozenset(fields.array(fields.int32, _MOST_PARTITIONS))

    found: dict[str, frozenset[int]] = {}
    for topic, indexes in fields.array(read_topic, MOST_TOPICS):
        if indexes:
            found[topic] = found.get(topic, frozenset()) | indexes
    return found

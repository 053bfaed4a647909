"""The records of KIP-848 consumer groups in `__consumer_offsets`, byte for byte as Kafka 4.1 writes them. Pure.

| type | record | key | value |
|---|---|---|---|
| 3 | ConsumerGroupMetadata | group | the group epoch, a hash of the subscribed topics |
| 4 | PartitionMetadata | group | the subscribed topics: Kafka 4.0 wrote them, 4.1 deletes them |
| 5 | MemberMetadata | group, member | the member's subscription, client and settings |
| 6 | TargetMetadata | group | the epoch of the target assignment |
| 7 | TargetMember | group, member | the member's partitions in the target assignment |
| 8 | CurrentMember | group, member | the partitions that it owns and must revoke, its epochs and state |
| 16 | RegularExpression | group, pattern | the topics that the pattern matches |

A key is the type as int16, and strings with an int16 length. A value is its version (0) as int16, and a flexible
structure. A key without a value is a tombstone. Tag 0 of MemberMetadata is for members that use the classic protocol
while their group is upgraded or downgraded.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from stratalog.broker.groups.group import GroupRecord
from stratalog.protocol.fields import FieldReader, FieldWriter

Assignment: TypeAlias = Mapping[uuid.UUID, frozenset[int]]
"""Partitions by topic id. No topic has an empty set, so that the same partitions compare equal."""

_VALUE_VERSION = 0
_METADATA_HASH_TAG = 0
_CLASSIC_MEMBER_TAG = 0
_NOT_NULL = 1  # before a structure that may be null


class RecordType(enum.IntEnum):
    GROUP_METADATA = 3
    PARTITION_METADATA = 4
    MEMBER_METADATA = 5
    TARGET_METADATA = 6
    TARGET_MEMBER = 7
    CURRENT_MEMBER = 8
    REGULAR_EXPRESSION = 16


_TYPES_OF_THE_GROUP = (RecordType.GROUP_METADATA, RecordType.PARTITION_METADATA, RecordType.TARGET_METADATA)


class MemberState(enum.IntEnum):
    """A member's progress towards its target assignment."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1  # it must revoke partitions before it gets the next epoch
    UNRELEASED_PARTITIONS = 2  # it has the epoch, but other members still own some partitions of its target
    UNKNOWN = 127  # a state of a later Kafka

    @classmethod
    def _missing_(cls, _value: object) -> MemberState:
        return cls.UNKNOWN


@dataclass(frozen=True, slots=True)
class ConsumerGroupMetadata:
    group_id: str
    epoch: int
    metadata_hash: int = 0


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    group_id: str
    topics: tuple[tuple[uuid.UUID, str, int], ...]  # id, name, number of partitions


@dataclass(frozen=True, slots=True)
class ClassicMemberMetadata:
    """The JoinGroup data of a member that uses the classic protocol."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]  # in the order of its preference


@dataclass(frozen=True, slots=True)
class MemberMetadata:
    group_id: str
    member_id: str
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    subscribed_topic_regex: str | None
    rebalance_timeout_ms: int
    server_assignor: str | None
    classic: ClassicMemberMetadata | None = None


@dataclass(frozen=True, slots=True)
class TargetMetadata:
    group_id: str
    assignment_epoch: int


@dataclass(frozen=True, slots=True)
class TargetMember:
    group_id: str
    member_id: str
    partitions: Assignment


@dataclass(frozen=True, slots=True)
class CurrentMember:
    group_id: str
    member_id: str
    member_epoch: int
    previous_member_epoch: int
    state: MemberState
    assigned: Assignment
    pending_revocation: Assignment


@dataclass(frozen=True, slots=True)
class RegularExpression:
    group_id: str
    pattern: str
    topics: tuple[str, ...]
    version: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class Tombstone:
    type: RecordType
    group_id: str
    name: str = ""  # the member id or the regular expression, if the key has one


ConsumerRecord: TypeAlias = (
    ConsumerGroupMetadata
    | PartitionMetadata
    | MemberMetadata
    | TargetMetadata
    | TargetMember
    | CurrentMember
    | RegularExpression
    | Tombstone
)


def encode(record: ConsumerRecord) -> GroupRecord:
    value = FieldWriter(flexible=True).int16(_VALUE_VERSION)
    match record:
        case Tombstone():
            return _key(record.type, record.group_id, record.name), None
        case ConsumerGroupMetadata():
            key = _key(RecordType.GROUP_METADATA, record.group_id)
            value.int32(record.epoch).tagged_fields(_hash_tag(record.metadata_hash))
        case PartitionMetadata():
            key = _key(RecordType.PARTITION_METADATA, record.group_id)
            _write_topics(value, record.topics)
        case MemberMetadata():
            key = _key(RecordType.MEMBER_METADATA, record.group_id, record.member_id)
            _write_member(value, record)
        case TargetMetadata():
            key = _key(RecordType.TARGET_METADATA, record.group_id)
            value.int32(record.assignment_epoch).tagged_fields()
        case TargetMember():
            key = _key(RecordType.TARGET_MEMBER, record.group_id, record.member_id)
            _write_assignment(value, record.partitions).tagged_fields()
        case CurrentMember():
            key = _key(RecordType.CURRENT_MEMBER, record.group_id, record.member_id)
            _write_current(value, record)
        case RegularExpression():
            key = _key(RecordType.REGULAR_EXPRESSION, record.group_id, record.pattern)
            _write_strings(value, record.topics).int64(record.version).int64(record.timestamp).tagged_fields()
    return key, value.done()


def decode(key: bytes, value: bytes | None) -> ConsumerRecord:
    """Parse a record. Raises GroupRecordError if the bytes are not a record of a KIP-848 group."""
    record_type, group_id, name = _read_key(key)
    if value is None:
        return Tombstone(record_type, group_id, name)
    reader = FieldReader(value, f"the value of type {record_type} of group {group_id!r}", flexible=True)
    version = reader.int16()
    if version != _VALUE_VERSION:
        raise reader.error(f"has version {version}; only version 0 is known")
    match record_type:
        case RecordType.GROUP_METADATA:
            return ConsumerGroupMetadata(group_id, reader.int32(), _hash_of(reader.tagged_fields()))
        case RecordType.PARTITION_METADATA:
            return PartitionMetadata(group_id, tuple(reader.array(lambda: _read_topic(reader))))
        case RecordType.MEMBER_METADATA:
            return _read_member(reader, group_id, name)
        case RecordType.TARGET_METADATA:
            return TargetMetadata(group_id, reader.int32())
        case RecordType.TARGET_MEMBER:
            return TargetMember(group_id, name, _read_assignment(reader))
        case RecordType.CURRENT_MEMBER:
            return _read_current(reader, group_id, name)
        case RecordType.REGULAR_EXPRESSION:
            return RegularExpression(group_id, name, _read_strings(reader), reader.int64(), reader.int64())


def _key(record_type: RecordType, group_id: str, name: str = "") -> bytes:
    key = FieldWriter().int16(record_type).string(group_id)
    if record_type not in _TYPES_OF_THE_GROUP:
        key.string(name)
    return key.done()


def _read_key(key: bytes) -> tuple[RecordType, str, str]:
    reader = FieldReader(key, "the key of a record of a consumer group")
    number = reader.int16()
    try:
        record_type = RecordType(number)
    except ValueError:
        raise reader.error(f"has the unknown type {number}") from None
    group_id = reader.string()
    name = "" if record_type in _TYPES_OF_THE_GROUP else reader.string()
    if reader.left:
        raise reader.error(f"of type {number}, group {group_id!r}, has extra bytes at its end: {reader.left}")
    return record_type, group_id, name


def _hash_tag(metadata_hash: int) -> dict[int, bytes]:
    return {_METADATA_HASH_TAG: FieldWriter().int64(metadata_hash).done()} if metadata_hash else {}


def _hash_of(tags: dict[int, bytes]) -> int:
    field = tags.get(_METADATA_HASH_TAG)
    return 0 if field is None else FieldReader(field, "the metadata hash of a consumer group").int64()


def _write_strings(value: FieldWriter, strings: tuple[str, ...]) -> FieldWriter:
    value.count(len(strings))
    for text in strings:
        value.string(text)
    return value


def _read_strings(reader: FieldReader) -> tuple[str, ...]:
    return tuple(reader.array(reader.string))


def _write_topics(value: FieldWriter, topics: tuple[tuple[uuid.UUID, str, int], ...]) -> None:
    value.count(len(topics))
    for topic_id, name, partition_count in topics:
        value.raw(topic_id.bytes).string(name).int32(partition_count)
        value.count(0)  # racks by partition
        value.tagged_fields()
    value.tagged_fields()


def _read_topic(reader: FieldReader) -> tuple[uuid.UUID, str, int]:
    topic = reader.uuid(), reader.string(), reader.int32()
    reader.array(lambda: (reader.int32(), _read_strings(reader), reader.tagged_fields()))  # racks by partition
    reader.tagged_fields()
    return topic


def _write_member(value: FieldWriter, record: MemberMetadata) -> None:
    value.string(record.instance_id).string(record.rack_id).string(record.client_id).string(record.client_host)
    _write_strings(value, record.subscribed_topic_names).string(record.subscribed_topic_regex)
    tags = {} if record.classic is None else {_CLASSIC_MEMBER_TAG: _classic_tag(record.classic)}
    value.int32(record.rebalance_timeout_ms).string(record.server_assignor).tagged_fields(tags)


def _classic_tag(classic: ClassicMemberMetadata) -> bytes:
    field = FieldWriter(flexible=True).int8(_NOT_NULL).int32(classic.session_timeout_ms).count(len(classic.protocols))
    for name, metadata in classic.protocols:
        field.string(name).byte_string(metadata).tagged_fields()
    return field.tagged_fields().done()


def _read_classic(field: bytes | None) -> ClassicMemberMetadata | None:
    if field is None:
        return None
    reader = FieldReader(field, "the classic protocols of a member", flexible=True)
    if reader.int8() != _NOT_NULL:
        return None

    def read_protocol() -> tuple[str, bytes]:
        protocol = reader.string(), reader.byte_string()
        reader.tagged_fields()
        return protocol

    return ClassicMemberMetadata(reader.int32(), tuple(reader.array(read_protocol)))


def _read_member(reader: FieldReader, group_id: str, member_id: str) -> MemberMetadata:
    return MemberMetadata(
        group_id=group_id,
        member_id=member_id,
        instance_id=reader.nullable_string(),
        rack_id=reader.nullable_string(),
        client_id=reader.string(),
        client_host=reader.string(),
        subscribed_topic_names=_read_strings(reader),
        subscribed_topic_regex=reader.nullable_string(),
        rebalance_timeout_ms=reader.int32(),
        server_assignor=reader.nullable_string(),
        classic=_read_classic(reader.tagged_fields().get(_CLASSIC_MEMBER_TAG)),
    )


def _write_current(value: FieldWriter, record: CurrentMember) -> None:
    value.int32(record.member_epoch).int32(record.previous_member_epoch).raw(bytes((record.state,)))
    _write_assignment(value, record.assigned)
    _write_assignment(value, record.pending_revocation).tagged_fields()


def _read_current(reader: FieldReader, group_id: str, member_id: str) -> CurrentMember:
    return CurrentMember(
        group_id=group_id,
        member_id=member_id,
        member_epoch=reader.int32(),
        previous_member_epoch=reader.int32(),
        state=MemberState(reader.raw(1)[0]),
        assigned=_read_assignment(reader),
        pending_revocation=_read_assignment(reader),
    )


def _write_assignment(value: FieldWriter, assignment: Assignment) -> FieldWriter:
    value.count(len(assignment))
    for topic_id in sorted(assignment):
        value.raw(topic_id.bytes).count(len(assignment[topic_id]))
        for partition in sorted(assignment[topic_id]):
            value.int32(partition)
        value.tagged_fields()
    return value


def _read_assignment(reader: FieldReader) -> Assignment:
    def read_topic() -> tuple[uuid.UUID, frozenset[int]]:
        topic = reader.uuid(), frozenset(reader.array(reader.int32))
        reader.tagged_fields()
        return topic

    return {topic_id: partitions for topic_id, partitions in reader.array(read_topic) if partitions}

"""The records of classic groups and committed offsets in `__consumer_offsets`, byte for byte as Kafka 4.1 writes them.

A key begins with its type (two bytes): 0 and 1 are committed offsets, 2 is a classic group; 3 and above are KIP-848
groups (consumer_records.py). A value begins with its version. A null value, a tombstone, deletes the key. All versions
that Kafka has ever written can be read.
"""

from __future__ import annotations

import uuid
from typing import NamedTuple

from stratalog.broker.groups.group import GroupRecord
from stratalog.protocol.fields import FieldReader, FieldWriter

OFFSET_KEY_TYPES = (0, 1)  # the same fields; Kafka has written 1 since 0.8.2
GROUP_KEY_TYPE = 2

_NO_TIMESTAMP = -1
_HIGHEST_OFFSET_VALUE = 4
_HIGHEST_GROUP_VALUE = 4
_FIRST_FLEXIBLE = 4  # of both values
_TOPIC_ID_TAG = 0
_GROUP_VALUE_VERSION = 3  # Kafka 4.1 writes this one: the flexible version has no further fields yet


class OffsetKey(NamedTuple):
    group_id: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    group_id: str


class CommittedOffset(NamedTuple):
    """The offset up to which a group has read a partition. Only clients older than 2.1 set `expire_timestamp_ms`."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int | None = None
    topic_id: uuid.UUID | None = None


class StoredMember(NamedTuple):
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class StoredGroup(NamedTuple):
    """A classic group in the form that is stored: its state after a rebalance."""

    protocol_type: str
    generation: int
    protocol_name: str | None
    leader: str | None
    state_timestamp_ms: int | None  # when the group entered its state; Kafka before 2.1 did not write it
    members: tuple[StoredMember, ...]


def key_type(key: bytes) -> int:
    return FieldReader(key, "key of a record in __consumer_offsets").int16()


def group_id_of(key: bytes) -> str:
    """Return the group id of a key of any type. Raises GroupRecordError."""
    fields = FieldReader(key, "key of a record in __consumer_offsets")
    fields.int16()
    return fields.string()


def parse_key(key: bytes) -> OffsetKey | GroupKey:
    fields = FieldReader(key, "key of a record in __consumer_offsets")
    kind = fields.int16()
    if kind in OFFSET_KEY_TYPES:
        return OffsetKey(fields.string(), fields.string(), fields.int32())
    if kind == GROUP_KEY_TYPE:
        return GroupKey(fields.string())
    raise fields.error(f"has type {kind}; only 0 and 1 (offsets) and 2 (classic groups) are known here")


def parse_offset(value: bytes) -> CommittedOffset:
    fields = FieldReader(value, "value of a committed offset")
    version = _value_version(fields, _HIGHEST_OFFSET_VALUE)
    offset = fields.int64()
    leader_epoch = fields.int32() if version >= 3 else -1
    metadata = fields.string()
    committed = fields.int64()
    expires = fields.int64() if version == 1 else _NO_TIMESTAMP
    topic_id = fields.tagged_fields().get(_TOPIC_ID_TAG)
    return CommittedOffset(
        offset,
        leader_epoch,
        metadata,
        committed,
        None if expires == _NO_TIMESTAMP else expires,
        None if topic_id is None else FieldReader(topic_id, "topic id of a committed offset").uuid(),
    )


def parse_group(value: bytes) -> StoredGroup:
    fields = FieldReader(value, "value of a classic group")
    version = _value_version(fields, _HIGHEST_GROUP_VALUE)
    protocol_type, generation = fields.string(), fields.int32()
    protocol_name, leader = fields.nullable_string(), fields.nullable_string()
    since = fields.int64() if version >= 2 else _NO_TIMESTAMP
    members = fields.array(lambda: _parse_member(fields, version))
    return StoredGroup(
        protocol_type, generation, protocol_name, leader, None if since == _NO_TIMESTAMP else since, tuple(members)
    )


def _parse_member(fields: FieldReader, version: int) -> StoredMember:
    member_id = fields.string()
    instance_id = fields.nullable_string() if version >= 3 else None
    client_id, client_host = fields.string(), fields.string()
    rebalance_timeout = fields.int32() if version >= 1 else -1
    session_timeout = fields.int32()
    subscription, assignment = fields.byte_string(), fields.byte_string()
    fields.tagged_fields()
    if rebalance_timeout == -1:  # from before 0.10.1, which had only one timeout
        rebalance_timeout = session_timeout
    return StoredMember(
        member_id, instance_id, client_id, client_host, rebalance_timeout, session_timeout, subscription, assignment
    )


def _value_version(fields: FieldReader, highest: int) -> int:
    version = fields.int16()
    if not 0 <= version <= highest:
        raise fields.error(f"has version {version}; versions 0 to {highest} are known")
    fields.flexible = version >= _FIRST_FLEXIBLE
    return version


def offset_key(group_id: str, topic: str, partition: int) -> bytes:
    return FieldWriter().int16(1).string(group_id).string(topic).int32(partition).done()


def offset_record(group_id: str, topic: str, partition: int, committed: CommittedOffset) -> GroupRecord:
    return offset_key(group_id, topic, partition), _offset_value(committed)


def offset_tombstone(group_id: str, topic: str, partition: int) -> GroupRecord:
    return offset_key(group_id, topic, partition), None


def _offset_value(committed: CommittedOffset) -> bytes:
    """Encode in version 4, or in version 1 if the client set an expiry, which only that version has."""
    if committed.expire_timestamp_ms is not None:
        old = FieldWriter().int16(1).int64(committed.offset).string(committed.metadata)
        return old.int64(committed.commit_timestamp_ms).int64(committed.expire_timestamp_ms).done()
    fields = FieldWriter(flexible=True).int16(4).int64(committed.offset).int32(committed.leader_epoch)
    fields.string(committed.metadata).int64(committed.commit_timestamp_ms)
    topic_id = committed.topic_id
    return fields.tagged_fields({} if topic_id is None else {_TOPIC_ID_TAG: topic_id.bytes}).done()


def group_key(group_id: str) -> bytes:
    return FieldWriter().int16(GROUP_KEY_TYPE).string(group_id).done()


def group_record(group_id: str, group: StoredGroup) -> GroupRecord:
    since = _NO_TIMESTAMP if group.state_timestamp_ms is None else group.state_timestamp_ms
    fields = FieldWriter().int16(_GROUP_VALUE_VERSION).string(group.protocol_type).int32(group.generation)
    fields.string(group.protocol_name).string(group.leader).int64(since).count(len(group.members))
    for member in group.members:
        fields.string(member.member_id).string(member.group_instance_id)
        fields.string(member.client_id).string(member.client_host)
        fields.int32(member.rebalance_timeout_ms).int32(member.session_timeout_ms)
        fields.byte_string(member.subscription).byte_string(member.assignment)
    return group_key(group_id), fields.done()


def group_tombstone(group_id: str) -> GroupRecord:
    return group_key(group_id), None

"""The state of a KIP-848 consumer group: members, epochs, target and current assignments. Pure.

The state is a function of the group's records: only `apply` changes it, while the broker runs and when it starts.
Compaction can leave the records of a group in any order, so each of them can create a member.

| epoch | rises when |
|---|---|
| group epoch (`epoch`) | a change requires a new target assignment |
| `assignment_epoch` | the target assignment for a group epoch has been computed |
| member epoch | a member is reconciled with the target assignment |

Members may use the classic protocol while the group is upgraded or downgraded: consumer_classic_members.py.
"""

from __future__ import annotations

import hashlib
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from stratalog.broker.groups.consumer_member import ConsumerMember
from stratalog.broker.groups.consumer_records import (
    Assignment,
    ConsumerGroupMetadata,
    ConsumerRecord,
    CurrentMember,
    MemberMetadata,
    PartitionMetadata,
    RecordType,
    RegularExpression,
    TargetMember,
    TargetMetadata,
    Tombstone,
    decode,
    encode,
)
from stratalog.broker.groups.group import GroupKind, GroupRecord, GroupTable
from stratalog.broker.state_budget import OBJECT_BYTES, text_bytes
from stratalog.protocol.error_codes import ErrorCode

_FIRST_COMMIT_VERSION_WITH_EPOCH = 9
_GROUP_BYTES = 2_000  # for a group without members
_TARGET_BYTES = 300  # for a member's target, without its partitions
_REGEX_BYTES = 1_000  # for a regular expression, without its text and the topics that it matches
_PARTITION_BYTES = 40  # in a set


class AssignableTopic(Protocol):
    """The part of a topic that groups need."""

    @property
    def name(self) -> str: ...

    @property
    def id(self) -> uuid.UUID: ...

    @property
    def partition_count(self) -> int: ...


class GroupTopics(Protocol):
    """The existing topics. Implemented by the broker's TopicRegistry."""

    def get(self, name: str) -> AssignableTopic | None: ...

    def by_id(self, topic_id: uuid.UUID) -> AssignableTopic | None: ...

    def all(self) -> Iterable[AssignableTopic]: ...


class ConsumerGroup:
    """A KIP-848 group. This is a `Group`."""

    def __init__(self, group_id: str) -> None:
        self._group_id = group_id
        self.epoch = 0
        self.metadata_hash = 0
        self.assignment_epoch = 0
        self.members: dict[str, ConsumerMember] = {}
        self.target: dict[str, Assignment] = {}
        self.resolved: dict[str, tuple[str, ...]] = {}  # topics by regular expression
        self.has_partition_metadata = False  # True if there is a record of Kafka 4.0 to delete
        self.topics_seen = -1  # the version of the topics that the hash is for; a restart resets it
        self.patterns_seen: Mapping[str, int] = {}  # topics version of each match; reset, too
        self._static: dict[str, str] = {}  # member id by instance id
        self._owner: dict[tuple[uuid.UUID, int], str] = {}
        self._topic_names: frozenset[str] | None = None
        self.state_bytes = _GROUP_BYTES + 4 * text_bytes(group_id)

    # The interface of every group

    @property
    def group_id(self) -> str:
        return self._group_id

    @property
    def kind(self) -> GroupKind:
        return "consumer"

    @property
    def protocol_type(self) -> str:
        return "consumer"

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def state_name(self) -> str:
        if not self.members:
            return "Empty"
        if self.epoch > self.assignment_epoch:
            return "Assigning"
        if all(member.is_reconciled_to(self.assignment_epoch) for member in self.members.values()):
            return "Stable"
        return "Reconciling"

    def check_commit(
        self,
        member_id: str,
        generation_or_epoch: int,
        group_instance_id: str | None,
        api_version: int,
        *,
        in_transaction: bool = False,
    ) -> ErrorCode:
        if generation_or_epoch < 0 and not self.members:
            return ErrorCode.none  # an admin client, or a consumer that assigns its partitions itself
        if in_transaction and generation_or_epoch < 0 and not member_id and group_instance_id is None:
            return ErrorCode.none  # in a transaction, the request may name no member
        if member_id not in self.members:
            return ErrorCode.unknown_member_id
        is_classic = self.members[member_id].classic is not None
        if in_transaction or is_classic:
            is_current = self._check_epoch(member_id, generation_or_epoch) is ErrorCode.none
            return ErrorCode.none if is_current else ErrorCode.illegal_generation
        if api_version < _FIRST_COMMIT_VERSION_WITH_EPOCH:
            return ErrorCode.unsupported_version
        return self._check_epoch(member_id, generation_or_epoch)

    def check_fetch(self, member_id: str | None, member_epoch: int) -> ErrorCode:
        if member_id is None and member_epoch < 0:
            return ErrorCode.none
        if member_id is None or member_id not in self.members:
            return ErrorCode.unknown_member_id
        return self._check_epoch(member_id, member_epoch)

    def _check_epoch(self, member_id: str, epoch: int) -> ErrorCode:
        return ErrorCode.none if self.members[member_id].member_epoch == epoch else ErrorCode.stale_member_epoch

    def check_offset_delete(self) -> ErrorCode:
        return ErrorCode.none

    def subscribed_to(self, topic: str) -> bool:
        return topic in self.topic_names()

    def offset_expires_since(self, commit_timestamp_ms: int) -> int | None:
        return commit_timestamp_ms

    def tombstones(self) -> list[GroupRecord]:
        members = sorted(self.members)
        targets = sorted(self.target)
        records = [Tombstone(RecordType.CURRENT_MEMBER, self.group_id, member_id) for member_id in members]
        records += [Tombstone(RecordType.TARGET_MEMBER, self.group_id, member_id) for member_id in targets]
        records += [Tombstone(RecordType.TARGET_METADATA, self.group_id)]
        records += [Tombstone(RecordType.MEMBER_METADATA, self.group_id, member_id) for member_id in members]
        records += [Tombstone(RecordType.REGULAR_EXPRESSION, self.group_id, regex) for regex in sorted(self.resolved)]
        if self.has_partition_metadata:
            records.append(Tombstone(RecordType.PARTITION_METADATA, self.group_id))
        records.append(Tombstone(RecordType.GROUP_METADATA, self.group_id))
        return [encode(record) for record in records]

    # Lookups for heartbeats

    def static_member(self, instance_id: str) -> ConsumerMember | None:
        member_id = self._static.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def is_classic_without(self, leaving: Collection[str]) -> bool:
        """Return whether members other than these exist, and all of them use the classic protocol."""
        rest = [member for member_id, member in self.members.items() if member_id not in leaving]
        return bool(rest) and all(member.classic is not None for member in rest)

    def owner_of(self, topic_id: uuid.UUID, partition: int) -> str | None:
        """Return the member that may be reading the partition: it owns it, or has not confirmed yet that it revoked
        it."""
        return self._owner.get((topic_id, partition))

    def members_with_regex(self, regex: str) -> int:
        return sum(member.subscribed_topic_regex == regex for member in self.members.values())

    def regexes(self) -> set[str]:
        return {member.subscribed_topic_regex for member in self.members.values() if member.subscribed_topic_regex}

    def topic_names_of(self, member: ConsumerMember) -> frozenset[str]:
        """Return the topics to which the member subscribes, by name or by pattern. Topics may be missing."""
        return frozenset(member.subscribed_topic_names).union(self.resolved.get(member.subscribed_topic_regex, ()))

    def topic_ids_of(self, member: ConsumerMember, topics: GroupTopics) -> frozenset[uuid.UUID]:
        existing = (topics.get(name) for name in self.topic_names_of(member))
        return frozenset(topic.id for topic in existing if topic is not None)

    def topic_names(self) -> frozenset[str]:
        """Return the topics to which any member subscribes."""
        if self._topic_names is None:
            distinct = {
                (member.subscribed_topic_names, member.subscribed_topic_regex): member
                for member in self.members.values()
            }
            self._topic_names = frozenset().union(*(self.topic_names_of(member) for member in distinct.values()))
        return self._topic_names

    def preferred_assignor(self, configured: tuple[str, ...]) -> str:
        """Return the assignor that most members request. If they request none, return the first configured one."""
        votes = Counter(
            member.server_assignor for member in self.members.values() if member.server_assignor in configured
        )
        names = sorted(votes, key=lambda name: (-votes[name], configured.index(str(name))))
        return str(names[0]) if names else configured[0]

    # Changes

    def copy(self) -> ConsumerGroup:
        """Return a copy that can be changed independently. It shares members and assignments, which never change."""
        twin = ConsumerGroup(self._group_id)
        twin.__dict__.update(self.__dict__)
        for name in ("members", "target", "resolved", "_static", "_owner"):
            setattr(twin, name, dict(getattr(self, name)))
        return twin

    def apply(self, record: ConsumerRecord) -> None:
        touched = record.name if isinstance(record, Tombstone) else _name_of(record)
        before = self._bytes_of(touched)
        self._apply(record)
        self.state_bytes += self._bytes_of(touched) - before

    def _bytes_of(self, name: str) -> int:
        """Return the memory of everything that is stored under a member id or a regular expression."""
        counted = 0
        if (member := self.members.get(name)) is not None:
            counted += member.state_bytes
        if (target := self.target.get(name)) is not None:
            counted += _TARGET_BYTES + text_bytes(name) + _assignment_bytes(target)
        if (topics := self.resolved.get(name)) is not None:
            counted += _REGEX_BYTES + 2 * text_bytes(name)
            counted += sum(OBJECT_BYTES + text_bytes(topic) for topic in topics)
        return counted

    def _apply(self, record: ConsumerRecord) -> None:
        match record:
            case ConsumerGroupMetadata():
                self.epoch = record.epoch
                self.metadata_hash = record.metadata_hash
            case PartitionMetadata():
                self.has_partition_metadata = True
            case MemberMetadata():
                self._topic_names = None
                self._forget_instance(self._member(record.member_id))
                self.members[record.member_id] = self._member(record.member_id).with_metadata(record)
                if record.instance_id is not None:
                    self._static[record.instance_id] = record.member_id
            case TargetMetadata():
                self.assignment_epoch = record.assignment_epoch
            case TargetMember():
                self.target[record.member_id] = record.partitions
            case CurrentMember():
                self._set_current(self._member(record.member_id).with_current(record))
            case RegularExpression():
                self._topic_names = None
                self.resolved[record.pattern] = record.topics
            case Tombstone():
                self._delete(record.type, record.name)

    def _delete(self, record_type: RecordType, name: str) -> None:
        self._topic_names = None
        member = self.members.get(name)
        match record_type:
            case RecordType.PARTITION_METADATA:
                self.has_partition_metadata = False
            case RecordType.TARGET_METADATA:
                self.assignment_epoch = 0
            case RecordType.TARGET_MEMBER:
                self.target.pop(name, None)
            case RecordType.REGULAR_EXPRESSION:
                self.resolved.pop(name, None)
            case RecordType.CURRENT_MEMBER if member is not None:
                self._set_current(ConsumerMember(name).with_metadata(member.metadata_record(self._group_id)))
            case RecordType.MEMBER_METADATA if member is not None:
                self._release(member)
                self._forget_instance(member)
                del self.members[name]
            case _:
                pass  # it did not exist

    def _forget_instance(self, member: ConsumerMember) -> None:
        if member.instance_id is not None and self._static.get(member.instance_id) == member.member_id:
            del self._static[member.instance_id]

    def _member(self, member_id: str) -> ConsumerMember:
        return self.members.get(member_id) or ConsumerMember(member_id)

    def _set_current(self, member: ConsumerMember) -> None:
        before = self.members.get(member.member_id)
        if before is not None:
            self._release(before)
        self.members[member.member_id] = member
        for partition in _partitions(member):
            self._owner[partition] = member.member_id

    def _release(self, member: ConsumerMember) -> None:
        for partition in _partitions(member):
            if self._owner.get(partition) == member.member_id:
                del self._owner[partition]


def metadata_hash(names: Iterable[str], topics: GroupTopics) -> int:
    """Return a number that changes when one of these topics is created, deleted, created again or gets more partitions.
    Return 0 if none of them exists.

    Kafka uses another hash. After a move between the two, the hashes differ, and the group is assigned once more.
    """
    digest = hashlib.blake2b(digest_size=8)
    any_exists = False
    for name in sorted(names):
        topic = topics.get(name)
        if topic is not None:
            any_exists = True
            digest.update(f"{topic.name}\0{topic.id.hex}\0{topic.partition_count}\0".encode())
    return int.from_bytes(digest.digest(), "big", signed=True) if any_exists else 0


def partition_counts(names: Iterable[str], topics: GroupTopics) -> Mapping[uuid.UUID, int]:
    existing = (topics.get(name) for name in names)
    return {topic.id: topic.partition_count for topic in existing if topic is not None}


def replay(table: GroupTable, key: bytes, value: bytes | None) -> None:
    """Apply one record of `__consumer_offsets` to the existing groups. Raises GroupRecordError."""
    record = decode(key, value)
    group = table.group(record.group_id)
    if isinstance(record, Tombstone):
        if not isinstance(group, ConsumerGroup):
            return
        if record.type is RecordType.GROUP_METADATA:
            table.remove(record.group_id)
            return
    elif not isinstance(group, ConsumerGroup):
        # A classic group of this id was empty when this record was written, and its tombstone may be compacted away.
        group = ConsumerGroup(record.group_id)
        table.put(group)
    group.apply(record)


def _name_of(record: ConsumerRecord) -> str:
    match record:
        case MemberMetadata() | TargetMember() | CurrentMember():
            return record.member_id
        case RegularExpression():
            return record.pattern
        case _:
            return ""


def _assignment_bytes(assignment: Assignment) -> int:
    return sum(OBJECT_BYTES + _PARTITION_BYTES * len(partitions) for partitions in assignment.values())


def _partitions(member: ConsumerMember) -> Iterable[tuple[uuid.UUID, int]]:
    for assignment in (member.assigned, member.pending_revocation):
        for topic_id, partitions in assignment.items():
            for partition in partitions:
                yield topic_id, partition

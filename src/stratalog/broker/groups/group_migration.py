"""Turns a running classic group into a KIP-848 group, and back, by records: `group.consumer.migration.policy`. Pure.

Upgrade: when the first KIP-848 member joins a classic group of consumers. The members keep their ids, their assignment
and their generation, which becomes the group's epoch; they go on with the classic protocol.

Downgrade: when the last KIP-848 member has gone. The epoch becomes the generation, so members that are at that epoch
can commit once more before they rejoin; see `is_due`. The record has no leader: that tells the broker, also after a
restart, that a rebalance must follow, which gives the group a leader and the partitions of who left to the others.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from enum import StrEnum

from stratalog.broker.groups.classic_group import ClassicGroup
from stratalog.broker.groups.classic_members import ClassicMember, ClassicMembers
from stratalog.broker.groups.config import GroupConfig
from stratalog.broker.groups.consumer_classic_members import with_ids, with_names
from stratalog.broker.groups.consumer_group import ConsumerGroup, GroupTopics, metadata_hash
from stratalog.broker.groups.consumer_member import ConsumerMember
from stratalog.broker.groups.consumer_protocol import (
    PROTOCOL_TYPE,
    encode_assignment,
    parse_assignment,
    parse_subscription,
)
from stratalog.broker.groups.consumer_records import (
    ClassicMemberMetadata,
    ConsumerGroupMetadata,
    ConsumerRecord,
    TargetMember,
    TargetMetadata,
)
from stratalog.broker.groups.consumer_requests import GroupRefusedError
from stratalog.broker.groups.offset_records import StoredGroup
from stratalog.errors import GroupRecordError
from stratalog.protocol.error_codes import ErrorCode

# Of clients; librdkafka's last one has data of its own in assignments, for itself only.
_KNOWN_ASSIGNORS = ("range", "roundrobin", "sticky", "cooperative-sticky")


class Policy(StrEnum):
    DISABLED = "disabled"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    BIDIRECTIONAL = "bidirectional"

    @property
    def may_upgrade(self) -> bool:
        return self in (Policy.UPGRADE, Policy.BIDIRECTIONAL)

    @property
    def may_downgrade(self) -> bool:
        return self in (Policy.DOWNGRADE, Policy.BIDIRECTIONAL)


# Upgrade


def upgrade(
    group: ClassicGroup, config: GroupConfig, topics: GroupTopics
) -> tuple[ConsumerGroup, list[ConsumerRecord]]:
    """The group as a KIP-848 group, and its records. Raises GroupRefusedError: it stays a classic one."""
    members = group.members
    if not Policy(config.group_consumer_migration_policy).may_upgrade:
        raise _refused(group, "online upgrade is disabled by group.consumer.migration.policy")
    if group.protocol_type != PROTOCOL_TYPE:
        raise _refused(group, "the group does not use the consumer embedded protocol")
    if len(members) > config.group_consumer_max_size:
        raise _refused(group, "the group size exceeds the consumer group maximum size, group.consumer.max.size")
    try:
        upgraded = _all_upgraded(group, topics)
    except GroupRecordError as error:
        raise _refused(group, f"the embedded consumer protocol is malformed: {error}") from error
    names = {name for one in upgraded for name in one.subscribed_topic_names}
    group_id, epoch = group.group_id, group.generation
    records: list[ConsumerRecord] = [one.metadata_record(group_id) for one in upgraded]
    records.append(ConsumerGroupMetadata(group_id, epoch, metadata_hash(names, topics)))
    records += [TargetMember(group_id, one.member_id, one.assigned) for one in upgraded]
    records.append(TargetMetadata(group_id, epoch))
    records += [one.current_record(group_id) for one in upgraded]
    result = ConsumerGroup(group_id)
    for record in records:
        result.apply(record)
    return result, records


def _all_upgraded(group: ClassicGroup, topics: GroupTopics) -> list[ConsumerMember]:
    """What a member said it owns when it last joined is still its own, unless another has it. It may be reading that:
    a cooperative member that has not heard yet what it must give up, or one whose assignment a rebalance has emptied.
    What it does not read any more it gives up when it rejoins, which it is told to do."""
    upgraded = [_upgraded(one, group.generation, topics) for one in group.members]
    taken = {(topic_id, index) for one in upgraded for topic_id, indexes in one.assigned.items() for index in indexes}
    result = []
    for one in upgraded:
        assert one.classic is not None
        mine = dict(one.assigned)
        for topic_id, indexes in with_ids(parse_subscription(one.classic.protocols[0][1]).owned, topics).items():
            free = frozenset(index for index in indexes if (topic_id, index) not in taken)
            taken.update((topic_id, index) for index in free)
            if free:
                mine[topic_id] = mine.get(topic_id, frozenset()) | free
        result.append(replace(one, assigned=mine))
    return result


def _upgraded(one: ClassicMember, epoch: int, topics: GroupTopics) -> ConsumerMember:
    protocols = tuple(one.protocols.items())
    subscription = parse_subscription(protocols[0][1])
    assignment = parse_assignment(one.assignment)
    if assignment.has_user_data and protocols[0][0] not in _KNOWN_ASSIGNORS:
        raise GroupRecordError(f"assignor {protocols[0][0]!r} gives members data of its own, which would be lost")
    return ConsumerMember(
        one.member_id,
        instance_id=one.group_instance_id,
        rack_id=subscription.rack_id,
        client_id=one.client_id,
        client_host=one.client_host,
        rebalance_timeout_ms=one.rebalance_timeout_ms,
        subscribed_topic_names=subscription.topics,
        classic=ClassicMemberMetadata(one.session_timeout_ms, protocols),
        member_epoch=epoch,
        previous_member_epoch=epoch,
        assigned=with_ids(assignment.partitions, topics),
    )


def _refused(group: ClassicGroup, reason: str) -> GroupRefusedError:
    return GroupRefusedError(
        ErrorCode.group_id_not_found,
        f"Cannot upgrade classic group {group.group_id} to consumer group because {reason}.",
    )


# Downgrade


def is_due(group: ConsumerGroup, leaving: Collection[str], config: GroupConfig) -> bool:
    """Whether the group without these members becomes a classic one now.

    Kafka does it as soon as the rest are classic members. A member that is behind the group's epoch would then be
    fenced by its generation, and read again what it could not commit. So it waits here until all have rejoined.
    """
    if not Policy(config.group_consumer_migration_policy).may_downgrade or not group.is_classic_without(leaving):
        return False
    rest = [member for member_id, member in group.members.items() if member_id not in leaving]
    return len(rest) <= config.group_max_size and all(member.member_epoch == group.epoch for member in rest)


def downgrade(group: ConsumerGroup, leaving: Collection[str], now_ms: int, topics: GroupTopics) -> StoredGroup:
    """The group without these members as a classic one. Only where it is due."""
    members = ClassicMembers()
    versions = {}
    for member in group.members.values():
        if member.member_id in leaving or member.classic is None:
            continue
        members.add(_downgraded(member))
        versions[member.member_id] = parse_subscription(member.classic.protocols[0][1]).version
    protocol_name = members.select_protocol()
    stored = [
        one.stored(
            protocol_name,
            encode_assignment(with_names(group.members[one.member_id].assigned, topics), versions[one.member_id]),
        )
        for one in members
    ]
    return StoredGroup(PROTOCOL_TYPE, group.epoch, protocol_name, None, now_ms, tuple(stored))


def _downgraded(member: ConsumerMember) -> ClassicMember:
    assert member.classic is not None
    return ClassicMember(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        member.classic.session_timeout_ms,
        member.rebalance_timeout_ms,
        dict(member.classic.protocols),
    )

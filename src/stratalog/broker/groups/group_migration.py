"""Turns a running classic group into a KIP-848 group, and back, by records: `group.consumer.migration.policy`. Pure.

| | upgrade | downgrade |
|---|---|---|
| happens when | the first KIP-848 member joins a classic group of consumers | the last KIP-848 member has left |
| members keep | their ids, assignments and the classic protocol | their ids and assignments |
| epochs | the generation becomes the group epoch | the group epoch becomes the generation |

After a downgrade, members whose epoch is the generation can still commit before they rejoin; see `is_due`. The record
of the downgraded group has no leader. This marks, also after a restart, that a rebalance must follow. It elects a
leader, and gives the partitions of the members that left to the others.
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

# Assignors of clients that can do without the user data of their assignments, which librdkafka's last one has.
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
    """Return the group as a KIP-848 group, and its records. On GroupRefusedError it stays a classic group."""
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
    names = {name for member in upgraded for name in member.subscribed_topic_names}
    group_id, epoch = group.group_id, group.generation
    records: list[ConsumerRecord] = [member.metadata_record(group_id) for member in upgraded]
    records.append(ConsumerGroupMetadata(group_id, epoch, metadata_hash(names, topics)))
    records += [TargetMember(group_id, member.member_id, member.assigned) for member in upgraded]
    records.append(TargetMetadata(group_id, epoch))
    records += [member.current_record(group_id) for member in upgraded]
    result = ConsumerGroup(group_id)
    for record in records:
        result.apply(record)
    return result, records


def _all_upgraded(group: ClassicGroup, topics: GroupTopics) -> list[ConsumerMember]:
    """Return the members as KIP-848 members.

    Partitions that a member listed as owned when it last joined stay its own, unless another member has them, because
    it may still be reading them: a cooperative member may not know yet what it has to revoke, and a rebalance may have
    emptied its assignment. It has to rejoin, and then revokes what it no longer reads."""
    upgraded = [_upgraded(member, group.generation, topics) for member in group.members]
    taken = {
        (topic_id, index) for member in upgraded for topic_id, indexes in member.assigned.items() for index in indexes
    }
    result = []
    for member in upgraded:
        assert member.classic is not None
        assigned = dict(member.assigned)
        for topic_id, indexes in with_ids(parse_subscription(member.classic.protocols[0][1]).owned, topics).items():
            free = frozenset(index for index in indexes if (topic_id, index) not in taken)
            taken.update((topic_id, index) for index in free)
            if free:
                assigned[topic_id] = assigned.get(topic_id, frozenset()) | free
        result.append(replace(member, assigned=assigned))
    return result


def _upgraded(member: ClassicMember, epoch: int, topics: GroupTopics) -> ConsumerMember:
    protocols = tuple(member.protocols.items())
    subscription = parse_subscription(protocols[0][1])
    assignment = parse_assignment(member.assignment)
    if assignment.has_user_data and protocols[0][0] not in _KNOWN_ASSIGNORS:
        raise GroupRecordError(f"assignor {protocols[0][0]!r} gives members data of its own, which would be lost")
    return ConsumerMember(
        member.member_id,
        instance_id=member.group_instance_id,
        rack_id=subscription.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        subscribed_topic_names=subscription.topics,
        classic=ClassicMemberMetadata(member.session_timeout_ms, protocols),
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
    """Return whether the group becomes a classic one now, without the leaving members.

    Kafka downgrades a group as soon as all other members are classic. A member with an older epoch than the group would
    then be fenced by its generation, and could not commit what it has read. So this waits until all have rejoined.
    """
    if not Policy(config.group_consumer_migration_policy).may_downgrade or not group.is_classic_without(leaving):
        return False
    rest = [member for member_id, member in group.members.items() if member_id not in leaving]
    return len(rest) <= config.group_max_size and all(member.member_epoch == group.epoch for member in rest)


def downgrade(group: ConsumerGroup, leaving: Collection[str], now_ms: int, topics: GroupTopics) -> StoredGroup:
    """Return the group as a classic one, without the leaving members. Call this only if the downgrade `is_due`."""
    members = ClassicMembers()
    versions = {}
    for member in group.members.values():
        if member.member_id in leaving or member.classic is None:
            continue
        members.add(_downgraded(member))
        versions[member.member_id] = parse_subscription(member.classic.protocols[0][1]).version
    protocol_name = members.select_protocol()
    stored = [
        member.stored(
            protocol_name,
            encode_assignment(with_names(group.members[member.member_id].assigned, topics), versions[member.member_id]),
        )
        for member in members
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

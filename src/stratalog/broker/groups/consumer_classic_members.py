"""Members of a KIP-848 group that still use the classic protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup. Pure.

A group has both kinds of members while its consumers are upgraded or downgraded, one after the other. The broker
assigns the partitions, and no member is the leader. For a classic member:

- its generation is its member epoch;
- Heartbeat returns REBALANCE_IN_PROGRESS if it has to rejoin (`must_rejoin`);
- JoinGroup takes it one step further towards its target, and returns at once. The partitions that its subscription
  lists as owned are those that it has not revoked yet. A subscription without such a list owns nothing;
- SyncGroup returns its partitions.

The rules are those of Apache Kafka's group coordinator.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace

from stratalog.broker.groups.classic_messages import (
    JoinRequest,
    JoinResponse,
    MemberIdentity,
    SyncRequest,
    SyncResponse,
)
from stratalog.broker.groups.consumer_group import ConsumerGroup, GroupTopics
from stratalog.broker.groups.consumer_heartbeat import (
    GroupChange,
    HeartbeatContext,
    new_member,
    reconcile_member,
    replace_static_member,
    update_epoch,
    update_regex,
    update_target,
)
from stratalog.broker.groups.consumer_member import ConsumerMember
from stratalog.broker.groups.consumer_protocol import (
    PROTOCOL_TYPE,
    ConsumerSubscription,
    NamedPartitions,
    encode_assignment,
    parse_subscription,
)
from stratalog.broker.groups.consumer_records import Assignment, ClassicMemberMetadata, MemberState
from stratalog.broker.groups.consumer_requests import GroupRefusedError
from stratalog.errors import GroupRecordError
from stratalog.protocol.error_codes import ErrorCode

MakeMemberId = Callable[[str], str]


def join(
    change: GroupChange, request: JoinRequest, context: HeartbeatContext, make_member_id: MakeMemberId
) -> JoinResponse:
    """Handle JoinGroup. Raises GroupRefusedError with the error to respond with."""
    member_id = request.member_id or make_member_id(request.group_instance_id or request.client_id)
    subscription = _check_protocols(change.group, request, member_id)
    if not request.member_id and request.needs_known_member_id and request.group_instance_id is None:
        return JoinResponse(ErrorCode.member_id_required, member_id)
    if subscription.owned and request.member_id not in change.group.members:
        raise GroupRefusedError(ErrorCode.unknown_member_id)  # it was removed: others may own those partitions
    before = _find_member(change, request, member_id, context.max_size)
    member = replace(
        before,
        instance_id=before.instance_id if request.group_instance_id is None else request.group_instance_id,
        rack_id=before.rack_id if subscription.rack_id is None else subscription.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        subscribed_topic_names=subscription.topics,
        subscribed_topic_regex="",
        server_assignor=None,
        classic=ClassicMemberMetadata(request.session_timeout_ms, tuple(request.protocols.items())),
    )
    if member_id not in change.group.members or member != before:
        change.write(member.metadata_record(change.group.group_id))
    regex_changed = update_regex(change, before, member, context)
    changed = member.subscribed_topic_names != before.subscribed_topic_names or regex_changed
    update_epoch(change, context, bump=changed)
    if change.group.epoch > change.group.assignment_epoch:
        update_target(change, context)
    owned = with_ids(subscription.owned, context.topics)
    reconcile_member(change, member_id, owned, context, subscription_changed=changed)
    after = change.group.members[member_id]
    return JoinResponse(
        ErrorCode.none, member_id, after.member_epoch, PROTOCOL_TYPE, protocol_name=next(iter(request.protocols))
    )


def _check_protocols(group: ConsumerGroup, request: JoinRequest, member_id: str) -> ConsumerSubscription:
    """Return the member's subscription. All classic members must share a protocol, as the group may become classic
    again. Raises GroupRefusedError."""
    common = set(request.protocols)
    replaced = None if request.group_instance_id is None else group.static_member(request.group_instance_id)
    for member in group.members.values():
        if member.classic is not None and member.member_id != member_id and member is not replaced:
            common.intersection_update(name for name, _ in member.classic.protocols)
    if request.protocol_type != PROTOCOL_TYPE or not common:
        raise GroupRefusedError(ErrorCode.inconsistent_group_protocol)
    try:
        return parse_subscription(next(iter(request.protocols.values())))
    except GroupRecordError as error:
        raise GroupRefusedError(ErrorCode.inconsistent_group_protocol, str(error)) from error


def _find_member(change: GroupChange, request: JoinRequest, member_id: str, max_size: int) -> ConsumerMember:
    group = change.group
    if request.group_instance_id is None:
        return group.members.get(member_id) or new_member(group, member_id, max_size)
    if request.member_id:
        return find(group, member_id, request.group_instance_id)
    existing = group.static_member(request.group_instance_id)
    if existing is None:
        return new_member(group, member_id, max_size)
    return replace_static_member(change, existing, member_id)


def find(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerMember:
    """Return a member, by its instance id if the request has one. Raises GroupRefusedError."""
    member = group.members.get(member_id) if instance_id is None else group.static_member(instance_id)
    if member is None:
        raise GroupRefusedError(ErrorCode.unknown_member_id)
    if member.member_id != member_id:
        raise GroupRefusedError(ErrorCode.fenced_instance_id)
    return member


def find_classic(group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int) -> ConsumerMember:
    """Return a member that uses the classic protocol and whose epoch is this generation. Raises GroupRefusedError."""
    member = find(group, member_id, instance_id)
    if member.classic is None:
        raise GroupRefusedError(ErrorCode.unknown_member_id)
    if member.member_epoch != generation:
        raise GroupRefusedError(ErrorCode.illegal_generation)
    return member


def find_leaving(group: ConsumerGroup, identity: MemberIdentity) -> ConsumerMember:
    """Return the classic member of a LeaveGroup request. Admin clients name a static member by its instance id alone.
    Raises GroupRefusedError."""
    if identity.group_instance_id is not None and not identity.member_id:
        member = group.static_member(identity.group_instance_id)
        if member is None:
            raise GroupRefusedError(ErrorCode.unknown_member_id)
    else:
        member = find(group, identity.member_id, identity.group_instance_id)
    if member.classic is None:
        raise GroupRefusedError(ErrorCode.unknown_member_id)
    return member


def must_rejoin(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Return whether the member has to rejoin: the group has a newer epoch, the member has to revoke partitions, or all
    partitions that it still waits for are free."""
    if member.member_epoch < group.epoch or member.state is MemberState.UNREVOKED_PARTITIONS:
        return True
    return member.state is MemberState.UNRELEASED_PARTITIONS and not _waits_for_others(group, member)


def _waits_for_others(group: ConsumerGroup, member: ConsumerMember) -> bool:
    return any(
        group.owner_of(topic_id, partition) not in (None, member.member_id)
        for topic_id, partitions in group.target.get(member.member_id, {}).items()
        for partition in partitions
    )


def sync(group: ConsumerGroup, request: SyncRequest, topics: GroupTopics) -> SyncResponse:
    """Handle SyncGroup. Raises GroupRefusedError with the error to respond with."""
    member = find_classic(group, request.member_id, request.group_instance_id, request.generation)
    assert member.classic is not None
    name, metadata = member.classic.protocols[0]
    if request.protocol_type not in (None, PROTOCOL_TYPE) or request.protocol_name not in (None, name):
        raise GroupRefusedError(ErrorCode.inconsistent_group_protocol)
    if group.epoch > member.member_epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
        raise GroupRefusedError(ErrorCode.rebalance_in_progress)
    assignment = encode_assignment(with_names(member.assigned, topics), parse_subscription(metadata).version)
    return SyncResponse(ErrorCode.none, assignment, PROTOCOL_TYPE, name)


def with_ids(partitions: NamedPartitions, topics: GroupTopics) -> Assignment:
    """Return the partitions by topic id, without missing topics."""
    by_id: dict[uuid.UUID, frozenset[int]] = {}
    for name, indexes in partitions.items():
        topic = topics.get(name)
        if topic is not None and indexes:
            by_id[topic.id] = indexes
    return by_id


def with_names(assignment: Assignment, topics: GroupTopics) -> NamedPartitions:
    """Return the partitions by topic name, without missing topics."""
    by_name = {}
    for topic_id, partitions in assignment.items():
        topic = topics.by_id(topic_id)
        if topic is not None:
            by_name[topic.name] = partitions
    return by_name

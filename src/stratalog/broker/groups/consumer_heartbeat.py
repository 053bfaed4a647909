"""Computes the change that a heartbeat makes to a KIP-848 group, as records. Pure.

Nothing here changes the group itself. A `GroupChange` has a copy of the group, which is made for the first record, and
the records that lead to it. The coordinator appends the records, and only then applies them to the group. So the state
of a group is always the result of its records, and an append that fails has changed nothing.

Differences from Kafka 4.1, which help a member that restarts:

- A known member may join again with epoch 0. Kafka 4.2 allows this too; 4.1 fences the member until its session ends.
- A static member may also join again under its old member id.
- A static member that rejoins a full group does not count as an additional member.

Patterns are not matched here: see pattern_resolution.py.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from stratalog.broker.groups.assignors import ASSIGNORS, Subscriber
from stratalog.broker.groups.consumer_group import ConsumerGroup, GroupTopics, metadata_hash, partition_counts
from stratalog.broker.groups.consumer_member import (
    JOIN_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerMember,
    Goal,
    is_subset,
    reconcile,
)
from stratalog.broker.groups.consumer_records import (
    Assignment,
    ConsumerGroupMetadata,
    ConsumerRecord,
    MemberState,
    RecordType,
    RegularExpression,
    TargetMember,
    TargetMetadata,
    Tombstone,
)
from stratalog.broker.groups.consumer_requests import GroupRefusedError, Heartbeat, HeartbeatResponse
from stratalog.broker.groups.topic_pattern import TopicPatternError, compile_pattern
from stratalog.protocol.error_codes import ErrorCode


@dataclass(frozen=True, slots=True)
class HeartbeatContext:
    """The inputs of a heartbeat besides the group and the request."""

    topics: GroupTopics
    topics_version: int  # rises with each change of the topics
    name_characters: Callable[[], int]  # the size of all topic names, with which a pattern is matched
    assignors: tuple[str, ...]
    max_size: int
    now_ms: int


class GroupChange:
    """A group as it will be, and the records that lead to that state."""

    def __init__(self, group: ConsumerGroup) -> None:
        self.group = group
        self.records: list[ConsumerRecord] = []

    def write(self, record: ConsumerRecord) -> None:
        if not self.records:
            self.group = self.group.copy()
        self.records.append(record)
        self.group.apply(record)


def heartbeat(change: GroupChange, request: Heartbeat, context: HeartbeatContext) -> HeartbeatResponse:
    """Handle a member that joins, that is alive, or that has revoked partitions. Raises GroupRefusedError."""
    before = _find_member(change, request, context.max_size)
    member = _update(before, request)
    if member.member_id not in change.group.members or member != before:
        change.write(member.metadata_record(change.group.group_id))
    names_changed = member.subscribed_topic_names != before.subscribed_topic_names
    regex_changed = update_regex(change, before, member, context)
    # A pattern that is not resolved yet raises the group epoch when it is resolved.
    is_resolved = not member.subscribed_topic_regex or member.subscribed_topic_regex in change.group.resolved
    update_epoch(change, context, bump=names_changed or (regex_changed and is_resolved))
    if change.group.epoch > change.group.assignment_epoch:
        update_target(change, context)
    subscription_changed = names_changed or regex_changed
    reconcile_member(change, member.member_id, request.owned, context, subscription_changed=subscription_changed)
    after = change.group.members[member.member_id]
    is_sent = request.member_epoch == JOIN_EPOCH or request.is_full or after.assigned != before.assigned
    return HeartbeatResponse(after.member_id, after.member_epoch, after.assigned if is_sent else None)


def leave(change: GroupChange, request: Heartbeat, context: HeartbeatContext) -> HeartbeatResponse:
    """Remove a member that leaves. A static member may leave with STATIC_LEAVE_EPOCH: it keeps its partitions until its
    session ends. Raises GroupRefusedError."""
    group = change.group
    if request.instance_id is None:
        member = group.members.get(request.member_id)
        if member is None:
            raise _unknown_member(request, group)
    else:
        member = _static_member(group, request)
    if request.member_epoch == STATIC_LEAVE_EPOCH:
        away = replace(member, member_epoch=STATIC_LEAVE_EPOCH, pending_revocation={})
        change.write(away.current_record(group.group_id))
    else:
        fence(change, member.member_id, context.topics)
    return HeartbeatResponse(request.member_id, request.member_epoch)


def fence(change: GroupChange, member_id: str, topics: GroupTopics) -> None:
    """Remove a member. The other members get its partitions with their next heartbeats."""
    group_id = change.group.group_id
    regex = change.group.members[member_id].subscribed_topic_regex
    _remove(change, member_id)
    if regex and not change.group.members_with_regex(regex):
        change.write(Tombstone(RecordType.REGULAR_EXPRESSION, group_id, regex))
    change.write(
        ConsumerGroupMetadata(group_id, change.group.epoch + 1, metadata_hash(change.group.topic_names(), topics))
    )


def _remove(change: GroupChange, member_id: str) -> None:
    for record_type in (RecordType.CURRENT_MEMBER, RecordType.TARGET_MEMBER, RecordType.MEMBER_METADATA):
        change.write(Tombstone(record_type, change.group.group_id, member_id))


def _find_member(change: GroupChange, request: Heartbeat, max_size: int) -> ConsumerMember:
    group = change.group
    known = group.members.get(request.member_id)
    if request.instance_id is not None:
        return _find_static_member(change, request, max_size)
    if known is None:
        if request.member_epoch != JOIN_EPOCH:
            raise _unknown_member(request, group)
        return new_member(group, request.member_id, max_size)
    _check_epoch(known, request)
    return known


def _find_static_member(change: GroupChange, request: Heartbeat, max_size: int) -> ConsumerMember:
    group = change.group
    instance_id = str(request.instance_id)
    if request.member_epoch != JOIN_EPOCH:
        member = _static_member(group, request)
        _check_epoch(member, request)
        return member
    existing = group.static_member(instance_id)
    if existing is None:
        return group.members.get(request.member_id) or new_member(group, request.member_id, max_size)
    if existing.member_epoch == STATIC_LEAVE_EPOCH or existing.classic is not None:
        # A static member of the classic protocol does not leave when it stops, so the new member replaces it.
        return replace_static_member(change, existing, request.member_id)
    if existing.member_id == request.member_id:
        return existing
    raise GroupRefusedError(
        ErrorCode.unreleased_instance_id,
        f"Static member {request.member_id} with instance id {instance_id} cannot join the group because the "
        f"instance id is owned by {existing.member_id} member.",
    )


def new_member(group: ConsumerGroup, member_id: str, max_size: int) -> ConsumerMember:
    if len(group.members) >= max_size:
        raise GroupRefusedError(
            ErrorCode.group_max_size_reached,
            f"The consumer group has reached its maximum capacity of {max_size} members.",
        )
    return ConsumerMember(member_id)


def replace_static_member(change: GroupChange, existing: ConsumerMember, member_id: str) -> ConsumerMember:
    """Let a static member rejoin, usually under a new member id. It takes over the partitions of the old one."""
    group_id = change.group.group_id
    target = change.group.target.get(existing.member_id, {})
    member = replace(existing, member_id=member_id, member_epoch=0, previous_member_epoch=0)
    _remove(change, existing.member_id)
    change.write(member.metadata_record(group_id))
    change.write(TargetMember(group_id, member_id, target))
    change.write(member.current_record(group_id))
    return member


def _static_member(group: ConsumerGroup, request: Heartbeat) -> ConsumerMember:
    member = group.static_member(str(request.instance_id))
    if member is None:
        raise GroupRefusedError(ErrorCode.unknown_member_id, f"Instance id {request.instance_id} is unknown.")
    if member.member_id != request.member_id:
        raise GroupRefusedError(
            ErrorCode.fenced_instance_id,
            f"Static member {request.member_id} with instance id {request.instance_id} was fenced by member "
            f"{member.member_id}.",
        )
    return member


def _unknown_member(request: Heartbeat, group: ConsumerGroup) -> GroupRefusedError:
    return GroupRefusedError(
        ErrorCode.unknown_member_id, f"Member {request.member_id} is not a member of group {group.group_id}."
    )


def _check_epoch(member: ConsumerMember, request: Heartbeat) -> None:
    if request.member_epoch == JOIN_EPOCH or request.member_epoch == member.member_epoch:
        return
    # The response with the new epoch may have been lost. The member then owns a part of its assignment, and no more.
    is_previous = request.member_epoch == member.previous_member_epoch < member.member_epoch
    if not is_previous or not is_subset(request.owned, member.assigned):
        compared = "greater" if request.member_epoch > member.member_epoch else "smaller"
        raise GroupRefusedError(
            ErrorCode.fenced_member_epoch,
            f"The consumer group member has a {compared} member epoch ({request.member_epoch}) than the one known by "
            f"the group coordinator ({member.member_epoch}). The member must abandon all its partitions and rejoin.",
        )


def _update(member: ConsumerMember, request: Heartbeat) -> ConsumerMember:
    names, regex, timeout = (
        request.subscribed_topic_names,
        request.subscribed_topic_regex,
        request.rebalance_timeout_ms,
    )
    return replace(
        member,
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout == -1 else timeout,
        subscribed_topic_names=member.subscribed_topic_names if names is None else tuple(sorted(set(names))),
        subscribed_topic_regex=member.subscribed_topic_regex if regex is None else regex,
        server_assignor=member.server_assignor if request.server_assignor is None else request.server_assignor,
        classic=None,
    )


def update_regex(
    change: GroupChange, before: ConsumerMember, member: ConsumerMember, context: HeartbeatContext
) -> bool:
    """Handle a new pattern of a member, and return whether the pattern changed. Raises GroupRefusedError."""
    old, new = before.subscribed_topic_regex, member.subscribed_topic_regex
    if old == new:
        return False
    if old and not change.group.members_with_regex(old):
        change.write(Tombstone(RecordType.REGULAR_EXPRESSION, change.group.group_id, old))
    if new:
        try:
            compile_pattern(new).check_work(context.name_characters())
        except TopicPatternError as error:
            raise GroupRefusedError(
                ErrorCode.invalid_regular_expression,
                f"SubscribedTopicRegex `{new:.200}` is not a valid regular expression: {error}.",
            ) from error
    return True


def take_resolved(change: GroupChange, resolved: Mapping[str, tuple[str, ...]], context: HeartbeatContext) -> None:
    """Take over the topics that patterns match. Members get their partitions with later heartbeats."""
    for regex in sorted(change.group.regexes() & resolved.keys()):
        if change.group.resolved.get(regex) != resolved[regex]:
            topics = resolved[regex]
            change.write(RegularExpression(change.group.group_id, regex, topics, version=0, timestamp=context.now_ms))
    if change.records:
        update_epoch(change, context, bump=True)


def update_epoch(change: GroupChange, context: HeartbeatContext, *, bump: bool) -> None:
    """Raise the group epoch if subscriptions have changed (`bump`), or topics to which the group subscribes."""
    group = change.group
    if group.topics_seen == context.topics_version and not bump:
        return
    digest = metadata_hash(change.group.topic_names(), context.topics)
    if bump or group.epoch == 0 or digest != group.metadata_hash:
        change.write(ConsumerGroupMetadata(group.group_id, group.epoch + 1, digest))
        if change.group.has_partition_metadata:
            change.write(Tombstone(RecordType.PARTITION_METADATA, group.group_id))


def update_target(change: GroupChange, context: HeartbeatContext) -> None:
    """Compute the target assignment for the current group epoch."""
    group = change.group
    topic_ids: dict[tuple[tuple[str, ...], str], frozenset[uuid.UUID]] = {}  # most members have the same subscription
    subscribers = {}
    for member_id, member in group.members.items():
        subscription = member.subscribed_topic_names, member.subscribed_topic_regex
        if subscription not in topic_ids:
            topic_ids[subscription] = group.topic_ids_of(member, context.topics)
        subscribers[member_id] = Subscriber(topic_ids[subscription], member.instance_id)
    assign = ASSIGNORS[group.preferred_assignor(context.assignors)]
    target = assign(subscribers, partition_counts(group.topic_names(), context.topics), group.target)
    for member_id, partitions in target.items():
        if group.target.get(member_id) != partitions:
            change.write(TargetMember(group.group_id, member_id, partitions))
    change.write(TargetMetadata(group.group_id, group.epoch))


def reconcile_member(
    change: GroupChange,
    member_id: str,
    owned: Assignment | None,
    context: HeartbeatContext,
    *,
    subscription_changed: bool,
) -> None:
    """Take a member one step further towards its target. Raises GroupRefusedError."""
    group = change.group
    member = group.members[member_id]
    if member.is_reconciled_to(group.assignment_epoch) and not subscription_changed:
        return
    if member.state is MemberState.UNKNOWN and (owned is None or owned):
        raise GroupRefusedError(
            ErrorCode.fenced_member_epoch,
            "The consumer group member is in a unknown state. The member must abandon all its partitions and rejoin.",
        )
    goal = Goal(
        epoch=group.assignment_epoch,
        partitions=group.target.get(member_id, {}),
        subscribed_topic_ids=group.topic_ids_of(member, context.topics),
        owner_of=group.owner_of,
    )
    after = reconcile(member, goal, owned, subscription_changed=subscription_changed)
    if after != member:
        change.write(after.current_record(group.group_id))

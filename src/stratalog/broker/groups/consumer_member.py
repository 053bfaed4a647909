"""A member of a KIP-848 group, and its steps from the partitions that it owns to its target assignment. Pure.

A member never gets a partition that another member may still be reading. So reconciliation has these steps:

1. The member revokes the partitions that are no longer in its target, and confirms this in a heartbeat
   (UNREVOKED_PARTITIONS until then).
2. It gets the epoch of the target, and the new partitions that are free.
3. It waits in that epoch for the other new partitions, until their owners have revoked them (UNRELEASED_PARTITIONS).
4. It owns its whole target (STABLE).

The member must send `member_epoch` with its next heartbeat. It may also send `previous_member_epoch`, as the response
that raised the epoch may be lost.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from stratalog.broker.groups.consumer_records import (
    Assignment,
    ClassicMemberMetadata,
    CurrentMember,
    MemberMetadata,
    MemberState,
)
from stratalog.broker.state_budget import OBJECT_BYTES, text_bytes

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2  # a static member leaves and will rejoin

_MEMBER_BYTES = 1_500  # for a member, without its texts and partitions
_OWNED_PARTITION_BYTES = 200  # in the assignment and in the group's table of owners


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    subscribed_topic_names: tuple[str, ...] = ()  # sorted
    subscribed_topic_regex: str = ""  # "": none
    server_assignor: str | None = None
    classic: ClassicMemberMetadata | None = None  # if it uses the classic protocol
    member_epoch: int = 0
    previous_member_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Assignment = field(default_factory=dict)
    pending_revocation: Assignment = field(default_factory=dict)

    @property
    def state_bytes(self) -> int:
        """The memory that it takes."""
        texts = (self.rack_id, self.client_id, self.client_host, self.subscribed_topic_regex, self.server_assignor)
        counted = _MEMBER_BYTES + 2 * text_bytes(self.member_id) + 2 * text_bytes(self.instance_id)
        counted += sum(map(text_bytes, texts))
        if self.classic is not None:
            counted += sum(OBJECT_BYTES + text_bytes(name) + len(data) for name, data in self.classic.protocols)
        counted += sum(OBJECT_BYTES + text_bytes(name) for name in self.subscribed_topic_names)
        for partitions in (*self.assigned.values(), *self.pending_revocation.values()):
            counted += OBJECT_BYTES + _OWNED_PARTITION_BYTES * len(partitions)
        return counted

    def is_reconciled_to(self, target_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.member_epoch == target_epoch

    def metadata_record(self, group_id: str) -> MemberMetadata:
        return MemberMetadata(
            group_id=group_id,
            member_id=self.member_id,
            instance_id=self.instance_id,
            rack_id=self.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            subscribed_topic_names=self.subscribed_topic_names,
            subscribed_topic_regex=self.subscribed_topic_regex,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            server_assignor=self.server_assignor,
            classic=self.classic,
        )

    def current_record(self, group_id: str) -> CurrentMember:
        return CurrentMember(
            group_id=group_id,
            member_id=self.member_id,
            member_epoch=self.member_epoch,
            previous_member_epoch=self.previous_member_epoch,
            state=self.state,
            assigned=self.assigned,
            pending_revocation=self.pending_revocation,
        )

    def with_metadata(self, record: MemberMetadata) -> ConsumerMember:
        return replace(
            self,
            instance_id=record.instance_id,
            rack_id=record.rack_id,
            client_id=record.client_id,
            client_host=record.client_host,
            rebalance_timeout_ms=record.rebalance_timeout_ms,
            subscribed_topic_names=record.subscribed_topic_names,
            subscribed_topic_regex=record.subscribed_topic_regex or "",
            server_assignor=record.server_assignor,
            classic=record.classic,
        )

    def with_current(self, record: CurrentMember) -> ConsumerMember:
        return replace(
            self,
            member_epoch=record.member_epoch,
            previous_member_epoch=record.previous_member_epoch,
            state=record.state,
            assigned=record.assigned,
            pending_revocation=record.pending_revocation,
        )


@dataclass(frozen=True, slots=True)
class Goal:
    """The target of a member's reconciliation."""

    epoch: int
    partitions: Assignment
    subscribed_topic_ids: Collection[uuid.UUID]
    owner_of: Callable[[uuid.UUID, int], str | None]


def reconcile(
    member: ConsumerMember, goal: Goal, owned: Assignment | None, *, subscription_changed: bool
) -> ConsumerMember:
    """Return the member after its next step, or the same member if it must wait.

    `owned` has the partitions that the member reports as its own; with None, nothing counts as revoked. With
    `subscription_changed`, partitions of topics to which the member no longer subscribes are taken away at once.
    """
    match member.state:
        case MemberState.STABLE if member.member_epoch == goal.epoch:
            return _without_unsubscribed(member, goal, owned) if subscription_changed else member
        case MemberState.UNREVOKED_PARTITIONS if _overlap(owned, member.pending_revocation):
            return _without_unsubscribed(member, goal, owned) if subscription_changed else member
        case _:
            return _next_assignment(member, goal, owned)


def _next_assignment(member: ConsumerMember, goal: Goal, owned: Assignment | None) -> ConsumerMember:
    target = {topic: ids for topic, ids in goal.partitions.items() if topic in goal.subscribed_topic_ids}
    kept = _intersection(member.assigned, target)
    to_revoke = _difference(member.assigned, kept)
    if to_revoke and _overlap(owned, to_revoke):
        return replace(
            member,
            previous_member_epoch=member.member_epoch,
            state=MemberState.UNREVOKED_PARTITIONS,
            assigned=kept,
            pending_revocation=to_revoke,
        )
    missing = _difference(target, kept)
    free = {
        topic: frozenset(p for p in partitions if goal.owner_of(topic, p) in (None, member.member_id))
        for topic, partitions in missing.items()
    }
    return replace(
        member,
        member_epoch=goal.epoch,
        previous_member_epoch=member.member_epoch,
        state=MemberState.STABLE if free == missing else MemberState.UNRELEASED_PARTITIONS,
        assigned=_union(kept, free),
        pending_revocation={},
    )


def _without_unsubscribed(member: ConsumerMember, goal: Goal, owned: Assignment | None) -> ConsumerMember:
    kept = {topic: ids for topic, ids in member.assigned.items() if topic in goal.subscribed_topic_ids}
    if kept == member.assigned:
        return member
    to_revoke = _union(member.pending_revocation, _difference(member.assigned, kept))
    if not _overlap(owned, to_revoke):
        return replace(member, previous_member_epoch=member.member_epoch, assigned=kept)
    return replace(
        member,
        previous_member_epoch=member.member_epoch,
        state=MemberState.UNREVOKED_PARTITIONS,
        assigned=kept,
        pending_revocation=to_revoke,
    )


def _overlap(owned: Assignment | None, partitions: Assignment) -> bool:
    """Return whether the member may still own some of the partitions. With None, it may own all of them."""
    if owned is None:
        return True
    return any(not ids.isdisjoint(owned.get(topic, ())) for topic, ids in partitions.items())


def is_subset(owned: Assignment | None, partitions: Assignment) -> bool:
    """Return whether the member reports partitions, and only some of these."""
    return owned is not None and all(ids <= partitions.get(topic, frozenset()) for topic, ids in owned.items())


def _intersection(left: Assignment, right: Assignment) -> dict[uuid.UUID, frozenset[int]]:
    return {topic: both for topic, ids in left.items() if (both := ids & right.get(topic, frozenset()))}


def _difference(left: Assignment, right: Assignment) -> dict[uuid.UUID, frozenset[int]]:
    return {topic: rest for topic, ids in left.items() if (rest := ids - right.get(topic, frozenset()))}


def _union(left: Assignment, right: Assignment) -> dict[uuid.UUID, frozenset[int]]:
    topics = (*left, *(topic for topic in right if topic not in left))
    return {topic: ids for topic in topics if (ids := left.get(topic, frozenset()) | right.get(topic, frozenset()))}

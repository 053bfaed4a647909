"""The steps of one member towards its target: the partitions that it keeps, revokes and gets, from every state."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.broker.groups.consumer_member import ConsumerMember, Goal, is_subset, reconcile
from stratalog.broker.groups.consumer_records import Assignment, MemberState

A, B = uuid.UUID(int=1), uuid.UUID(int=2)
OTHER = "another"


def some(*partitions: int, topic: uuid.UUID = A) -> dict[uuid.UUID, frozenset[int]]:
    return {topic: frozenset(partitions)} if partitions else {}


def goal(
    partitions: Assignment, epoch: int = 2, *, taken: Assignment | None = None, topics: tuple[uuid.UUID, ...] = (A, B)
) -> Goal:
    def owner_of(topic_id: uuid.UUID, partition: int) -> str | None:
        return OTHER if partition in (taken or {}).get(topic_id, ()) else None

    return Goal(epoch, partitions, frozenset(topics), owner_of)


def member(
    assigned: Assignment, state: MemberState = MemberState.STABLE, pending: Assignment | None = None, epoch: int = 1
) -> ConsumerMember:
    return ConsumerMember("m", member_epoch=epoch, state=state, assigned=assigned, pending_revocation=pending or {})


def test_a_member_at_its_target_does_not_change() -> None:
    stable = member(some(0), epoch=2)
    assert reconcile(stable, goal(some(0, 1)), some(0), subscription_changed=False) is stable


@pytest.mark.parametrize("owned", [None, some(0, 1)])
def test_partitions_that_the_member_may_still_read_are_revoked_first(owned: Assignment | None) -> None:
    after = reconcile(member(some(0, 1)), goal(some(1, 2)), owned, subscription_changed=False)
    assert (after.member_epoch, after.state) == (1, MemberState.UNREVOKED_PARTITIONS)
    assert (after.assigned, after.pending_revocation) == (some(1), some(0))


def test_partitions_that_the_member_does_not_read_need_no_revocation() -> None:
    after = reconcile(member(some(0, 1)), goal(some(1, 2)), some(1), subscription_changed=False)
    assert (after.member_epoch, after.previous_member_epoch, after.state) == (2, 1, MemberState.STABLE)
    assert after.assigned == some(1, 2)


def test_a_member_that_still_owns_revoked_partitions_waits() -> None:
    waiting = member(some(1), MemberState.UNREVOKED_PARTITIONS, some(0))
    for owned in (None, some(0), some(0, 1)):
        assert reconcile(waiting, goal(some(1, 2)), owned, subscription_changed=False) is waiting


def test_revoked_partitions_that_return_to_the_target_are_assigned_again() -> None:
    waiting = member(some(1), MemberState.UNREVOKED_PARTITIONS, some(0))
    target = Goal(3, some(0, 1), frozenset((A,)), lambda topic_id, partition: "m")
    after = reconcile(waiting, target, some(1), subscription_changed=False)
    assert (after.member_epoch, after.state, after.assigned) == (3, MemberState.STABLE, some(0, 1))


def test_a_member_waits_at_the_new_epoch_for_partitions_of_other_members() -> None:
    after = reconcile(member(some(0)), goal(some(0, 1, 2), taken=some(2)), some(0), subscription_changed=False)
    assert (after.member_epoch, after.state) == (2, MemberState.UNRELEASED_PARTITIONS)
    assert after.assigned == some(0, 1)
    still = reconcile(after, goal(some(0, 1, 2), taken=some(2)), None, subscription_changed=False)
    assert (still.state, still.assigned) == (MemberState.UNRELEASED_PARTITIONS, some(0, 1))
    at_last = reconcile(still, goal(some(0, 1, 2)), None, subscription_changed=False)
    assert (at_last.state, at_last.assigned) == (MemberState.STABLE, some(0, 1, 2))


def test_an_unsubscribed_topic_is_revoked_at_once() -> None:
    both = some(0) | some(0, topic=B)
    stable = member(both, epoch=2)
    after = reconcile(stable, goal(both, topics=(A,)), both, subscription_changed=True)
    assert (after.state, after.assigned) == (MemberState.UNREVOKED_PARTITIONS, some(0))
    assert after.pending_revocation == some(0, topic=B)
    forgotten = reconcile(stable, goal(both, topics=(A,)), some(0), subscription_changed=True)
    assert (forgotten.state, forgotten.assigned) == (MemberState.STABLE, some(0))
    assert reconcile(stable, goal(both), both, subscription_changed=True) is stable


def test_a_change_of_subscription_adds_to_a_pending_revocation() -> None:
    waiting = member(some(0) | some(0, topic=B), MemberState.UNREVOKED_PARTITIONS, some(1) | some(1, topic=B))
    after = reconcile(waiting, goal(some(0), topics=(A,)), some(0, 1), subscription_changed=True)
    assert (after.state, after.assigned) == (MemberState.UNREVOKED_PARTITIONS, some(0))
    assert after.pending_revocation == some(1) | some(0, 1, topic=B)


def test_an_old_target_does_not_assign_an_unsubscribed_topic() -> None:
    after = reconcile(member({}), goal(some(0) | some(0, topic=B), topics=(A,)), {}, subscription_changed=True)
    assert after.assigned == some(0)


def test_is_subset_compares_partitions_by_topic() -> None:
    assert is_subset({}, {})
    assert is_subset(some(0), some(0, 1))
    assert not is_subset(some(0, 2), some(0, 1))
    assert not is_subset(some(0, topic=B), some(0))
    assert not is_subset(None, some(0))


assignments = st.dictionaries(st.sampled_from((A, B)), st.frozensets(st.integers(0, 4), min_size=1), max_size=2)


def flat(assignment: Assignment) -> set[tuple[uuid.UUID, int]]:
    return {(topic_id, partition) for topic_id, partitions in assignment.items() for partition in partitions}


@given(assignments, assignments, assignments, st.sampled_from(MemberState), st.none() | assignments, st.booleans())
def test_no_step_takes_partitions_of_others_or_releases_partitions_that_may_be_read(
    assigned: Assignment,
    target: Assignment,
    taken: Assignment,
    state: MemberState,
    owned: Assignment | None,
    subscription_changed: bool,
) -> None:
    others = {topic_id: partitions - assigned.get(topic_id, frozenset()) for topic_id, partitions in taken.items()}
    before = member(assigned, state)
    after = reconcile(before, goal(target, taken=others), owned, subscription_changed=subscription_changed)
    assert not flat(after.assigned) & flat(others)
    assert not flat(after.assigned) & flat(after.pending_revocation)
    may_read = flat(assigned) if owned is None else flat(assigned) & flat(owned)
    assert may_read <= flat(after.assigned) | flat(after.pending_revocation)
    if after.state is MemberState.STABLE and after.member_epoch == 2:
        assert after.assigned == target
    if after.member_epoch == 2:
        assert not after.pending_revocation
        assert flat(after.assigned) <= flat(target)

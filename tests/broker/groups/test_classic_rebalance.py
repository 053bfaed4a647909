"""A classic group from generation to generation: its deadlines, its stored state, and its state after a restart."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from stratalog.broker.groups.classic_group import NEW_MEMBER_JOIN_TIMEOUT_MS
from stratalog.broker.groups.classic_rebalance import ClassicGroupState
from stratalog.broker.groups.offset_records import group_tombstone, parse_group
from stratalog.errors import MessageTooLargeError, StorageError, StratalogError
from tests.broker.groups.members import REBALANCE_MS, SESSION_MS, GroupUnderTest, subscription

NONE = ErrorCode.none
DELAY = 3_000


# The initial delay


def test_each_new_member_extends_the_initial_delay() -> None:
    test = GroupUnderTest()
    first = test.join()
    test.advance(2_000)
    second = test.join()
    test.advance(2_000)
    assert not first, "the second member extends the delay by three seconds"
    test.advance(2_000)
    assert first.answer.generation == second.answer.generation == 1


def test_initial_delay_is_extended_up_to_the_rebalance_timeout() -> None:
    test = GroupUnderTest()
    first = test.join(rebalance_ms=10_000, session_ms=10_000)
    for _ in range(20):
        test.join(rebalance_ms=10_000, session_ms=10_000)
        test.advance(1_000)
        if first:
            break
    assert first.answer.generation == 1
    assert test.now.monotonic_ms - 5_000 <= 10_000 + DELAY


def test_without_an_initial_delay_the_first_generation_begins_at_once() -> None:
    test = GroupUnderTest(group_initial_rebalance_delay_ms=0)
    join = test.join()
    test.advance(0)
    assert join.answer.generation == 1


def test_group_that_all_members_leave_during_the_initial_delay_is_empty() -> None:
    test = GroupUnderTest()
    test.group.abandon_join(test.join(), test.now)
    test.advance(DELAY)
    assert test.group.is_empty
    assert test.group.tombstones() == []
    assert test.group.wake_at_ms is None


# Awaited members and deadlines


def test_members_that_do_not_rejoin_in_time_are_removed() -> None:
    test = GroupUnderTest()
    leader, follower = test.stable(2, session_ms=200_000)
    again = test.join(leader)
    test.advance(REBALANCE_MS - 1)
    assert not again
    test.advance(1)
    assert again.answer.generation == 2
    assert test.heartbeat(follower) is ErrorCode.unknown_member_id


def test_longest_rebalance_timeout_of_all_members_applies() -> None:
    test = GroupUnderTest()
    first, second = test.join(session_ms=100_000), test.join(session_ms=100_000, rebalance_ms=90_000)
    test.advance(3 * DELAY)
    for join in (second, first):
        test.sync(join.answer.member_id)
    again = test.join(first.answer.member_id, session_ms=100_000)
    test.advance(89_999)
    assert not again
    test.advance(1)
    assert again.answer.generation == 2


def test_leader_that_did_not_rejoin_is_replaced() -> None:
    test = GroupUnderTest()
    _, follower = test.stable(2)
    again = test.join(follower, protocols={"range": subscription("payments")})
    test.advance(REBALANCE_MS)
    assert again.answer.leader == follower


def test_session_of_a_waiting_member_does_not_expire() -> None:
    test = GroupUnderTest()
    leader, follower = test.stable(2)
    again = test.join(leader)
    for _ in range(5):
        test.advance(SESSION_MS - 1)
        test.heartbeat(follower)
    assert not again
    assert leader in test.group.member_ids


def test_join_of_a_new_member_fails_after_its_timeout() -> None:
    test = GroupUnderTest()
    (old,) = test.stable(1, rebalance_ms=10 * NEW_MEMBER_JOIN_TIMEOUT_MS)
    new = test.join()
    for _ in range(NEW_MEMBER_JOIN_TIMEOUT_MS // 5_000):
        assert not new
        test.heartbeat(old)
        test.advance(5_000)
    assert new.answer.error is ErrorCode.unknown_member_id


def test_members_that_do_not_sync_in_time_are_removed() -> None:
    test = GroupUnderTest()
    first, second = test.join(session_ms=200_000), test.join(session_ms=200_000)
    test.advance(3 * DELAY)
    leader = first.answer.member_id
    sync = test.sync(leader, {})
    assert sync.answer.error is NONE
    test.advance(REBALANCE_MS)
    assert test.group.member_ids == [leader]
    assert test.heartbeat(leader) is ErrorCode.rebalance_in_progress
    assert test.heartbeat(second.answer.member_id) is ErrorCode.unknown_member_id


def test_followers_stop_waiting_for_a_leader_that_never_assigns() -> None:
    test = GroupUnderTest()
    first, second = test.join(session_ms=200_000), test.join(session_ms=200_000)
    test.advance(3 * DELAY)
    waiting = test.sync(second.answer.member_id)
    test.advance(REBALANCE_MS)
    assert waiting.answer.error is ErrorCode.rebalance_in_progress
    assert test.group.member_ids == [second.answer.member_id]
    assert first.answer.member_id not in test.group.member_ids


def test_sync_deadline_ends_with_its_generation() -> None:
    test = GroupUnderTest()
    first, second = test.join(session_ms=200_000), test.join(session_ms=200_000)
    test.advance(3 * DELAY)  # the generation begins at 6 s, so its sync deadline is at 66 s
    test.advance(55_000)
    test.join()
    again = test.join(second.answer.member_id)
    test.advance(10_000)
    assert not again, "it waits for the first member; the deadline of the old generation does not apply"
    assert first.answer.member_id in test.group.member_ids


def test_silent_member_of_a_new_generation_is_removed_when_its_session_ends() -> None:
    test = GroupUnderTest()
    test.join()
    test.advance(DELAY)
    test.advance(SESSION_MS - 1)
    assert len(test.group.member_ids) == 1
    test.advance(1)
    assert test.group.is_empty


def test_silent_member_after_a_failed_sync_is_removed_when_its_session_ends() -> None:
    test = GroupUnderTest()
    first, second = test.join(session_ms=50_000), test.join()
    test.advance(3 * DELAY)
    waiting = test.sync(second.answer.member_id)
    test.advance(2 * SESSION_MS)
    assert not waiting, "a waiting member is not silent"
    test.join()
    assert waiting.answer.error is ErrorCode.rebalance_in_progress
    test.advance(SESSION_MS - 1)
    assert second.answer.member_id in test.group.member_ids
    test.advance(1)
    assert second.answer.member_id not in test.group.member_ids
    assert first.answer.member_id in test.group.member_ids


def test_assignment_of_an_old_generation_is_dropped_when_a_new_one_begins() -> None:
    test = GroupUnderTest()
    (member,) = test.stable(1)
    test.join(member)
    assert test.group.state is ClassicGroupState.COMPLETING_REBALANCE
    test.join()
    assert [one.assignment for one in test.group.describe().members] == [b"", b""]


def test_members_that_have_all_synced_are_not_removed() -> None:
    test = GroupUnderTest()
    ids = test.stable(2, session_ms=200_000)
    test.advance(REBALANCE_MS)
    assert test.group.member_ids == ids
    assert test.group.state is ClassicGroupState.STABLE


def test_rebalance_waits_for_static_members_until_their_sessions_end() -> None:
    test = GroupUnderTest()
    first = test.join(instance_id="a", session_ms=100_000, rebalance_ms=500)
    second = test.join(session_ms=7_000, rebalance_ms=500)
    test.advance(DELAY)
    test.sync(second.answer.member_id)
    test.sync(first.answer.member_id, {}, instance_id="a")
    test.advance(7_000)  # the second member is silent: a rebalance without any joined member
    assert test.group.state is ClassicGroupState.PREPARING_REBALANCE
    assert test.group.member_ids == [first.answer.member_id]
    back = test.join(first.answer.member_id, instance_id="a")
    assert back.answer.generation == 2


def test_group_of_silent_members_becomes_empty() -> None:
    test = GroupUnderTest()
    test.stable(3)
    test.advance(SESSION_MS)
    assert test.group.is_empty
    assert test.group.wake_at_ms is None, "an empty group costs no timer"


def test_generation_of_an_emptied_group_keeps_rising() -> None:
    test = GroupUnderTest()
    test.stable(1)
    test.advance(SESSION_MS)
    assert test.group.generation == 2
    join = test.join()
    test.advance(DELAY)
    assert join.answer.generation == 3


# Stored state


def test_assignment_is_stored_before_any_member_gets_it() -> None:
    test = GroupUnderTest()
    join = test.join()
    test.advance(DELAY)
    assert test.stored == []
    member = join.answer.member_id
    test.sync(member, {member: b"share"})
    value = test.stored[0][1]
    assert value is not None
    stored = parse_group(value)
    assert (stored.generation, stored.leader, stored.protocol_name) == (1, member, "range")
    assert [(one.member_id, one.assignment) for one in stored.members] == [(member, b"share")]


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (StorageError("disk full"), ErrorCode.not_coordinator),
        (MessageTooLargeError("too large"), ErrorCode.unknown_server_error),
        (StratalogError("?"), ErrorCode.coordinator_not_available),
    ],
)
def test_assignment_that_cannot_be_stored_goes_to_no_member(failure: StratalogError, error: ErrorCode) -> None:
    test = GroupUnderTest()
    first, second = test.join(), test.join()
    test.advance(3 * DELAY)
    waiting = test.sync(second.answer.member_id)
    test.failure = failure
    own = test.sync(first.answer.member_id, {second.answer.member_id: b"1"})
    assert (own.answer.error, waiting.answer.error) == (error, error)
    assert test.group.state is ClassicGroupState.PREPARING_REBALANCE
    assert {one.assignment for one in test.group.describe().members} == {b""}


def test_static_member_is_replaced_only_if_the_change_was_stored() -> None:
    test = GroupUnderTest()
    (old,) = test.stable(1, instance_id="i")
    test.failure = StorageError("disk full")
    refused = test.join(instance_id="i", protocols={"range": subscription("payments")})
    assert refused.answer.error is ErrorCode.not_coordinator
    assert test.group.member_ids == [old]
    assert test.group.leader == old
    assert test.heartbeat(old, instance_id="i") is NONE
    assert test.group.describe().members[0].metadata == subscription("orders")
    test.failure = None
    assert test.join(instance_id="i").answer.error is NONE


def test_empty_group_that_could_not_be_stored_can_be_joined() -> None:
    test = GroupUnderTest()
    test.stable(1)
    test.failure = StorageError("disk full")
    test.advance(SESSION_MS)
    assert test.group.is_empty
    test.failure = None
    join = test.join()
    test.advance(DELAY)
    assert join.answer.error is NONE


def restarted(test: GroupUnderTest) -> GroupUnderTest:
    fresh = GroupUnderTest()
    value = test.stored[-1][1]
    assert value is not None
    fresh.group.restore(parse_group(value))
    return fresh


def test_members_assignments_and_generation_survive_a_restart() -> None:
    test = GroupUnderTest()
    leader, follower = test.stable(2)
    fresh = restarted(test)
    assert fresh.group.describe() == test.group.describe()
    assert fresh.group.leader == leader
    assert fresh.sync(follower).answer.assignment == follower.encode()
    assert fresh.heartbeat(follower) is NONE
    assert fresh.group.subscribed_to("orders")
    assert not fresh.group.subscribed_to("payments")


def test_leader_survives_a_restart_even_if_it_is_not_the_first_member() -> None:
    test = GroupUnderTest()
    first = test.join(instance_id="i", session_ms=200_000)
    second = test.join(session_ms=200_000)
    test.advance(3 * DELAY)
    test.sync(second.answer.member_id)
    test.sync(first.answer.member_id, {}, instance_id="i")
    again = test.join(second.answer.member_id, protocols={"range": subscription("payments")})
    test.advance(REBALANCE_MS)  # the first member, the leader until now, does not rejoin
    test.sync(again.answer.member_id, {})
    assert test.group.member_ids == [first.answer.member_id, second.answer.member_id]
    assert restarted(test).group.leader == test.group.leader == second.answer.member_id


def test_members_have_a_whole_session_after_a_restart() -> None:
    test = GroupUnderTest()
    ids = test.stable(2)
    fresh = restarted(test)
    assert fresh.group.wake_at_ms is None
    fresh.group.start_sessions(fresh.now)
    fresh.advance(SESSION_MS - 1)
    assert fresh.group.member_ids == ids
    fresh.advance(1)
    assert fresh.group.is_empty


def test_group_that_is_too_large_after_a_restart_rebalances() -> None:
    test = GroupUnderTest()
    test.stable(3)
    fresh = GroupUnderTest(group_max_size=2)
    value = test.stored[-1][1]
    assert value is not None
    fresh.group.restore(parse_group(value))
    fresh.group.start_sessions(fresh.now)
    assert fresh.group.state is ClassicGroupState.PREPARING_REBALANCE


def test_instance_id_of_a_static_member_survives_a_restart() -> None:
    test = GroupUnderTest()
    (old,) = test.stable(1, instance_id="i")
    fresh = restarted(test)
    assert fresh.heartbeat("other", instance_id="i") is ErrorCode.fenced_instance_id
    back = fresh.join(instance_id="i", may_skip_assignment=True)
    assert back.answer.skip_assignment
    assert fresh.sync(back.answer.member_id).answer.assignment == old.encode()


def test_group_that_was_never_stored_needs_no_tombstone() -> None:
    test = GroupUnderTest()
    assert test.group.tombstones() == []
    test.stable(1)
    assert test.group.tombstones() == [group_tombstone("g")]


# Expiry of offsets


def test_offset_expiry_of_an_empty_group_counts_from_when_it_became_empty() -> None:
    test = GroupUnderTest()
    test.stable(1)
    test.advance(SESSION_MS)
    emptied = test.now.wall_ms
    test.advance(1_000_000)
    assert test.group.offset_expires_since(5) == emptied
    assert restarted(test).group.offset_expires_since(5) == emptied


def test_offset_expiry_of_consumers_counts_from_the_commit_except_in_a_rebalance() -> None:
    test = GroupUnderTest()
    test.stable(1)
    assert test.group.offset_expires_since(5) == 5
    test.join()
    assert test.group.offset_expires_since(5) is None


def test_offsets_of_a_group_of_another_protocol_do_not_expire() -> None:
    test = GroupUnderTest()
    test.stable(1, protocol_type="connect")
    assert test.group.offset_expires_since(5) is None


def test_offset_expiry_of_a_group_that_never_had_members_counts_from_the_commit() -> None:
    assert GroupUnderTest().group.offset_expires_since(5) == 5

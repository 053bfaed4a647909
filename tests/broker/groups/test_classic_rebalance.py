"""How a classic group goes from generation to generation, what it stores, and what it is after a restart."""

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


def test_each_newcomer_prolongs_the_initial_delay() -> None:
    test = GroupUnderTest()
    first = test.join()
    test.advance(2_000)
    second = test.join()
    test.advance(2_000)
    assert not first, "the second one came, so three seconds more"
    test.advance(2_000)
    assert first.answer.generation == second.answer.generation == 1


def test_initial_delay_is_prolonged_up_to_the_rebalance_timeout_and_no_longer() -> None:
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


def test_initial_delay_of_a_group_that_all_have_left_ends_in_nothing() -> None:
    test = GroupUnderTest()
    test.group.abandon_join(test.join(), test.now)
    test.advance(DELAY)
    assert test.group.is_empty
    assert test.group.tombstones() == []
    assert test.group.wake_at_ms is None


# Who is waited for, and how long


def test_members_that_do_not_rejoin_in_time_are_removed() -> None:
    test = GroupUnderTest()
    leader, follower = test.stable(2, session_ms=200_000)
    again = test.join(leader)
    test.advance(REBALANCE_MS - 1)
    assert not again
    test.advance(1)
    assert again.answer.generation == 2
    assert test.heartbeat(follower) is ErrorCode.unknown_member_id


def test_longest_rebalance_timeout_of_all_counts() -> None:
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


def test_member_that_waits_for_others_is_not_taken_for_silent() -> None:
    test = GroupUnderTest()
    leader, follower = test.stable(2)
    again = test.join(leader)
    for _ in range(5):
        test.advance(SESSION_MS - 1)
        test.heartbeat(follower)
    assert not again
    assert leader in test.group.member_ids


def test_new_member_that_waits_too_long_has_to_ask_again() -> None:
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


def test_followers_do_not_wait_for_ever_for_a_leader_that_never_assigns() -> None:
    test = GroupUnderTest()
    first, second = test.join(session_ms=200_000), test.join(session_ms=200_000)
    test.advance(3 * DELAY)
    waiting = test.sync(second.answer.member_id)
    test.advance(REBALANCE_MS)
    assert waiting.answer.error is ErrorCode.rebalance_in_progress
    assert test.group.member_ids == [second.answer.member_id]
    assert first.answer.member_id not in test.group.member_ids


def test_time_to_sync_ends_with_its_generation() -> None:
    test = GroupUnderTest()
    first, second = test.join(session_ms=200_000), test.join(session_ms=200_000)
    test.advance(3 * DELAY)  # the generation begins at 6 s, so its time to sync ends at 66 s
    test.advance(55_000)
    test.join()
    again = test.join(second.answer.member_id)
    test.advance(10_000)
    assert not again, "it waits for the first one, and is not late for a generation that is over"
    assert first.answer.member_id in test.group.member_ids


def test_member_that_falls_silent_with_the_new_generation_is_removed_when_its_session_ends() -> None:
    test = GroupUnderTest()
    test.join()
    test.advance(DELAY)
    test.advance(SESSION_MS - 1)
    assert len(test.group.member_ids) == 1
    test.advance(1)
    assert test.group.is_empty


def test_member_that_falls_silent_when_its_sync_is_called_off_is_removed_when_its_session_ends() -> None:
    test = GroupUnderTest()
    first, second = test.join(session_ms=50_000), test.join()
    test.advance(3 * DELAY)
    waiting = test.sync(second.answer.member_id)
    test.advance(2 * SESSION_MS)
    assert not waiting, "who waits for us is not silent"
    test.join()
    assert waiting.answer.error is ErrorCode.rebalance_in_progress
    test.advance(SESSION_MS - 1)
    assert second.answer.member_id in test.group.member_ids
    test.advance(1)
    assert second.answer.member_id not in test.group.member_ids
    assert first.answer.member_id in test.group.member_ids


def test_shares_of_the_last_generation_are_void_once_a_new_one_has_begun() -> None:
    test = GroupUnderTest()
    (member,) = test.stable(1)
    test.join(member)
    assert test.group.state is ClassicGroupState.COMPLETING_REBALANCE
    test.join()
    assert [one.assignment for one in test.group.describe().members] == [b"", b""]


def test_group_whose_members_have_all_synced_is_left_in_peace() -> None:
    test = GroupUnderTest()
    ids = test.stable(2, session_ms=200_000)
    test.advance(REBALANCE_MS)
    assert test.group.member_ids == ids
    assert test.group.state is ClassicGroupState.STABLE


def test_static_members_none_of_which_is_back_are_waited_for_until_their_sessions_end() -> None:
    test = GroupUnderTest()
    first = test.join(instance_id="a", session_ms=100_000, rebalance_ms=500)
    second = test.join(session_ms=7_000, rebalance_ms=500)
    test.advance(DELAY)
    test.sync(second.answer.member_id)
    test.sync(first.answer.member_id, {}, instance_id="a")
    test.advance(7_000)  # the second one is silent: a rebalance, for which nobody is there
    assert test.group.state is ClassicGroupState.PREPARING_REBALANCE
    assert test.group.member_ids == [first.answer.member_id]
    back = test.join(first.answer.member_id, instance_id="a")
    assert back.answer.generation == 2


def test_silent_group_ends_up_empty() -> None:
    test = GroupUnderTest()
    test.stable(3)
    test.advance(SESSION_MS)
    assert test.group.is_empty
    assert test.group.wake_at_ms is None, "an empty group costs no timer"


def test_next_generation_of_an_emptied_group_counts_on() -> None:
    test = GroupUnderTest()
    test.stable(1)
    test.advance(SESSION_MS)
    assert test.group.generation == 2
    join = test.join()
    test.advance(DELAY)
    assert join.answer.generation == 3


# What is stored


def test_group_is_stored_before_anybody_gets_a_share() -> None:
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
def test_assignment_that_cannot_be_stored_is_given_to_nobody(failure: StratalogError, error: ErrorCode) -> None:
    test = GroupUnderTest()
    first, second = test.join(), test.join()
    test.advance(3 * DELAY)
    waiting = test.sync(second.answer.member_id)
    test.failure = failure
    own = test.sync(first.answer.member_id, {second.answer.member_id: b"1"})
    assert (own.answer.error, waiting.answer.error) == (error, error)
    assert test.group.state is ClassicGroupState.PREPARING_REBALANCE
    assert {one.assignment for one in test.group.describe().members} == {b""}


def test_static_member_is_replaced_only_if_that_could_be_stored() -> None:
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


def test_group_that_is_empty_but_could_not_be_stored_goes_on() -> None:
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


def test_members_are_back_after_a_restart_with_their_shares_and_generation() -> None:
    test = GroupUnderTest()
    leader, follower = test.stable(2)
    fresh = restarted(test)
    assert fresh.group.describe() == test.group.describe()
    assert fresh.group.leader == leader
    assert fresh.sync(follower).answer.assignment == follower.encode()
    assert fresh.heartbeat(follower) is NONE
    assert fresh.group.subscribed_to("orders")
    assert not fresh.group.subscribed_to("payments")


def test_leader_is_the_same_after_a_restart_although_it_is_not_the_first_member() -> None:
    test = GroupUnderTest()
    first = test.join(instance_id="i", session_ms=200_000)
    second = test.join(session_ms=200_000)
    test.advance(3 * DELAY)
    test.sync(second.answer.member_id)
    test.sync(first.answer.member_id, {}, instance_id="i")
    again = test.join(second.answer.member_id, protocols={"range": subscription("payments")})
    test.advance(REBALANCE_MS)  # the first one, which led, does not rejoin
    test.sync(again.answer.member_id, {})
    assert test.group.member_ids == [first.answer.member_id, second.answer.member_id]
    assert restarted(test).group.leader == test.group.leader == second.answer.member_id


def test_members_have_a_whole_session_to_come_back_after_a_restart() -> None:
    test = GroupUnderTest()
    ids = test.stable(2)
    fresh = restarted(test)
    assert fresh.group.wake_at_ms is None
    fresh.group.start_sessions(fresh.now)
    fresh.advance(SESSION_MS - 1)
    assert fresh.group.member_ids == ids
    fresh.advance(1)
    assert fresh.group.is_empty


def test_group_that_became_too_large_with_a_restart_rebalances() -> None:
    test = GroupUnderTest()
    test.stable(3)
    fresh = GroupUnderTest(group_max_size=2)
    value = test.stored[-1][1]
    assert value is not None
    fresh.group.restore(parse_group(value))
    fresh.group.start_sessions(fresh.now)
    assert fresh.group.state is ClassicGroupState.PREPARING_REBALANCE


def test_static_member_is_known_by_its_instance_after_a_restart() -> None:
    test = GroupUnderTest()
    (old,) = test.stable(1, instance_id="i")
    fresh = restarted(test)
    assert fresh.heartbeat("other", instance_id="i") is ErrorCode.fenced_instance_id
    back = fresh.join(instance_id="i", may_skip_assignment=True)
    assert back.answer.skip_assignment
    assert fresh.sync(back.answer.member_id).answer.assignment == old.encode()


def test_only_what_was_stored_needs_a_tombstone() -> None:
    test = GroupUnderTest()
    assert test.group.tombstones() == []
    test.stable(1)
    assert test.group.tombstones() == [group_tombstone("g")]


# Since when offsets expire


def test_offsets_of_a_group_that_became_empty_expire_since_then() -> None:
    test = GroupUnderTest()
    test.stable(1)
    test.advance(SESSION_MS)
    emptied = test.now.wall_ms
    test.advance(1_000_000)
    assert test.group.offset_expires_since(5) == emptied
    assert restarted(test).group.offset_expires_since(5) == emptied


def test_offsets_of_consumers_expire_since_their_commit_but_not_during_a_rebalance() -> None:
    test = GroupUnderTest()
    test.stable(1)
    assert test.group.offset_expires_since(5) == 5
    test.join()
    assert test.group.offset_expires_since(5) is None


def test_offsets_of_members_that_are_no_consumers_do_not_expire() -> None:
    test = GroupUnderTest()
    test.stable(1, protocol_type="connect")
    assert test.group.offset_expires_since(5) is None


def test_offsets_of_a_group_without_members_ever_expire_since_their_commit() -> None:
    assert GroupUnderTest().group.offset_expires_since(5) == 5

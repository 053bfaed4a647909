"""The requests of a classic group's members: join, sync, heartbeat, leave and commit."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from stratalog.broker.groups import classic_group
from stratalog.broker.groups.classic_group import ClassicGroup, new_member_id
from stratalog.broker.groups.classic_messages import MemberIdentity
from stratalog.broker.groups.classic_rebalance import ClassicGroupState
from stratalog.broker.groups.group import Group
from tests.broker.groups.members import REBALANCE_MS, SESSION_MS, GroupUnderTest, subscription

NONE = ErrorCode.none
DELAY = 3_000


def test_classic_group_is_a_group() -> None:
    group: Group = GroupUnderTest().group
    assert isinstance(group, ClassicGroup)
    assert (group.kind, group.state_name, group.protocol_type, group.is_empty) == ("classic", "Empty", "", True)


# Joining


def test_first_member_waits_for_the_initial_delay_and_leads() -> None:
    test = GroupUnderTest()
    join = test.join()
    assert test.group.state is ClassicGroupState.PREPARING_REBALANCE
    test.advance(DELAY - 1)
    assert not join
    test.advance(1)
    answer = join.answer
    assert (answer.error, answer.generation, answer.leader) == (NONE, 1, answer.member_id)
    assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")
    assert [one.metadata for one in answer.members] == [subscription("orders")]


def test_only_the_leader_gets_the_list_of_members() -> None:
    test = GroupUnderTest()
    first, second = test.join(), test.join()
    test.advance(3 * DELAY)
    assert [one.member_id for one in first.answer.members] == [first.answer.member_id, second.answer.member_id]
    assert second.answer.members == ()
    assert second.answer.leader == first.answer.member_id


def test_member_ids_begin_with_the_client_or_instance_id() -> None:
    test = GroupUnderTest()
    plain, static = test.join(client_id="app"), test.join(instance_id="rack-7")
    test.advance(3 * DELAY)
    assert plain.answer.member_id.startswith("app-")
    assert static.answer.member_id.startswith("rack-7-")


def test_member_id_of_a_client_with_a_long_id_fits_every_version() -> None:
    assert len(new_member_id("x" * 32_767)) == 255 + 37
    assert new_member_id("x") != new_member_id("x")


def test_new_member_gets_its_id_first_if_its_version_requires_it() -> None:
    test = GroupUnderTest()
    first = test.join(needs_known_member_id=True)
    assert first.answer.error is ErrorCode.member_id_required
    assert test.group.is_empty, "an id alone makes no member"
    second = test.join(first.answer.member_id, needs_known_member_id=True)
    test.advance(DELAY)
    assert (second.answer.error, second.answer.member_id) == (NONE, first.answer.member_id)


def test_id_that_was_never_assigned_is_unknown() -> None:
    test = GroupUnderTest()
    test.stable(1)
    assert test.join("made-up").answer.error is ErrorCode.unknown_member_id


def test_unused_id_expires_after_the_session_timeout() -> None:
    test = GroupUnderTest()
    given = test.join(needs_known_member_id=True).answer.member_id
    test.advance(SESSION_MS)
    assert not test.group.has_pending_members
    assert test.join(given).answer.error is ErrorCode.unknown_member_id


def test_rebalance_waits_for_a_member_that_just_got_its_id() -> None:
    test = GroupUnderTest()
    (old,) = test.stable(1)
    new = test.join(needs_known_member_id=True).answer.member_id
    again = test.join(old, protocols={"range": subscription("payments")})
    assert not again, "the new one is about to join"
    joined = test.join(new)
    assert again.answer.generation == joined.answer.generation == 2


def test_rebalance_does_not_wait_for_an_expired_id() -> None:
    test = GroupUnderTest()
    (old,) = test.stable(1)
    test.join(needs_known_member_id=True)
    again = test.join(old, protocols={"range": subscription("payments")})
    test.advance(SESSION_MS)
    assert again.answer.generation == 2


def test_assigned_ids_are_limited_and_the_oldest_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classic_group, "MAX_PENDING_MEMBERS", 3)
    test = GroupUnderTest()
    given = [test.join(needs_known_member_id=True).answer.member_id for _ in range(5)]
    assert test.group.pending_ids == given[2:]


def test_metadata_of_all_members_together_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classic_group, "MOST_BYTES_OF_PROTOCOLS", 100)
    test = GroupUnderTest()
    fits = test.join(protocols={"range": bytes(50)})
    assert test.join(protocols={"range": bytes(50)}).answer.error is ErrorCode.group_max_size_reached
    test.advance(DELAY)
    test.sync(fits.answer.member_id)
    test.join(fits.answer.member_id, protocols={"range": bytes(90)})
    assert test.group.generation == 2, "what a member had before does not count when it changes it"


def test_member_beyond_the_largest_size_is_refused() -> None:
    test = GroupUnderTest(group_max_size=2)
    test.stable(2)
    refused = test.join()
    assert (refused.answer.error, refused.answer.member_id) == (ErrorCode.group_max_size_reached, "")
    assert test.group.state is ClassicGroupState.STABLE, "the others are not bothered"


def test_last_member_to_rejoin_a_full_group_is_refused() -> None:
    test = GroupUnderTest(group_max_size=2)
    leader, second = test.stable(2)
    again = test.join(leader)
    new = test.join()
    assert not again
    assert not new, "the second may still come back"
    assert test.join(second).answer.error is ErrorCode.group_max_size_reached
    assert again.answer.generation == new.answer.generation == 2


@pytest.mark.parametrize("changes", [{"protocol_type": "connect"}, {"protocols": {"sticky": b""}}, {"protocols": {}}])
def test_member_that_shares_no_protocol_is_refused(changes: dict[str, Any]) -> None:
    test = GroupUnderTest()
    test.stable(1)
    assert test.join(**changes).answer.error is ErrorCode.inconsistent_group_protocol


@pytest.mark.parametrize("changes", [{"protocol_type": ""}, {"protocols": {}}])
def test_first_member_without_a_protocol_is_refused(changes: dict[str, Any]) -> None:
    test = GroupUnderTest()
    assert test.join(**changes).answer.error is ErrorCode.inconsistent_group_protocol
    assert test.group.is_empty


def test_most_preferred_protocol_that_all_members_support_is_chosen() -> None:
    test = GroupUnderTest()
    joins = [
        test.join(protocols={"a": b"", "b": b"", "c": b""}),
        test.join(protocols={"c": b"", "b": b""}),
        test.join(protocols={"d": b"", "c": b"", "b": b""}),
    ]
    test.advance(4 * DELAY)
    assert {join.answer.protocol_name for join in joins} == {"c"}


def test_follower_that_rejoins_unchanged_gets_the_current_generation() -> None:
    test = GroupUnderTest()
    _, follower = test.stable(2)
    answer = test.join(follower).answer
    assert (answer.error, answer.generation, answer.members) == (NONE, 1, ())
    assert test.group.state is ClassicGroupState.STABLE


def test_leader_that_rejoins_starts_a_rebalance() -> None:
    test = GroupUnderTest()
    leader, follower = test.stable(2)
    again = test.join(leader)
    assert test.heartbeat(follower) is ErrorCode.rebalance_in_progress
    test.join(follower)
    assert again.answer.generation == 2


def test_follower_with_other_topics_starts_a_rebalance() -> None:
    test = GroupUnderTest()
    leader, follower = test.stable(2)
    test.join(follower, protocols={"range": subscription("payments")})
    assert test.group.state is ClassicGroupState.PREPARING_REBALANCE
    again = test.join(leader)
    assert [one.metadata for one in again.answer.members] == [subscription("orders"), subscription("payments")]


def test_retry_after_a_lost_response_gets_the_same_generation() -> None:
    test = GroupUnderTest()
    first, second = test.join(), test.join()
    test.advance(3 * DELAY)
    again = test.join(first.answer.member_id)
    assert again.answer == first.answer
    assert test.join(second.answer.member_id).answer == second.answer


def test_change_of_topics_while_the_leader_assigns_starts_a_rebalance() -> None:
    test = GroupUnderTest()
    first, second = test.join(), test.join()
    test.advance(3 * DELAY)
    changed = test.join(second.answer.member_id, protocols={"range": subscription("payments")})
    assert test.group.state is ClassicGroupState.PREPARING_REBALANCE
    again = test.join(first.answer.member_id)
    assert changed.answer.generation == again.answer.generation == 2
    assert again.answer.members[1].metadata == subscription("payments")


def test_second_join_of_a_member_gets_the_response() -> None:
    test = GroupUnderTest()
    leader, follower = test.stable(2)
    given_up = test.join(leader)
    again = test.join(leader)
    assert given_up.answer.error is ErrorCode.rebalance_in_progress
    test.join(follower)
    assert again.answer.generation == 2


def test_new_member_is_removed_at_once_when_its_client_disconnects() -> None:
    test = GroupUnderTest()
    join = test.join()
    test.group.abandon_join(join, test.now)
    test.advance(DELAY)
    assert test.group.is_empty
    assert test.group.generation == 0
    assert test.stored == [], "there was nothing to remember"


def test_disconnected_member_may_rejoin_within_its_session() -> None:
    test = GroupUnderTest()
    leader, follower = test.stable(2)
    hung_up = test.join(leader)
    test.group.abandon_join(hung_up, test.now)
    other = test.join(follower)
    assert not other
    back = test.join(leader)
    assert back.answer.generation == other.answer.generation == 2


def test_rebalance_completes_without_a_disconnected_member() -> None:
    test = GroupUnderTest()
    leader, follower = test.stable(2)
    test.group.abandon_join(test.join(leader), test.now)
    other = test.join(follower)
    test.advance(SESSION_MS)
    assert (other.answer.generation, other.answer.leader) == (2, follower)


def test_other_members_do_not_wait_for_a_disconnected_new_member() -> None:
    test = GroupUnderTest()
    leader, follower = test.stable(2)
    test.group.abandon_join(test.join(instance_id="i"), test.now)
    again = [test.join(leader), test.join(follower)]
    assert [join.answer.generation for join in again] == [2, 2]


def test_member_that_disconnects_after_a_long_wait_is_removed_when_its_session_ends() -> None:
    test = GroupUnderTest()
    leader, follower = test.stable(2)
    waiting = test.join(leader)
    for _ in range(4):
        test.advance(5_000)
        test.heartbeat(follower)
    test.group.abandon_join(waiting, test.now)
    test.advance(5_000)
    test.heartbeat(follower)
    assert leader in test.group.member_ids
    test.advance(5_000)
    assert leader not in test.group.member_ids


# Assigning


def test_second_sync_of_a_member_gets_the_response() -> None:
    test = GroupUnderTest()
    first, second = test.join(), test.join()
    test.advance(3 * DELAY)
    given_up, again = test.sync(second.answer.member_id), test.sync(second.answer.member_id)
    assert given_up.answer.error is ErrorCode.rebalance_in_progress
    test.sync(first.answer.member_id, {second.answer.member_id: b"1"})
    assert again.answer.assignment == b"1"


def test_every_member_gets_its_share_when_the_leader_has_assigned() -> None:
    test = GroupUnderTest()
    first, second = test.join(), test.join()
    test.advance(3 * DELAY)
    leader, follower = first.answer.member_id, second.answer.member_id
    waiting = test.sync(follower)
    assert not waiting
    own = test.sync(leader, {leader: b"0", follower: b"1", "stranger": b"2"})
    assert (own.answer.assignment, waiting.answer.assignment) == (b"0", b"1")
    assert (own.answer.protocol_type, own.answer.protocol_name) == ("consumer", "range")
    assert test.group.state is ClassicGroupState.STABLE


def test_member_without_an_assignment_of_the_leader_gets_an_empty_one() -> None:
    test = GroupUnderTest()
    first, second = test.join(), test.join()
    test.advance(3 * DELAY)
    waiting = test.sync(second.answer.member_id)
    test.sync(first.answer.member_id, {})
    assert (waiting.answer.error, waiting.answer.assignment) == (NONE, b"")


def test_late_sync_gets_the_assignment_of_a_stable_group() -> None:
    test = GroupUnderTest()
    first, second = test.join(), test.join()
    test.advance(3 * DELAY)
    test.sync(first.answer.member_id, {second.answer.member_id: b"1"})
    assert test.sync(second.answer.member_id).answer.assignment == b"1"


def test_sync_during_the_join_phase_gets_rebalance_in_progress() -> None:
    test = GroupUnderTest()
    leader, follower = test.stable(2)
    test.join(leader)
    assert test.sync(follower).answer.error is ErrorCode.rebalance_in_progress


def test_waiting_syncs_get_rebalance_in_progress_when_a_rebalance_begins() -> None:
    test = GroupUnderTest()
    test.join()
    second = test.join()
    test.advance(3 * DELAY)
    waiting = test.sync(second.answer.member_id)
    test.join()
    assert waiting.answer.error is ErrorCode.rebalance_in_progress


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"generation": 0}, ErrorCode.illegal_generation),
        ({"generation": 2}, ErrorCode.illegal_generation),
        ({"protocol_type": "connect"}, ErrorCode.inconsistent_group_protocol),
        ({"protocol_name": "sticky"}, ErrorCode.inconsistent_group_protocol),
        ({"protocol_type": "consumer", "protocol_name": "range"}, NONE),
        ({"instance_id": "nobody's"}, ErrorCode.unknown_member_id),
    ],
)
def test_sync_is_checked(changes: dict[str, Any], error: ErrorCode) -> None:
    test = GroupUnderTest()
    (member,) = test.stable(1)
    assert test.sync(member, **changes).answer.error is error


def test_sync_of_an_unknown_member_is_refused() -> None:
    test = GroupUnderTest()
    assert test.sync("made-up").answer.error is ErrorCode.unknown_member_id


def test_member_that_disconnects_during_its_sync_keeps_its_session() -> None:
    test = GroupUnderTest()
    first, second = test.join(), test.join()
    test.advance(3 * DELAY)
    hung_up = test.sync(second.answer.member_id)
    test.group.abandon_sync(hung_up, test.now)
    test.sync(first.answer.member_id, {})
    assert not hung_up
    test.advance(SESSION_MS - 1)
    assert second.answer.member_id in test.group.member_ids
    test.advance(1)
    assert second.answer.member_id not in test.group.member_ids


# Heartbeats


def test_heartbeats_keep_a_member() -> None:
    test = GroupUnderTest()
    (member,) = test.stable(1)
    for _ in range(5):
        test.advance(SESSION_MS - 1)
        assert test.heartbeat(member) is NONE


def test_member_that_stops_heartbeating_is_removed() -> None:
    test = GroupUnderTest()
    leader, follower = test.stable(2)
    test.advance(SESSION_MS - 1)
    test.heartbeat(leader)
    test.advance(1)
    assert test.group.member_ids == [leader]
    assert test.heartbeat(follower) is ErrorCode.unknown_member_id
    assert test.heartbeat(leader) is ErrorCode.rebalance_in_progress


def test_heartbeat_of_another_generation_is_refused() -> None:
    test = GroupUnderTest()
    (member,) = test.stable(1)
    assert test.heartbeat(member, generation=7) is ErrorCode.illegal_generation


def test_heartbeats_succeed_while_the_leader_assigns() -> None:
    test = GroupUnderTest()
    join = test.join()
    test.advance(DELAY)
    assert test.group.state is ClassicGroupState.COMPLETING_REBALANCE
    assert test.heartbeat(join.answer.member_id) is NONE


# Static members


def test_static_member_rejoins_without_a_rebalance() -> None:
    test = GroupUnderTest()
    (old,) = test.stable(1, instance_id="i")
    answer = test.join(instance_id="i", may_skip_assignment=True).answer
    assert (answer.error, answer.generation, answer.skip_assignment) == (NONE, 1, True)
    assert answer.leader == answer.member_id != old
    assert [one.member_id for one in answer.members] == [answer.member_id]
    assert test.sync(answer.member_id, instance_id="i").answer.assignment == old.encode()
    assert test.group.state is ClassicGroupState.STABLE


def test_static_leader_with_an_old_client_rejoins_as_a_follower() -> None:
    test = GroupUnderTest()
    (old,) = test.stable(1, instance_id="i")
    answer = test.join(instance_id="i").answer
    assert (answer.error, answer.leader, answer.members, answer.skip_assignment) == (NONE, old, (), False)
    assert test.group.leader == answer.member_id


def test_old_member_id_of_a_static_member_is_fenced() -> None:
    test = GroupUnderTest()
    (old,) = test.stable(1, instance_id="i")
    new = test.join(instance_id="i").answer.member_id
    fenced = ErrorCode.fenced_instance_id
    assert test.heartbeat(old, instance_id="i") is fenced
    assert test.join(old, instance_id="i").answer.error is fenced
    assert test.sync(old, instance_id="i").answer.error is fenced
    assert test.leave(MemberIdentity(old, "i")) == [fenced]
    assert test.group.check_commit(old, 1, "i", 8) is fenced
    assert test.heartbeat(old) is ErrorCode.unknown_member_id
    assert test.heartbeat(new, instance_id="i") is NONE


def test_waiting_join_of_a_replaced_static_member_is_fenced_at_once() -> None:
    test = GroupUnderTest()
    waiting = test.join(instance_id="i")
    back = test.join(instance_id="i")
    assert waiting.answer.error is ErrorCode.fenced_instance_id
    test.advance(2 * DELAY)
    assert back.answer.generation == 1
    waiting_sync = test.sync(back.answer.member_id, {}, instance_id="i")
    assert waiting_sync.answer.error is NONE


def test_static_member_that_rejoins_has_a_whole_session() -> None:
    test = GroupUnderTest()
    test.stable(1, instance_id="i")
    test.advance(SESSION_MS - 1)
    back = test.join(instance_id="i").answer.member_id
    test.advance(SESSION_MS - 1)
    assert test.group.member_ids == [back]


def test_session_of_a_static_member_that_waits_in_a_join_does_not_expire() -> None:
    test = GroupUnderTest()
    (other,) = test.stable(1)
    test.join(instance_id="i")
    back = test.join(instance_id="i")
    for _ in range(4):
        test.advance(SESSION_MS // 2)
        test.heartbeat(other)
    assert not back
    test.join(other)
    assert back.answer.generation == 2


def test_static_member_that_rejoins_before_its_sync_is_not_awaited_under_its_old_id() -> None:
    test = GroupUnderTest()
    first, second = test.join(session_ms=200_000), test.join(session_ms=200_000, instance_id="i")
    test.advance(3 * DELAY)
    test.sync(first.answer.member_id, {second.answer.member_id: b"1"})
    back = test.join(instance_id="i", session_ms=200_000).answer.member_id
    assert test.sync(back).answer.assignment == b"1"
    test.advance(REBALANCE_MS)
    assert test.group.state is ClassicGroupState.STABLE


def test_static_member_that_rejoins_during_the_assignment_starts_a_rebalance() -> None:
    test = GroupUnderTest()
    first, second = test.join(), test.join(instance_id="i")
    test.advance(3 * DELAY)
    sync = test.sync(second.answer.member_id, instance_id="i")
    test.join(instance_id="i")
    assert sync.answer.error is ErrorCode.fenced_instance_id
    assert test.group.state is ClassicGroupState.PREPARING_REBALANCE, "the leader assigned to an id that is gone"
    assert test.heartbeat(first.answer.member_id) is ErrorCode.rebalance_in_progress


def test_static_member_that_rejoins_with_another_preference_starts_a_rebalance() -> None:
    test = GroupUnderTest()
    test.stable(1, instance_id="i", protocols={"a": b"", "b": b""})
    back = test.join(instance_id="i", protocols={"b": b"", "a": b""})
    assert (back.answer.generation, back.answer.protocol_name) == (2, "b")


def test_static_member_that_misses_the_join_phase_stays() -> None:
    test = GroupUnderTest()
    first = test.join()
    second = test.join(instance_id="i", session_ms=200_000)
    test.advance(3 * DELAY)
    test.sync(first.answer.member_id)
    test.sync(second.answer.member_id, instance_id="i")
    again = test.join(first.answer.member_id)
    test.advance(REBALANCE_MS)
    assert again.answer.generation == 2
    assert second.answer.member_id in test.group.member_ids


def test_static_member_needs_its_current_member_id() -> None:
    test = GroupUnderTest()
    (member,) = test.stable(1, instance_id="i")
    assert test.heartbeat(member, instance_id="other") is ErrorCode.unknown_member_id
    assert test.heartbeat(member) is NONE, "versions before 3 have no instance ids"


# Leaving


def test_members_that_leave_are_gone_and_the_others_rebalance() -> None:
    test = GroupUnderTest()
    leader, follower = test.stable(2)
    assert test.leave(MemberIdentity(leader)) == [NONE]
    assert test.heartbeat(follower) is ErrorCode.rebalance_in_progress
    assert test.join(follower).answer.leader == follower


def test_each_member_of_a_leave_request_gets_its_own_error() -> None:
    test = GroupUnderTest()
    first, second = test.join(instance_id="i"), test.join()
    test.advance(3 * DELAY)
    pending = test.join(needs_known_member_id=True).answer.member_id
    identities = [
        MemberIdentity("", "i"),  # as admin clients remove static members
        MemberIdentity("", "nobody"),
        MemberIdentity(second.answer.member_id),
        MemberIdentity("made-up"),
        MemberIdentity(pending),
        MemberIdentity(""),
    ]
    unknown = ErrorCode.unknown_member_id
    assert test.leave(*identities) == [NONE, unknown, NONE, unknown, NONE, unknown]
    assert first.answer.member_id not in test.group.member_ids
    assert test.group.is_empty


def test_group_without_members_is_empty_after_a_restart_too() -> None:
    test = GroupUnderTest()
    ids = test.stable(2)
    test.leave(*(MemberIdentity(each) for each in ids))
    assert test.group.is_empty
    assert test.group.generation == 2
    assert len(test.stored) == 2


def test_waiting_join_of_a_removed_member_gets_an_error() -> None:
    test = GroupUnderTest()
    leader, _ = test.stable(2)
    waiting = test.join(leader)
    test.leave(MemberIdentity(leader))
    assert waiting.answer.error is ErrorCode.unknown_member_id


# Committing


def test_members_commit_with_the_current_generation_only() -> None:
    test = GroupUnderTest()
    (member,) = test.stable(1)
    check = test.group.check_commit
    assert check(member, 1, None, 8) is NONE
    assert check(member, 0, None, 8) is ErrorCode.illegal_generation
    assert check("made-up", 1, None, 8) is ErrorCode.unknown_member_id
    assert check("", -1, None, 8) is ErrorCode.unknown_member_id, "only an empty group takes commits of strangers"


def test_empty_group_takes_commits_without_a_member_only() -> None:
    test = GroupUnderTest()
    assert test.group.check_commit("", -1, None, 8) is NONE
    assert test.group.check_commit("x", 3, None, 8) is ErrorCode.unknown_member_id


def test_commit_while_the_leader_assigns_gets_rebalance_in_progress() -> None:
    test = GroupUnderTest()
    join = test.join()
    test.advance(DELAY)
    assert test.group.check_commit(join.answer.member_id, 1, None, 8) is ErrorCode.rebalance_in_progress


def test_member_may_commit_during_the_join_phase() -> None:
    test = GroupUnderTest()
    leader, follower = test.stable(2)
    test.join(leader)
    assert test.group.check_commit(follower, 1, None, 8) is NONE


def test_commit_restarts_the_session() -> None:
    test = GroupUnderTest()
    (member,) = test.stable(1)
    test.advance(SESSION_MS - 1)
    test.group.committed(member, test.now)
    test.advance(SESSION_MS - 1)
    assert test.group.member_ids == [member]


def test_offsets_of_a_group_of_another_protocol_can_be_deleted_only_while_it_is_empty() -> None:
    test = GroupUnderTest()
    assert test.group.check_offset_delete() is NONE
    test.stable(1, protocol_type="connect")
    assert test.group.check_offset_delete() is ErrorCode.non_empty_group
    consumers = GroupUnderTest()
    consumers.stable(1)
    assert consumers.group.check_offset_delete() is NONE


# What it shows


def test_description_has_metadata_only_while_the_group_is_stable() -> None:
    test = GroupUnderTest()
    (member,) = test.stable(1)
    described = test.group.describe()
    assert (described.state_name, described.protocol_type, described.protocol_name) == ("Stable", "consumer", "range")
    (only,) = described.members
    assert (only.member_id, only.metadata, only.assignment) == (member, subscription("orders"), member.encode())
    assert (only.client_id, only.client_host) == ("client", "/127.0.0.1")
    test.join()
    described = test.group.describe()
    assert (described.state_name, described.protocol_name) == ("PreparingRebalance", "")
    assert {one.metadata for one in described.members} == {b""}


def test_topics_of_all_members_are_subscribed_to() -> None:
    test = GroupUnderTest()
    test.join(protocols={"range": subscription("a", "b")})
    test.join(protocols={"range": subscription("c")})
    test.advance(3 * DELAY)
    assert [test.group.subscribed_to(topic) for topic in "abcd"] == [True, True, True, False]


@pytest.mark.parametrize("metadata", [b"", b"\xff\xff\0\0\0\0", b"\0\1\x7f\xff\xff\xff"])
def test_group_with_an_unreadable_subscription_counts_as_subscribed_to_every_topic(metadata: bytes) -> None:
    test = GroupUnderTest()
    test.stable(1, protocols={"range": metadata})
    assert test.group.subscribed_to("anything")


def test_group_of_another_protocol_subscribes_to_no_topic() -> None:
    test = GroupUnderTest()
    test.stable(1, protocol_type="connect", protocols={"range": subscription("orders")})
    assert not test.group.subscribed_to("orders")


def test_closed_group_fails_waiting_requests_and_refuses_new_ones() -> None:
    test = GroupUnderTest()
    join = test.join()
    test.advance(DELAY)
    waiting = test.join()
    gone = ErrorCode.coordinator_not_available
    test.group.close(gone)
    assert waiting.answer.error is gone
    member = join.answer.member_id
    assert test.join().answer.error is gone
    assert test.sync(member).answer.error is gone
    assert test.heartbeat(member) is gone
    assert test.leave(MemberIdentity(member)) == [gone]
    assert test.group.check_commit(member, 1, None, 8) is gone
    assert test.group.check_fetch(None, -1) is ErrorCode.group_id_not_found
    assert test.group.check_offset_delete() is ErrorCode.group_id_not_found
    assert test.group.wake_at_ms is None

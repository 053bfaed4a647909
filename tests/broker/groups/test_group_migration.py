"""Groups that change their protocol while they have members."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from stratalog.broker.groups.classic_group import ClassicGroup
from stratalog.broker.groups.classic_messages import MemberIdentity
from stratalog.broker.groups.config import GroupConfig
from stratalog.broker.groups.consumer_group import ConsumerGroup
from stratalog.broker.groups.consumer_protocol import encode_assignment, parse_assignment, parse_subscription
from stratalog.broker.groups.consumer_requests import GroupRefusedError
from stratalog.broker.groups.offset_records import GROUP_KEY_TYPE, key_type
from stratalog.errors import GroupRecordError, StorageError
from tests.broker.groups.consumer_world import FakeTopics, joining
from tests.broker.groups.members import Join, join_request, subscription
from tests.broker.groups.migration_lab import (
    COOPERATIVE,
    EAGER,
    NONE,
    SESSION_MS,
    ClassicConsumer,
    MigrationLab,
    NewConsumer,
)

PROTOCOLS = [EAGER, COOPERATIVE]
Consumer = ClassicConsumer | NewConsumer


def lab_of(**settings: Any) -> MigrationLab:
    return MigrationLab(FakeTopics(t=6), GroupConfig(group_initial_rebalance_delay_ms=0, **settings))


def all_partitions(lab: MigrationLab) -> set[Any]:
    return {(topic.id, index) for topic in lab.topics.all() for index in range(topic.partition_count)}


def settle(lab: MigrationLab, *consumers: Consumer) -> None:
    """Run all consumers until every partition is read by one of them, evenly."""
    for _ in range(40):
        for one in consumers:
            one.step()
        lab.advance(1)
        read = [one.reading for one in consumers]
        assert sum(map(len, read)) == len(set().union(*read)), "a partition is read twice"
        settled = all(one.is_settled for one in consumers if isinstance(one, ClassicConsumer))
        sizes = [len(each) for each in read]
        if settled and set().union(*read) == all_partitions(lab) and max(sizes) - min(sizes) <= 1:
            return
    raise AssertionError(f"not settled: {[one.reading for one in consumers]}")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_kip_848_member_that_joins_a_classic_group_gets_its_share(protocol: str) -> None:
    lab = lab_of()
    old = [ClassicConsumer(lab, "t", protocol=protocol) for _ in range(2)]
    settle(lab, *old)
    assert lab.kind == "classic"
    new = NewConsumer(lab, "new", "t")
    settle(lab, *old, new)
    assert lab.kind == "consumer"
    assert len(new.reading) == 2
    assert [one.lost for one in old] == [0, 0]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_members_are_upgraded_and_downgraded_one_after_the_other(protocol: str) -> None:
    lab = lab_of()
    consumers: list[Consumer] = [ClassicConsumer(lab, "t", protocol=protocol) for _ in range(3)]
    everyone = list(consumers)
    settle(lab, *consumers)
    for number in range(3):
        consumers.pop(0).close()
        consumers.append(NewConsumer(lab, f"new-{number}", "t"))
        everyone.append(consumers[-1])
        settle(lab, *consumers)
        assert lab.kind == "consumer"
    for _ in range(3):
        consumers.pop(0).close()
        consumers.append(ClassicConsumer(lab, "t", protocol=protocol))
        everyone.append(consumers[-1])
        settle(lab, *consumers)
    assert lab.kind == "classic"
    assert not any(one.lost for one in everyone if isinstance(one, ClassicConsumer))


def test_members_with_an_old_epoch_rejoin_before_the_group_is_downgraded() -> None:
    """A classic group would not know their generation, and they could not commit."""
    lab = lab_of()
    old = [ClassicConsumer(lab, "t") for _ in range(2)]
    new = NewConsumer(lab, "new", "t")
    settle(lab, old[0], new)
    old[1].step()  # gets its id
    old[1].step()
    old[1].step()  # joins, so the epoch of the other members is old
    new.close()
    assert lab.kind == "consumer"
    settle(lab, *old)
    assert lab.kind == "classic"
    assert [one.lost for one in old] == [0, 0]


@pytest.mark.parametrize("ending", ["leaves", "dies"])
def test_a_downgraded_group_elects_a_leader_and_takes_over_the_partitions_of_members_that_left(ending: str) -> None:
    lab = lab_of()
    old, new = ClassicConsumer(lab, "t"), NewConsumer(lab, "new", "t")
    settle(lab, old, new)
    if ending == "leaves":
        new.close()
    else:
        for _ in range(10):
            lab.advance(SESSION_MS // 9)
            old.step()
    settle(lab, old)
    group = lab.host.group("g")
    assert isinstance(group, ClassicGroup)
    assert group.leader == old.member_id


def test_a_member_that_joins_right_after_a_downgrade_is_not_refused_for_its_protocol() -> None:
    lab = lab_of()
    old = [ClassicConsumer(lab, "t", protocol=EAGER, other_protocols=(COOPERATIVE,)) for _ in range(2)]
    new = NewConsumer(lab, "new", "t")
    settle(lab, *old, new)
    new.close()
    group = lab.host.group("g")
    assert isinstance(group, ClassicGroup)
    assert group.protocol_name == EAGER
    join = Join()
    lab.classic_groups.join("g", join_request(protocols={COOPERATIVE: subscription("t")}), join)
    assert not join, "it waits for the earlier members"
    for one in old:
        one.step()  # a heartbeat: they have to rejoin
        one.step()
    assert (join.answer.error, join.answer.protocol_name) == (NONE, COOPERATIVE)


def test_a_broker_that_is_killed_after_a_downgrade_still_rebalances() -> None:
    lab = lab_of()
    old, new = ClassicConsumer(lab, "t"), NewConsumer(lab, "new", "t")
    settle(lab, old, new)
    new.close()
    lab.restart()
    old.hang_up()
    assert lab.kind == "classic"
    settle(lab, old)
    assert old.lost == 0


def test_a_broker_that_is_killed_during_an_upgrade_continues_it() -> None:
    lab = lab_of()
    old = [ClassicConsumer(lab, "t") for _ in range(2)]
    settle(lab, *old)
    new = NewConsumer(lab, "new", "t")
    new.step()
    before = lab.host.group("g")
    lab.restart()
    after = lab.host.group("g")
    assert isinstance(before, ConsumerGroup)
    assert isinstance(after, ConsumerGroup)
    assert after.members == before.members
    settle(lab, *old, new)
    assert [one.lost for one in old] == [0, 0]


def test_a_conversion_that_can_not_be_written_changes_nothing() -> None:
    lab = lab_of()
    old = ClassicConsumer(lab, "t")
    settle(lab, old)
    lab.log.failure = StorageError("disk full")
    with pytest.raises(GroupRefusedError) as refused:
        lab.send(joining("new", "t"))
    assert refused.value.code is ErrorCode.not_coordinator
    assert lab.kind == "classic"
    lab.log.failure = None
    settle(lab, old, NewConsumer(lab, "new", "t"))


def test_joins_that_wait_during_an_upgrade_get_rebalance_in_progress() -> None:
    lab = lab_of(group_min_session_timeout_ms=1)
    old = ClassicConsumer(lab, "t")
    settle(lab, old)
    waiting = Join()
    lab.classic_groups.join("g", join_request(protocols={"range": subscription("t")}), waiting)
    assert not waiting
    lab.send(joining("new", "t"))
    assert waiting.answer.error is ErrorCode.rebalance_in_progress
    assert waiting.answer.member_id in lab.member_ids


def test_a_partition_that_a_cooperative_member_is_revoking_does_not_go_to_a_new_member() -> None:
    """In a classic group the partition would have no owner for one generation, in which its reader learns of it."""
    lab = lab_of()
    first, second = (ClassicConsumer(lab, "t", protocol=COOPERATIVE) for _ in range(2))
    settle(lab, first)
    for _ in range(4):
        second.step()  # its id, its join, and the rebalance
    for _ in range(2):
        first.step()  # it joins, and assigns as the leader
        lab.advance(1)
        second.step()
    group = lab.host.group("g")
    assert group is not None
    assert group.state_name == "Stable"
    assert len(first.reading) == 6  # it does not know yet what it must revoke
    new = NewConsumer(lab, "new", "t")
    new.step()
    assert not new.reading & first.reading
    settle(lab, first, second, new)


@pytest.mark.parametrize("policy", ["disabled", "downgrade"])
def test_a_join_is_refused_if_upgrades_are_not_allowed(policy: str) -> None:
    lab = lab_of(group_consumer_migration_policy=policy)
    old = ClassicConsumer(lab, "t")
    settle(lab, old)
    with pytest.raises(GroupRefusedError, match=r"online upgrade is disabled by group\.consumer\.migration\.policy"):
        lab.send(joining("new", "t"))
    settle(lab, old)
    old.close()
    lab.advance(60_000)
    settle(lab, NewConsumer(lab, "new", "t"))  # empty groups may always change


@pytest.mark.parametrize("policy", ["disabled", "upgrade"])
def test_classic_members_stay_in_a_kip_848_group_if_downgrades_are_not_allowed(policy: str) -> None:
    lab = lab_of(group_consumer_migration_policy=policy)
    old, new = ClassicConsumer(lab, "t"), NewConsumer(lab, "new", "t")
    settle(lab, new)
    settle(lab, old, new)
    new.close()
    settle(lab, old)
    assert lab.kind == "consumer"
    lab.topics.grow("t", 8)  # no KIP-848 member is there to notice it
    settle(lab, old)


@pytest.mark.parametrize(
    ("protocol_type", "metadata", "reason"),
    [("connect", b"anything", "does not use the consumer embedded"), ("consumer", b"\0", "protocol is malformed")],
)
def test_a_group_of_another_protocol_is_not_upgraded(protocol_type: str, metadata: bytes, reason: str) -> None:
    lab = lab_of()
    join = Join()
    request = join_request(protocol_type=protocol_type, protocols={"p": metadata})
    lab.classic_groups.join("g", request, join)
    lab.advance(1)
    assert join.answer.error is NONE
    with pytest.raises(GroupRefusedError, match=reason) as refused:
        lab.send(joining("new", "t"))
    assert refused.value.code is ErrorCode.group_id_not_found
    assert lab.kind == "classic"


def test_classic_requests_that_a_kip_848_group_can_not_serve_are_refused() -> None:
    lab = lab_of(group_consumer_max_size=2)
    old, new = ClassicConsumer(lab, "t"), NewConsumer(lab, "new", "t")
    settle(lab, old, new)

    def refusal(**changes: Any) -> ErrorCode:
        join = Join()
        lab.classic_groups.join("g", join_request(**changes), join)
        return join.answer.error

    good = {"range": subscription("t")}
    assert refusal(protocols={"other": subscription("t")}) is ErrorCode.inconsistent_group_protocol
    assert refusal(protocols=good, protocol_type="connect") is ErrorCode.inconsistent_group_protocol
    assert refusal(protocols={"range": b"\0"}) is ErrorCode.inconsistent_group_protocol
    assert refusal(protocols=good) is ErrorCode.group_max_size_reached
    assert refusal(protocols=good, member_id="new", instance_id="nobody") is ErrorCode.unknown_member_id
    heartbeat = lab.classic_groups.heartbeat
    assert heartbeat("g", "new", None, new.epoch) is ErrorCode.unknown_member_id  # it uses the KIP-848 protocol
    assert heartbeat("g", old.member_id, None, old.generation + 1) is ErrorCode.illegal_generation
    assert lab.commit_error(old.member_id, old.generation + 1) is ErrorCode.illegal_generation
    assert lab.commit_error(old.member_id, old.generation, version=2) is NONE


def test_leave_of_several_members_of_a_mixed_group_has_an_error_code_for_each() -> None:
    lab = lab_of()
    old, new = ClassicConsumer(lab, "t"), NewConsumer(lab, "new", "t")
    settle(lab, old, new)
    leaving = [MemberIdentity("unknown", None), MemberIdentity(old.member_id, None), MemberIdentity("", "unknown")]
    unknown = ErrorCode.unknown_member_id
    assert lab.classic_groups.leave("g", leaving) == [unknown, NONE, unknown]
    assert lab.member_ids == {"new"}


def test_member_that_disconnects_during_its_sync_gets_no_response() -> None:
    lab = lab_of()
    leader, follower = ClassicConsumer(lab, "t"), ClassicConsumer(lab, "t")
    settle(lab, leader)
    follower.step()  # gets its id
    follower.step()
    follower.step()  # joins
    leader.step()  # rejoins
    follower.step()  # waits for the leader's assignment
    sync = follower._sync
    assert sync is not None
    follower.lose_connection()
    leader.step()  # sends the assignment
    assert not sync
    lab.classic_groups.abandon_sync("unknown", sync)


def test_a_static_member_changes_its_protocol_and_keeps_its_partitions() -> None:
    lab = lab_of()
    one, two = (ClassicConsumer(lab, "t", instance_id=name) for name in "ab")
    settle(lab, one, two)
    kept = set(one.reading)
    new = NewConsumer(lab, "new", "t")
    new.instance_id = "a"  # classic static members do not leave the group when they stop
    settle(lab, two, new)
    assert new.reading == kept
    new.leave(-2)
    again = ClassicConsumer(lab, "t", instance_id="a")
    settle(lab, two, again)
    assert lab.kind == "classic"


def test_a_classic_member_that_does_not_rejoin_or_sync_in_time_is_removed() -> None:
    lab = lab_of()
    slow, new = ClassicConsumer(lab, "t"), NewConsumer(lab, "new", "t")
    settle(lab, slow, new)
    lab.topics.grow("t", 9)
    new.step()
    for _ in range(20):
        lab.classic_groups.heartbeat("g", slow.member_id, None, slow.generation)
        new.step()
        lab.advance(5_000)
    assert slow.member_id not in lab.member_ids
    settle(lab, new)


def test_subscriptions_and_assignments_are_read_as_consumers_write_them() -> None:
    assert parse_subscription(subscription("b", "a")).topics == ("a", "b")
    newest = bytes.fromhex(
        "0003 00000001 0001 74 ffffffff 00000001 0001 74 00000002 00000000 00000002 00000007 0001 72"
    )
    parsed = parse_subscription(newest)
    assert (parsed.version, parsed.owned, parsed.rack_id) == (3, {"t": frozenset((0, 2))}, "r")
    oldest = bytes.fromhex("0000 00000001 0001 74 00000002 abcd")
    assert parse_subscription(oldest).owned == {}
    share = {"t": frozenset((1, 0)), "a": frozenset((5,))}
    assert parse_assignment(encode_assignment(share, 7)).partitions == share
    assert encode_assignment(share, 7)[:2] == b"\0\3"
    assert parse_assignment(b"").partitions == {}
    for broken in (b"\0", b"\xff\xff", newest[:-1]):
        with pytest.raises(GroupRecordError):
            parse_subscription(broken)


def test_a_converted_group_leaves_no_record_of_its_other_kind() -> None:
    lab = lab_of()
    old, new = ClassicConsumer(lab, "t"), NewConsumer(lab, "new", "t")

    def kinds() -> set[bool]:
        latest: dict[bytes, bytes | None] = {}
        for key, value in lab.log.records:
            latest[key] = value
        return {key_type(key) == GROUP_KEY_TYPE for key, value in latest.items() if value is not None}

    settle(lab, old)
    assert kinds() == {True}
    settle(lab, old, new)
    assert kinds() == {False}
    new.close()
    settle(lab, old)
    assert kinds() == {True}

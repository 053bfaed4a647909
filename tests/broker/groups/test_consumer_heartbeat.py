"""Heartbeats of KIP-848 members, as a consumer sees them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from stratalog.broker.groups.config import GroupConfig
from stratalog.broker.groups.consumer_records import (
    ConsumerGroupMetadata,
    MemberState,
    PartitionMetadata,
    RecordType,
    RegularExpression,
    TargetMetadata,
    Tombstone,
    decode,
)
from stratalog.broker.groups.consumer_requests import GroupRefusedError, Heartbeat
from tests.broker.groups.consumer_world import FakeTopics, World, joining


def refusal(world: World, request: Heartbeat, api_version: int = 1) -> tuple[ErrorCode, str | None]:
    before = list(world.host.log)
    with pytest.raises(GroupRefusedError) as caught:
        world.send(request, api_version)
    assert world.host.log == before, "a request that was refused has written records"
    return caught.value.code, caught.value.message


def two_members() -> World:
    """Return a group in which m0 and m1 share the four partitions of a, and both have their assignments."""
    world = World(FakeTopics(a=4))
    world.join("m0", "a")
    world.join("m1", "a")
    world.beat("m0", 1, world.topics.partitions(a={0, 1, 2, 3}))
    world.beat("m0", 1, world.topics.partitions(a={0, 1}))
    world.beat("m1", 2, {})
    assert world.group.state_name == "Stable"
    return world


# Joining


def test_the_first_member_gets_all_partitions_at_epoch_1() -> None:
    world = World(FakeTopics(a=2, b=1, other=1))
    answer = world.join("m0", "a", "b")
    assert (answer.member_id, answer.member_epoch) == ("m0", 1)
    assert answer.assignment == world.topics.partitions(a={0, 1}, b={0})
    assert world.group.state_name == "Stable"
    assert (world.group.epoch, world.group.assignment_epoch) == (1, 1)


def test_the_records_of_a_join_have_kafkas_order() -> None:
    world = World(FakeTopics(a=1))
    world.join("m0", "a")
    assert [type(decode(*record)).__name__ for record in world.host.log] == [
        "MemberMetadata",
        "ConsumerGroupMetadata",
        "TargetMember",
        "TargetMetadata",
        "CurrentMember",
    ]


def test_a_second_member_waits_until_the_first_has_revoked_its_share() -> None:
    world = World(FakeTopics(a=4))
    everything = world.join("m0", "a").assignment
    joined = world.join("m1", "a")
    assert (joined.member_epoch, joined.assignment) == (2, {})
    assert world.group.state_name == "Reconciling"
    assert world.group.members["m1"].state is MemberState.UNRELEASED_PARTITIONS

    told = world.beat("m0", 1, everything)
    assert (told.member_epoch, told.assignment) == (1, world.topics.partitions(a={0, 1}))
    assert world.group.members["m0"].state is MemberState.UNREVOKED_PARTITIONS
    assert world.beat("m1", 2).assignment is None, "m0 may still be reading them"

    released = world.beat("m0", 1, world.topics.partitions(a={0, 1}))
    assert (released.member_epoch, released.assignment) == (2, None)
    assert world.beat("m1", 2).assignment == world.topics.partitions(a={2, 3})
    assert world.group.state_name == "Stable"


def test_a_heartbeat_without_owned_partitions_revokes_nothing() -> None:
    world = World(FakeTopics(a=2))
    world.join("m0", "a")
    world.join("m1", "a")
    world.beat("m0", 1)
    assert world.beat("m0", 1).member_epoch == 1
    assert world.beat("m1", 2).assignment is None


def test_a_heartbeat_without_changes_writes_no_record_and_returns_no_assignment() -> None:
    world = two_members()
    before = list(world.host.log)
    answer = world.beat("m0", 2)
    assert (answer.member_epoch, answer.assignment) == (2, None)
    assert world.host.log == before


def test_a_full_heartbeat_gets_the_assignment_again() -> None:
    world = two_members()
    owned = world.topics.partitions(a={0, 1})
    answer = world.send(joining("m0", "a", member_epoch=2, owned=owned))
    assert answer.assignment == owned


def test_a_member_without_a_subscription_gets_no_partitions() -> None:
    world = two_members()
    answer = world.join("m2")
    assert (answer.member_epoch, answer.assignment) == (2, {})
    assert world.group.state_name == "Stable"


def test_a_subscription_to_a_missing_topic_gets_it_when_it_is_created() -> None:
    world = World(FakeTopics())
    assert world.join("m0", "later").assignment == {}
    world.topics.create("later", 2)
    answer = world.beat("m0", 1)
    assert (answer.member_epoch, answer.assignment) == (2, world.topics.partitions(later={0, 1}))


def test_version_0_assigns_a_member_id() -> None:
    world = World(FakeTopics(a=1))
    answer = world.send(joining("", "a"), api_version=0)
    assert len(answer.member_id) == 22
    assert world.send(joining("", "a"), api_version=0).member_id != answer.member_id


def test_a_known_member_that_joins_again_gets_its_partitions_back() -> None:
    world = two_members()
    answer = world.join("m0", "a")
    assert (answer.member_epoch, answer.assignment) == (2, world.topics.partitions(a={0, 1}))


def test_joining_again_revokes_the_partitions_that_were_due() -> None:
    world = World(FakeTopics(a=2))
    world.join("m0", "a")
    world.join("m1", "a")
    world.beat("m0", 1)
    answer = world.join("m0", "a")
    assert (answer.member_epoch, answer.assignment) == (2, world.topics.partitions(a={0}))
    assert world.beat("m1", 2).assignment == world.topics.partitions(a={1})


def test_a_full_group_refuses_a_new_member_and_accepts_an_existing_one() -> None:
    world = World(FakeTopics(a=1), GroupConfig(group_consumer_max_size=1))
    world.join("m0", "a")
    assert refusal(world, joining("m1", "a"))[0] is ErrorCode.group_max_size_reached
    assert world.join("m0", "a").member_epoch == 1


# Requests that no group accepts


@pytest.mark.parametrize(
    ("fields", "api_version", "code", "message"),
    [
        ({"member_id": ""}, 1, ErrorCode.invalid_request, "MemberId can't be empty."),
        ({"member_id": "  "}, 1, ErrorCode.invalid_request, "MemberId can't be empty."),
        ({"member_id": "", "member_epoch": 3}, 0, ErrorCode.invalid_request, "MemberId can't be empty."),
        ({"member_id": "", "member_epoch": -1}, 0, ErrorCode.invalid_request, "MemberId can't be empty."),
        ({"group_id": ""}, 1, ErrorCode.invalid_request, "GroupId can't be empty."),
        ({"instance_id": ""}, 1, ErrorCode.invalid_request, "InstanceId can't be empty."),
        ({"rack_id": " "}, 1, ErrorCode.invalid_request, "RackId can't be empty."),
        ({"member_id": "m" * 40_000}, 1, ErrorCode.invalid_request, "MemberId has 40000 bytes; 32767 are allowed."),
        (
            {"rebalance_timeout_ms": -1},
            1,
            ErrorCode.invalid_request,
            "RebalanceTimeoutMs must be provided in first request.",
        ),
        (
            {"rebalance_timeout_ms": -2},
            1,
            ErrorCode.invalid_request,
            "RebalanceTimeoutMs is -2; it must not be negative.",
        ),
        ({"owned": None}, 1, ErrorCode.invalid_request, "TopicPartitions must be empty when (re-)joining."),
        (
            {"owned": FakeTopics(a=1).partitions(a={0})},
            1,
            ErrorCode.invalid_request,
            "TopicPartitions must be empty when (re-)joining.",
        ),
        (
            {"subscribed_topic_names": None},
            1,
            ErrorCode.invalid_request,
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        ),
        ({"member_epoch": -2}, 1, ErrorCode.invalid_request, "InstanceId can't be null."),
        ({"member_epoch": -3}, 1, ErrorCode.invalid_request, "MemberEpoch is invalid."),
        (
            {"server_assignor": "sticky"},
            1,
            ErrorCode.unsupported_assignor,
            "ServerAssignor sticky is not supported. Supported assignors: uniform, range.",
        ),
    ],
)
def test_an_invalid_request_is_refused(fields: dict[str, Any], api_version: int, code: ErrorCode, message: str) -> None:
    world = World(FakeTopics(a=1))
    assert refusal(world, replace(joining("m0", "a"), **fields), api_version) == (code, message)
    assert world.host.group("g") is None


# Epochs


def test_a_heartbeat_for_a_missing_group_is_refused() -> None:
    assert refusal(World(FakeTopics()), Heartbeat("g", "m0", 1)) == (
        ErrorCode.group_id_not_found,
        "Consumer group g not found.",
    )


def test_a_heartbeat_of_an_unknown_member_is_refused() -> None:
    world = two_members()
    assert refusal(world, Heartbeat("g", "m7", 1))[0] is ErrorCode.unknown_member_id
    assert refusal(world, Heartbeat("g", "m7", -1))[0] is ErrorCode.unknown_member_id


@pytest.mark.parametrize("epoch", [1, 3])
def test_a_wrong_epoch_is_fenced(epoch: int) -> None:
    world = two_members()
    assert refusal(world, Heartbeat("g", "m0", epoch))[0] is ErrorCode.fenced_member_epoch


def test_a_member_that_lost_the_response_with_its_new_epoch_continues() -> None:
    world = World(FakeTopics(a=2))
    everything = world.join("m0", "a").assignment
    world.topics.grow("a", 3)
    assert world.beat("m0", 1).member_epoch == 2
    again = world.send(joining("m0", "a", member_epoch=1, owned=everything))
    assert (again.member_epoch, again.assignment) == (2, world.topics.partitions(a={0, 1, 2}))


def test_the_previous_epoch_is_fenced_if_the_member_still_owns_revoked_partitions() -> None:
    world = two_members()
    world.join("m0", "a")
    owned = world.topics.partitions(a={0, 1, 2})
    assert refusal(world, Heartbeat("g", "m0", 1, owned=owned))[0] is ErrorCode.fenced_member_epoch
    assert refusal(world, Heartbeat("g", "m0", 1))[0] is ErrorCode.fenced_member_epoch


def test_a_member_in_a_state_of_a_later_kafka_must_rejoin() -> None:
    world = two_members()
    member = world.group.members["m0"]
    world.group.members["m0"] = replace(member, state=MemberState.UNKNOWN)
    assert refusal(world, Heartbeat("g", "m0", 2))[0] is ErrorCode.fenced_member_epoch
    answer = world.join("m0", "a")
    assert answer.assignment == world.topics.partitions(a={0, 1})
    assert world.group.members["m0"].state is MemberState.STABLE


# Leaving


def test_the_partitions_of_a_member_that_left_go_to_the_others() -> None:
    world = two_members()
    left = world.leave("m1")
    assert (left.member_id, left.member_epoch, left.assignment) == ("m1", -1, None)
    assert world.group.state_name == "Assigning"
    answer = world.beat("m0", 2)
    assert (answer.member_epoch, answer.assignment) == (3, world.topics.partitions(a={0, 1, 2, 3}))


def test_a_group_without_members_is_empty_and_can_be_joined_again() -> None:
    world = two_members()
    world.leave("m0")
    world.leave("m1")
    assert (world.group.state_name, world.group.epoch) == ("Empty", 4)
    assert world.group.target == {}
    answer = world.join("m2", "a")
    assert (answer.member_epoch, answer.assignment) == (5, world.topics.partitions(a={0, 1, 2, 3}))


# Static members


def static_member() -> World:
    world = World(FakeTopics(a=2))
    world.join("m0", "a", instance_id="i")
    return world


def test_a_static_member_that_rejoins_has_its_partitions_without_a_rebalance() -> None:
    world = static_member()
    left = world.send(Heartbeat("g", "m0", -2, instance_id="i"))
    assert (left.member_id, left.member_epoch) == ("m0", -2)
    back = world.join("m1", "a", instance_id="i")
    assert (back.member_epoch, back.assignment) == (1, world.topics.partitions(a={0, 1}))
    assert world.group.epoch == 1
    assert list(world.group.members) == ["m1"]


def test_no_member_gets_the_partitions_of_a_static_member_that_is_away() -> None:
    world = static_member()
    world.send(Heartbeat("g", "m0", -2, instance_id="i"))
    assert world.join("m1", "a").assignment == {}
    assert world.beat("m1", 2).assignment is None


def test_a_static_member_that_rejoins_revokes_partitions_that_it_lost() -> None:
    world = static_member()
    world.send(Heartbeat("g", "m0", -2, instance_id="i"))
    world.join("m1", "a")
    back = world.join("m2", "a", instance_id="i")
    assert (back.member_epoch, back.assignment) == (2, world.topics.partitions(a={0}))
    assert world.beat("m1", 2).assignment == world.topics.partitions(a={1})


def test_partitions_that_a_static_member_had_to_revoke_are_free_once_it_is_away() -> None:
    world = static_member()
    world.join("m1", "a")
    world.beat("m0", 1, instance_id="i")
    assert world.beat("m1", 2).assignment is None
    world.send(Heartbeat("g", "m0", -2, instance_id="i"))
    assert world.beat("m1", 2).assignment == world.topics.partitions(a={1})


def test_a_static_member_that_leaves_permanently_is_removed() -> None:
    world = static_member()
    world.leave("m0", instance_id="i")
    assert world.group.is_empty
    assert world.join("m1", "a", instance_id="i").member_epoch == 3


def test_an_instance_id_in_use_is_refused() -> None:
    world = static_member()
    assert refusal(world, joining("m1", "a", instance_id="i")) == (
        ErrorCode.unreleased_instance_id,
        "Static member m1 with instance id i cannot join the group because the instance id is owned by m0 member.",
    )


def test_the_holder_of_an_instance_id_may_join_again() -> None:
    world = static_member()
    assert world.join("m0", "a", instance_id="i").assignment == world.topics.partitions(a={0, 1})


def test_a_static_member_may_rejoin_a_full_group() -> None:
    world = World(FakeTopics(a=1), GroupConfig(group_consumer_max_size=1))
    world.join("m0", "a", instance_id="i")
    world.send(Heartbeat("g", "m0", -2, instance_id="i"))
    assert world.join("m1", "a", instance_id="i").member_epoch == 1


def test_the_old_process_of_a_static_member_is_fenced() -> None:
    world = static_member()
    world.send(Heartbeat("g", "m0", -2, instance_id="i"))
    world.join("m1", "a", instance_id="i")
    for epoch in (1, -1, -2):
        assert refusal(world, Heartbeat("g", "m0", epoch, instance_id="i"))[0] is ErrorCode.fenced_instance_id


def test_a_static_member_that_left_must_join_before_its_next_heartbeat() -> None:
    world = static_member()
    world.topics.grow("a", 3)
    assert world.beat("m0", 1, instance_id="i").member_epoch == 2
    world.send(Heartbeat("g", "m0", -2, instance_id="i"))
    for epoch in (1, 2):
        request = Heartbeat("g", "m0", epoch, instance_id="i", owned={})
        assert refusal(world, request)[0] is ErrorCode.fenced_member_epoch


def test_an_unknown_instance_id_is_refused() -> None:
    world = static_member()
    for epoch in (1, -1, -2):
        assert refusal(world, Heartbeat("g", "m0", epoch, instance_id="j"))[0] is ErrorCode.unknown_member_id


def test_a_member_may_change_its_instance_id_when_it_joins_again() -> None:
    world = static_member()
    world.join("m0", "a", instance_id="j")
    assert world.group.static_member("i") is None
    assert world.join("m1", "a", instance_id="i").member_epoch == 2


# Subscriptions and topics


def test_new_partitions_of_a_topic_are_assigned() -> None:
    world = two_members()
    world.topics.grow("a", 6)
    assert world.beat("m0", 2).member_epoch == 3
    assert world.beat("m1", 2).member_epoch == 3
    assert [len(m.assigned[world.topics.all()[0].id]) for m in world.group.members.values()] == [3, 3]


def test_a_topic_without_subscribers_changes_nothing() -> None:
    world = two_members()
    before = list(world.host.log)
    world.topics.create("other", 3)
    assert world.beat("m0", 2).member_epoch == 2
    assert world.host.log == before


def test_a_deleted_topic_is_revoked_and_a_new_one_of_the_same_name_is_assigned() -> None:
    world = World(FakeTopics(a=1, b=1))
    owned = world.join("m0", "a", "b").assignment
    world.topics.delete("a")
    answer = world.beat("m0", 1, owned)
    assert (answer.member_epoch, answer.assignment) == (1, world.topics.partitions(b={0}))
    assert world.beat("m0", 1, world.topics.partitions(b={0})).member_epoch == 2
    world.topics.create("a", 1)
    assert world.beat("m0", 2).assignment == world.topics.partitions(a={0}, b={0})


def test_a_member_that_unsubscribes_from_a_topic_must_revoke_it() -> None:
    world = World(FakeTopics(a=1, b=1))
    owned = world.join("m0", "a", "b").assignment
    answer = world.beat("m0", 1, owned, subscribed_topic_names=("a",))
    assert (answer.member_epoch, answer.assignment) == (1, world.topics.partitions(a={0}))
    assert world.beat("m0", 1, world.topics.partitions(a={0})).member_epoch == 2


def test_the_assignor_of_most_members_is_used() -> None:
    world = World(FakeTopics(a=2, b=2))
    world.join("m0", "a", "b", server_assignor="range")
    assert world.group.preferred_assignor(("uniform", "range")) == "range"
    world.join("m1", "a", "b")
    assert world.group.target["m0"] == world.topics.partitions(a={0}, b={0})
    world.join("m2", "a", "b", server_assignor="uniform")
    world.join("m3", "a", "b", server_assignor="uniform")
    assert world.group.preferred_assignor(("uniform", "range")) == "uniform"
    assert world.group.preferred_assignor(("range",)) == "range"


def test_records_that_only_kafka_4_0_wrote_are_deleted() -> None:
    world = two_members()
    world.group.apply(PartitionMetadata("g", ()))
    world.topics.grow("a", 5)
    world.beat("m0", 2)
    assert Tombstone(RecordType.PARTITION_METADATA, "g") in [decode(*record) for record in world.host.log]
    assert not world.group.has_partition_metadata


# Regular expressions


def test_a_pattern_subscribes_to_every_topic_it_matches() -> None:
    world = World(FakeTopics(orders=1, orders_eu=1, payments=1))
    world.send(joining("m0", subscribed_topic_names=None, subscribed_topic_regex="orders.*"))
    world.resolve()
    answer = world.beat("m0", 1)
    assert answer.assignment == world.topics.partitions(orders={0}, orders_eu={0})
    assert world.group.subscribed_to("orders_eu")
    assert not world.group.subscribed_to("payments")


def test_names_and_a_pattern_add_up() -> None:
    world = World(FakeTopics(a=1, b=1, c=1))
    assert world.join("m0", "a", subscribed_topic_regex="b").assignment == world.topics.partitions(a={0})
    world.resolve()
    answer = world.beat("m0", 1)
    assert answer.assignment == world.topics.partitions(a={0}, b={0})


def test_a_new_topic_that_matches_is_assigned() -> None:
    world = World(FakeTopics(orders=1))
    world.join("m0", subscribed_topic_regex="orders.*")
    world.resolve()
    assert world.beat("m0", 1).assignment == world.topics.partitions(orders={0})
    world.topics.create("orders_eu", 1)
    assert world.beat("m0", 2).member_epoch == 2, "it uses the topics of the last resolution"
    world.resolve()
    answer = world.beat("m0", 2)
    assert (answer.member_epoch, answer.assignment) == (3, world.topics.partitions(orders={0}, orders_eu={0}))


def test_a_pattern_is_deleted_with_its_last_member() -> None:
    world = World(FakeTopics(a=1, b=1))
    world.join("m0", subscribed_topic_regex="a")
    world.join("m1", subscribed_topic_regex="a")
    world.beat("m1", 1, subscribed_topic_regex="b")
    world.resolve()
    assert world.group.resolved == {"a": ("a",), "b": ("b",)}
    world.beat("m0", 1, subscribed_topic_regex="")
    assert world.group.resolved == {"b": ("b",)}
    world.leave("m1")
    assert world.group.resolved == {}


def test_a_pattern_stays_while_a_member_has_it() -> None:
    world = World(FakeTopics(a=1))
    world.join("m0", subscribed_topic_regex="a")
    world.join("m1", subscribed_topic_regex="a")
    world.resolve()
    world.leave("m1")
    assert world.group.resolved == {"a": ("a",)}


def test_topics_are_scanned_only_after_they_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(FakeTopics(a=1))
    world.join("m0", subscribed_topic_regex="a")
    world.resolve()
    monkeypatch.setattr(world.topics, "all", lambda: pytest.fail("looked through"))
    assert world.beat("m0", 1).member_epoch == 2
    assert not world.host.tasks


def test_a_pattern_that_is_not_valid_is_refused() -> None:
    world = World(FakeTopics(a=1))
    code, message = refusal(world, joining("m0", subscribed_topic_regex="(a"))
    assert code is ErrorCode.invalid_regular_expression
    assert message == "SubscribedTopicRegex `(a` is not a valid regular expression: missing ): (a."


def test_the_matches_of_a_pattern_are_written() -> None:
    world = World(FakeTopics(ab=1, a=1))
    world.join("m0", subscribed_topic_regex="a.?")
    world.resolve()
    assert RegularExpression("g", "a.?", ("a", "ab"), 0, world.host.now_ms()) in [decode(*r) for r in world.host.log]


def test_a_new_pattern_that_is_too_costly_for_the_topics_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(FakeTopics(abcdef=1))
    monkeypatch.setattr("stratalog.broker.groups.topic_pattern._MAX_WORK", 5)
    code, message = refusal(world, joining("m0", subscribed_topic_regex="a.{3,40}"))
    assert code is ErrorCode.invalid_regular_expression
    assert "it takes too long to match with the existing topics" in str(message)


def test_a_pattern_that_became_too_costly_keeps_its_topics(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(FakeTopics(a=1))
    world.join("m0", subscribed_topic_regex="a.{3,40}|a")
    world.resolve()
    world.topics.create("abcdef", 1)
    monkeypatch.setattr("stratalog.broker.groups.topic_pattern._MAX_WORK", 5)
    assert world.beat("m0", 1).member_epoch == 2
    world.resolve()
    assert world.beat("m0", 2).member_epoch == 2
    assert not world.host.tasks, "it is not tried again before topics change"
    assert "keeps its earlier topics" in caplog.text
    assert world.group.resolved == {"a.{3,40}|a": ("a",)}


def test_each_change_writes_the_group_epoch_and_the_target_epoch() -> None:
    world = two_members()
    epochs = [record for record in (decode(*r) for r in world.host.log) if isinstance(record, ConsumerGroupMetadata)]
    targets = [record for record in (decode(*r) for r in world.host.log) if isinstance(record, TargetMetadata)]
    assert [record.epoch for record in epochs] == [1, 2]
    assert epochs[0].metadata_hash == epochs[1].metadata_hash != 0
    assert [record.assignment_epoch for record in targets] == [1, 2]

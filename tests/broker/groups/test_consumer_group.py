"""The state of a KIP-848 group: the result of its records, and the interface for the coordinator."""

from __future__ import annotations

import random
import uuid

import pytest
from kio.schema.errors import ErrorCode

from stratalog.broker.groups.consumer_group import ConsumerGroup, metadata_hash, replay
from stratalog.broker.groups.consumer_records import (
    ConsumerGroupMetadata,
    CurrentMember,
    MemberMetadata,
    MemberState,
    RecordType,
    TargetMember,
    TargetMetadata,
    Tombstone,
    encode,
)
from stratalog.errors import GroupRecordError
from tests.broker.groups.consumer_world import FakeHost, FakeTopics, World, joining

TOPIC = uuid.UUID(int=1)


def group_of_two() -> World:
    world = World(FakeTopics(a=2, b=1))
    world.join("m0", "a", instance_id="i")
    world.join("m1", subscribed_topic_regex="b")
    world.resolve()
    world.beat("m0", 1, world.topics.partitions(a={0, 1}))
    return world


# Commits and fetches


def test_a_member_commits_with_its_epoch() -> None:
    group = group_of_two().group
    assert group.check_commit("m0", 2, "i", 9) is ErrorCode.none
    assert group.check_commit("m0", 1, "i", 9) is ErrorCode.stale_member_epoch
    assert group.check_commit("m0", 3, None, 9) is ErrorCode.stale_member_epoch
    assert group.check_commit("m7", 2, None, 9) is ErrorCode.unknown_member_id
    assert group.check_commit("", -1, None, 9) is ErrorCode.unknown_member_id


def test_a_commit_of_a_version_without_epochs_is_refused() -> None:
    assert group_of_two().group.check_commit("m0", 2, None, 8) is ErrorCode.unsupported_version


def test_any_client_commits_without_an_epoch_to_a_group_without_members() -> None:
    group = ConsumerGroup("g")
    assert group.check_commit("", -1, None, 2) is ErrorCode.none
    assert group.check_commit("m0", 1, None, 9) is ErrorCode.unknown_member_id


def test_offsets_are_fetched_by_members_with_their_epoch_and_by_requests_that_name_no_member() -> None:
    group = group_of_two().group
    assert group.check_fetch(None, -1) is ErrorCode.none
    assert group.check_fetch("m0", 2) is ErrorCode.none
    assert group.check_fetch("m0", 1) is ErrorCode.stale_member_epoch
    assert group.check_fetch("m7", 2) is ErrorCode.unknown_member_id
    assert group.check_fetch(None, 2) is ErrorCode.unknown_member_id


def test_offsets_of_other_topics_expire_by_the_time_of_their_commit() -> None:
    group = group_of_two().group
    assert group.check_offset_delete() is ErrorCode.none
    assert group.offset_expires_since(123) == 123
    assert group.subscribed_to("a")
    assert group.subscribed_to("b")
    assert not group.subscribed_to("c")


# Replay


def test_tombstones_delete_every_record_of_a_group() -> None:
    world = group_of_two()
    host = FakeHost([*world.host.log, *world.group.tombstones()])
    assert host.group("g") is None
    latest: dict[bytes, bytes | None] = dict(host.log)
    assert set(latest.values()) == {None}, "a record of the group has no tombstone"


def test_a_compacted_log_gives_the_same_group() -> None:
    world = group_of_two()
    world.leave("m1")
    world.beat("m0", 2)
    latest = {key: index for index, (key, _) in enumerate(world.host.log)}
    compacted = [world.host.log[index] for index in sorted(latest.values())]
    assert len(compacted) < len(world.host.log)
    for log in (compacted, [record for record in compacted if record[1] is not None]):
        group = FakeHost(log).group("g")
        assert isinstance(group, ConsumerGroup)
        assert group.members == world.group.members
        assert group.target == world.group.target
        assert (group.epoch, group.assignment_epoch) == (world.group.epoch, world.group.assignment_epoch)
        assert group.owner_of(world.topics.all()[0].id, 1) == "m0"


def test_records_of_a_group_may_come_in_any_order() -> None:
    world = group_of_two()
    latest = list(dict(world.host.log).items())
    for seed in range(20):
        random.Random(seed).shuffle(latest)
        group = FakeHost(latest).group("g")
        assert isinstance(group, ConsumerGroup)
        assert group.members == world.group.members
        assert group.static_member("i") == world.group.members["m0"]


def test_tombstones_of_missing_keys_are_ignored() -> None:
    host = FakeHost()
    for record_type in RecordType:
        replay(host, *encode(Tombstone(record_type, "g", "m")))
    assert host.group("g") is None
    replay(host, *encode(ConsumerGroupMetadata("g", 1)))
    for record_type in RecordType:
        if record_type is not RecordType.GROUP_METADATA:
            replay(host, *encode(Tombstone(record_type, "g", "m")))
    assert host.group("g") is not None


def test_a_record_that_can_not_be_read_is_refused() -> None:
    with pytest.raises(GroupRecordError):
        replay(FakeHost(), bytes.fromhex("0003 000167"), b"\x00")


def test_a_partition_in_two_records_belongs_to_the_member_of_the_later_record() -> None:
    """A truncated and compacted log may have such records. The owner must stay when the first member releases the
    partition."""
    group = ConsumerGroup("g")
    for member_id in ("m0", "m1"):
        group.apply(CurrentMember("g", member_id, 1, 0, MemberState.STABLE, {TOPIC: frozenset((0,))}, {}))
    group.apply(CurrentMember("g", "m0", 2, 1, MemberState.STABLE, {}, {}))
    assert group.owner_of(TOPIC, 0) == "m1"


def test_a_change_of_a_copy_does_not_change_the_original() -> None:
    world = group_of_two()
    group = world.group
    before = {name: dict(value) if isinstance(value, dict) else value for name, value in vars(group).items()}
    twin = group.copy()
    twin.apply(ConsumerGroupMetadata("g", 99, 99))
    twin.apply(TargetMetadata("g", 99))
    twin.apply(TargetMember("g", "m9", {}))
    twin.apply(MemberMetadata("g", "m9", "j", None, "", "", (), "x", 1, None))
    twin.apply(CurrentMember("g", "m9", 1, 0, MemberState.STABLE, {TOPIC: frozenset((0,))}, {}))
    twin.apply(Tombstone(RecordType.MEMBER_METADATA, "g", "m0"))
    twin.apply(Tombstone(RecordType.REGULAR_EXPRESSION, "g", "b"))
    assert {k: v for k, v in vars(group).items() if k != "_topic_names"} == {
        k: v for k, v in before.items() if k != "_topic_names"
    }


# The hash of topics


def test_the_hash_of_topics_changes_with_their_ids_and_partition_counts() -> None:
    topics = FakeTopics(a=1, b=1)
    first = metadata_hash(["a"], topics)
    assert metadata_hash(["a", "none"], topics) == first
    assert metadata_hash(["none"], topics) == metadata_hash([], topics) == 0
    assert metadata_hash(["b", "a"], topics) == metadata_hash(["a", "b"], topics) != first
    topics.grow("a", 2)
    grown = metadata_hash(["a"], topics)
    topics.delete("a")
    topics.create("a", 2)
    assert len({first, grown, metadata_hash(["a"], topics)}) == 3


# States


def test_a_group_goes_through_kafkas_states() -> None:
    world = World(FakeTopics(a=2))
    group = ConsumerGroup("g")
    assert (group.state_name, group.is_empty, group.kind, group.protocol_type) == (
        "Empty",
        True,
        "consumer",
        "consumer",
    )
    world.join("m0", "a")
    assert (world.group.state_name, world.group.is_empty) == ("Stable", False)
    world.join("m1", "a")
    assert world.group.state_name == "Reconciling"
    world.leave("m0")
    assert world.group.state_name == "Assigning"
    world.leave("m1")
    assert world.group.state_name == "Empty"


def test_replay_replaces_a_classic_group_of_the_same_id() -> None:
    host = FakeHost()
    host._groups["g"] = object()  # type: ignore[assignment]
    replay(host, *encode(ConsumerGroupMetadata("g", 1)))
    assert isinstance(host.group("g"), ConsumerGroup)


def test_subscriptions_are_looked_up_again_after_each_change() -> None:
    world = group_of_two()
    assert world.group.topic_names() == {"a", "b"}
    world.send(joining("m1", "c", member_epoch=1, subscribed_topic_regex="", owned={}))
    assert world.group.topic_names() == {"a", "c"}
    world.leave("m0", instance_id="i")
    assert world.group.topic_names() == {"c"}

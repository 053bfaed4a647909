"""Running KIP-848 groups: timers, records that are written before the response, restarts, and classic groups."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from stratalog.broker.groups.config import GroupConfig
from stratalog.broker.groups.consumer_group import ConsumerGroup
from stratalog.broker.groups.consumer_records import MemberState
from stratalog.broker.groups.consumer_requests import GroupRefusedError, Heartbeat
from stratalog.broker.groups.group import GroupRecord
from stratalog.broker.groups.group_settings import EffectiveGroupSettings
from stratalog.errors import MessageTooLargeError, StorageError, StratalogError
from tests.broker.groups.consumer_world import REBALANCE_TIMEOUT_MS, FakeTopics, World, joining

SESSION_MS = 45_000


def test_a_member_that_stops_heartbeating_is_removed() -> None:
    world = World(FakeTopics(a=2))
    world.join("m0", "a")
    world.join("m1", "a")
    world.host.advance(SESSION_MS - 1)
    world.beat("m0", 1, world.topics.partitions(a={0}))
    world.host.advance(1)
    assert list(world.group.members) == ["m0"]
    answer = world.beat("m0", 2)
    assert (answer.member_epoch, answer.assignment) == (3, world.topics.partitions(a={0, 1}))


def test_a_heartbeat_that_is_refused_does_not_prolong_the_session() -> None:
    world = World(FakeTopics(a=1))
    world.join("m0", "a")
    world.host.advance(SESSION_MS - 1)
    with pytest.raises(GroupRefusedError):
        world.beat("m0", 7)
    world.host.advance(1)
    assert world.group.is_empty


def test_the_session_timeout_is_the_brokers() -> None:
    world = World(FakeTopics(a=1), GroupConfig(group_consumer_session_timeout_ms=10_000))
    world.join("m0", "a")
    world.host.advance(9_999)
    assert not world.group.is_empty
    world.host.advance(1)
    assert world.group.is_empty


def test_a_static_member_that_does_not_rejoin_is_removed_when_its_session_ends() -> None:
    world = World(FakeTopics(a=1))
    world.join("m0", "a", instance_id="i")
    world.host.advance(20_000)
    world.send(Heartbeat("g", "m0", -2, instance_id="i"))
    world.host.advance(SESSION_MS - 20_000 - 1)
    assert not world.group.is_empty
    world.host.advance(1)
    assert world.group.is_empty


def test_a_static_member_that_rejoins_has_a_session_of_its_own() -> None:
    world = World(FakeTopics(a=1))
    world.join("m0", "a", instance_id="i")
    world.host.advance(20_000)
    world.send(Heartbeat("g", "m0", -2, instance_id="i"))
    world.join("m1", "a", instance_id="i")
    world.host.advance(SESSION_MS - 1)
    assert list(world.group.members) == ["m1"]
    assert world.host.running_timers == 1


def test_a_member_that_does_not_revoke_partitions_in_time_is_removed() -> None:
    world = World(FakeTopics(a=2))
    owned = world.join("m0", "a").assignment
    world.join("m1", "a")
    world.beat("m0", 1, owned)
    for _ in range(REBALANCE_TIMEOUT_MS // 30_000):
        assert world.group.members["m0"].state is MemberState.UNREVOKED_PARTITIONS
        world.beat("m0", 1)
        world.beat("m1", 2)
        world.host.advance(30_000)
    assert list(world.group.members) == ["m1"]
    assert world.beat("m1", 2).assignment == world.topics.partitions(a={0, 1})


def test_a_member_that_revokes_partitions_in_time_stays() -> None:
    world = World(FakeTopics(a=2), GroupConfig(group_consumer_session_timeout_ms=2 * REBALANCE_TIMEOUT_MS))
    owned = world.join("m0", "a").assignment
    world.join("m1", "a")
    world.beat("m0", 1, owned)
    world.host.advance(REBALANCE_TIMEOUT_MS - 1)
    world.beat("m0", 1, world.topics.partitions(a={0}))
    world.host.advance(REBALANCE_TIMEOUT_MS - 1)
    assert "m0" in world.group.members


def test_a_static_member_that_is_away_has_no_deadline_to_revoke_partitions() -> None:
    world = World(FakeTopics(a=2))
    world.join("m0", "a", instance_id="i", rebalance_timeout_ms=1_000)
    world.join("m1", "a")
    world.beat("m0", 1, instance_id="i")
    world.send(Heartbeat("g", "m0", -2, instance_id="i"))
    world.host.advance(SESSION_MS - 1)
    assert "m0" in world.group.members


def test_a_member_that_left_has_no_timers() -> None:
    world = World(FakeTopics(a=2))
    owned = world.join("m0", "a").assignment
    world.join("m1", "a")
    world.beat("m0", 1, owned)
    assert world.host.running_timers == 3
    world.leave("m0")
    assert world.host.running_timers == 1


def test_a_broker_that_stops_removes_no_member() -> None:
    world = World(FakeTopics(a=2))
    owned = world.join("m0", "a").assignment
    world.join("m1", "a")
    world.beat("m0", 1, owned)
    before = list(world.host.log)
    world.host.readiness = ErrorCode.coordinator_not_available
    world.host.advance(10 * REBALANCE_TIMEOUT_MS)
    assert world.host.log == before


# Restarts


def test_after_a_restart_members_continue_with_their_partitions() -> None:
    world = World(FakeTopics(a=2))
    owned = world.join("m0", "a").assignment
    world.join("m1", "a")
    world.beat("m0", 1, owned)
    world.restart()
    before = list(world.host.log)
    assert world.beat("m0", 1).assignment is None
    assert world.host.log == before
    assert world.beat("m0", 1, world.topics.partitions(a={0})).member_epoch == 2
    assert world.beat("m1", 2).assignment == world.topics.partitions(a={1})


def test_after_a_restart_members_have_a_whole_session() -> None:
    world = World(FakeTopics(a=1))
    world.join("m0", "a")
    world.host.advance(SESSION_MS - 1)
    world.restart()
    world.host.advance(SESSION_MS - 1)
    assert world.beat("m0", 1).member_epoch == 1
    world.host.advance(SESSION_MS)
    assert world.group.is_empty


def test_after_a_restart_a_member_still_has_to_revoke_its_partitions_in_time() -> None:
    world = World(FakeTopics(a=2), GroupConfig(group_consumer_session_timeout_ms=2 * REBALANCE_TIMEOUT_MS))
    owned = world.join("m0", "a").assignment
    world.join("m1", "a")
    world.beat("m0", 1, owned)
    world.restart()
    world.host.advance(REBALANCE_TIMEOUT_MS)
    assert list(world.group.members) == ["m1"]


def test_topics_that_changed_while_the_broker_was_down_are_noticed() -> None:
    world = World(FakeTopics(a=1))
    world.join("m0", "a")
    world.topics.forget_listeners()
    world.topics.grow("a", 2)
    world.restart()
    assert world.beat("m0", 1).assignment == world.topics.partitions(a={0, 1})


# Writing


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (StorageError("no space"), ErrorCode.not_coordinator),
        (MessageTooLargeError("too large"), ErrorCode.unknown_server_error),
    ],
)
def test_a_change_that_could_not_be_written_has_no_effect(failure: StratalogError, code: ErrorCode) -> None:
    world = World(FakeTopics(a=2))
    world.host.failure = failure
    with pytest.raises(GroupRefusedError) as caught:
        world.join("m0", "a")
    assert caught.value.code is code
    assert world.host.group("g") is None
    assert world.host.running_timers == 0
    world.host.failure = None
    world.join("m0", "a")
    world.host.failure = failure
    for request in (joining("m1", "a"), Heartbeat("g", "m0", -1)):
        with pytest.raises(GroupRefusedError):
            world.send(request)
    assert list(world.group.members) == ["m0"]
    assert world.group.epoch == 1
    assert world.beat("m0", 1).member_epoch == 1, "a heartbeat that changes nothing writes nothing"


def test_a_topic_change_that_could_not_be_written_is_retried() -> None:
    world = World(FakeTopics(a=1))
    world.join("m0", "a")
    world.topics.grow("a", 2)
    world.host.failure = StorageError("no space")
    with pytest.raises(GroupRefusedError):
        world.beat("m0", 1)
    world.host.failure = None
    assert world.beat("m0", 1).member_epoch == 2


def test_a_silent_member_is_removed_once_the_disk_has_space_again() -> None:
    world = World(FakeTopics(a=2))
    owned = world.join("m0", "a").assignment
    world.join("m1", "a", rebalance_timeout_ms=1_000)
    world.beat("m0", 1, owned, rebalance_timeout_ms=1_000)
    world.host.failure = StorageError("no space")
    world.host.advance(SESSION_MS)
    assert len(world.group.members) == 2
    world.host.failure = None
    world.host.advance(10_000)
    assert world.group.is_empty


def test_a_group_that_can_not_be_served_does_not_change() -> None:
    world = World(FakeTopics(a=1))
    world.host.readiness = ErrorCode.coordinator_load_in_progress
    with pytest.raises(GroupRefusedError) as caught:
        world.join("m0", "a")
    assert caught.value.code is ErrorCode.coordinator_load_in_progress
    with pytest.raises(GroupRefusedError) as caught:
        world.groups.describe("g")
    assert caught.value.code is ErrorCode.coordinator_load_in_progress


# Groups of the other kind


class Classic:
    """The part of a classic group that these tests need."""

    kind = "classic"
    group_id = "g"
    state_name = "Empty"
    protocol_type = "consumer"
    state_bytes = 1_000

    def __init__(self, *, is_empty: bool) -> None:
        self.is_empty = is_empty

    def tombstones(self) -> list[GroupRecord]:
        return [(bytes.fromhex("0002 000167"), None)]


def test_an_empty_classic_group_becomes_a_consumer_group() -> None:
    world = World(FakeTopics(a=1))
    world.host.put(Classic(is_empty=True))  # type: ignore[arg-type]
    assert world.join("m0", "a").member_epoch == 1
    assert isinstance(world.host.group("g"), ConsumerGroup)
    assert world.host.log[0] == (bytes.fromhex("0002 000167"), None)


def test_a_classic_group_stays_classic_if_the_upgrade_can_not_be_written() -> None:
    world = World(FakeTopics(a=1))
    world.host.put(Classic(is_empty=True))  # type: ignore[arg-type]
    world.host.failure = StorageError("no space")
    with pytest.raises(GroupRefusedError):
        world.join("m0", "a")
    assert world.host.group("g") is not None
    assert not isinstance(world.host.group("g"), ConsumerGroup)


@pytest.mark.parametrize(
    ("request_", "is_empty"),
    [
        (joining("m0", "a"), False),
        (Heartbeat("g", "m0", 1), True),
        (Heartbeat("g", "m0", -1), True),
    ],
)
def test_a_classic_group_with_members_is_not_a_consumer_group(request_: Heartbeat, is_empty: bool) -> None:
    world = World(FakeTopics(a=1))
    world.host.put(Classic(is_empty=is_empty))  # type: ignore[arg-type]
    with pytest.raises(GroupRefusedError, match="Group g is not a consumer group") as caught:
        world.send(request_)
    assert caught.value.code is ErrorCode.group_id_not_found
    with pytest.raises(GroupRefusedError, match="Group g is not a consumer group"):
        world.groups.describe("g")


def test_timers_of_a_deleted_group_do_nothing() -> None:
    world = World(FakeTopics(a=2))
    owned = world.join("m0", "a").assignment
    world.join("m1", "a")
    world.beat("m0", 1, owned)
    before = list(world.host.log)
    world.host.remove("g")
    world.host.advance(REBALANCE_TIMEOUT_MS)
    assert world.host.log == before


def test_settings_of_a_group_apply_at_once() -> None:
    world = World(FakeTopics(a=1))
    own = {"g": EffectiveGroupSettings(60_000, 15_000)}
    world.groups.settings_of = lambda group_id: own.get(group_id, EffectiveGroupSettings(45_000, 5_000))
    world.join("m", "a")
    world.host.advance(59_999)
    assert "m" in world.group.members
    own["g"] = EffectiveGroupSettings(50_000, 5_000)
    world.groups.settings_changed("g")
    world.groups.settings_changed("another")
    world.host.advance(49_999)
    assert "m" in world.group.members
    world.host.advance(1)
    assert "m" not in world.group.members

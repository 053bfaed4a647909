"""Patterns of KIP-848 members, which are matched in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import pytest

from stratalog.broker.groups.consumer_records import RegularExpression, decode
from stratalog.broker.groups.consumer_requests import GroupRefusedError
from stratalog.broker.groups.group import GroupRecord
from stratalog.broker.groups.topic_pattern import TopicPattern
from stratalog.errors import StorageError
from tests.broker.groups.consumer_world import FakeTopics, World
from tests.broker.groups.manual_coordinator import ManualCoordinator


class Matches:
    """Counts how often a pattern is matched with all topics."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        original = TopicPattern.matching

        def matching(pattern: TopicPattern, names: Iterable[str]) -> tuple[str, ...]:
            self.count += 1
            return original(pattern, names)

        monkeypatch.setattr(TopicPattern, "matching", matching)


@pytest.fixture
def matches(monkeypatch: pytest.MonkeyPatch) -> Matches:
    return Matches(monkeypatch)


def test_a_heartbeat_does_not_match_the_patterns_of_all_members_when_a_topic_is_new(matches: Matches) -> None:
    world = World(FakeTopics(a1=1))
    members = [f"m{number}" for number in range(150)]  # more patterns than the cache of compiled ones holds
    for number, member_id in enumerate(members):
        world.join(member_id, subscribed_topic_regex=f"a{number}")
    assert matches.count == 0
    world.resolve()
    assert matches.count == 150
    world.topics.create("a2", 1)
    for member_id in members:
        world.beat(member_id, world.group.members[member_id].member_epoch)
    assert (matches.count, len(world.host.tasks)) == (150, 1)
    world.resolve()
    assert matches.count == 300
    assert world.group.resolved["a2"] == ("a2",)


def test_a_second_member_with_the_same_pattern_starts_no_resolution(matches: Matches) -> None:
    world = World(FakeTopics(a=2))
    world.join("m0", subscribed_topic_regex="a.*")
    world.resolve()
    world.beat("m0", 1)
    assert world.join("m1", subscribed_topic_regex="a.*").member_epoch == 3
    assert world.beat("m0", 2, world.topics.partitions(a={0, 1})).assignment == world.topics.partitions(a={0})
    world.resolve()
    assert matches.count == 1


def test_a_topic_that_is_created_during_a_resolution_is_noticed() -> None:
    world = World(FakeTopics(a=1))
    world.join("m0", subscribed_topic_regex="a.*")
    assert len(world.host.tasks) == 1
    world.topics.create("ab", 1)
    world.resolve()
    assert world.group.resolved == {"a.*": ("a", "ab")}
    assert world.beat("m0", 1).assignment == world.topics.partitions(a={0}, ab={0})


def test_a_pattern_that_comes_during_a_resolution_is_matched_without_another_heartbeat() -> None:
    world = World(FakeTopics(a=1, b=1))
    world.join("m0", subscribed_topic_regex="a.*")
    world.join("m1", subscribed_topic_regex="b.*")
    assert len(world.host.tasks) == 1
    world.resolve()
    assert world.group.resolved == {"a.*": ("a",), "b.*": ("b",)}


def test_matches_for_a_member_that_left_are_not_written() -> None:
    world = World(FakeTopics(a=1))
    world.join("m0", "a")
    world.join("m1", subscribed_topic_regex="a.*")
    world.leave("m1")
    before = list(world.host.log)
    world.resolve()
    assert world.host.log == before


def test_matches_for_a_deleted_group_are_not_written() -> None:
    world = World(FakeTopics(a=1))
    world.join("m0", subscribed_topic_regex="a.*")
    world.host.remove("g")
    before = list(world.host.log)
    world.resolve()
    assert world.host.log == before
    world.join("m0", subscribed_topic_regex="a.*")
    world.resolve()
    assert world.group.resolved == {"a.*": ("a",)}


def test_a_group_that_is_created_again_gets_its_topics_during_the_resolution_of_the_old_one() -> None:
    world = World(FakeTopics(a=1, b=1))
    world.join("m0", subscribed_topic_regex="a.*")
    world.host.remove("g")
    world.join("m0", subscribed_topic_regex="b.*")
    world.resolve()
    assert world.group.resolved == {"b.*": ("b",)}


def test_a_topic_that_was_created_while_the_broker_was_down_is_noticed_without_revoking_others() -> None:
    world = World(FakeTopics(a=1))
    world.join("m0", subscribed_topic_regex="a.*")
    world.resolve()
    world.beat("m0", 1)
    world.restart()
    world.topics.create("ab", 1)
    answer = world.beat("m0", 2, world.topics.partitions(a={0}))
    assert (answer.member_epoch, answer.assignment) == (2, None)
    world.resolve()
    assert world.beat("m0", 2).assignment == world.topics.partitions(a={0}, ab={0})


def test_two_patterns_in_one_resolution_cause_one_rebalance() -> None:
    world = World(FakeTopics(a=1, b=1))
    world.join("m0", subscribed_topic_regex="a.*")
    world.join("m1", subscribed_topic_regex="b.*")
    world.resolve()
    before = world.group.epoch
    world.topics.create("ab", 1)
    world.topics.create("ba", 1)
    world.beat("m0", world.group.members["m0"].member_epoch)
    world.resolve()
    assert world.group.epoch == before + 1


def test_a_resolution_that_can_not_be_written_is_retried(caplog: pytest.LogCaptureFixture) -> None:
    world = World(FakeTopics(a=1))
    world.join("m0", subscribed_topic_regex="a.*")
    world.host.failure = StorageError("the disk is full")
    world.resolve()
    assert "topics that its patterns match were not written: the disk is full" in caplog.text
    world.host.failure = None
    world.beat("m0", 1)
    assert not world.host.tasks, "not at every heartbeat"
    world.host.advance(5_000)
    world.beat("m0", 1)
    world.resolve()
    assert world.beat("m0", 1).assignment == world.topics.partitions(a={0})


def test_topics_of_patterns_that_take_too_much_memory_are_not_written() -> None:
    world = World(FakeTopics(a=1))
    world.join("m0", subscribed_topic_regex="a.*")
    world.host.budget.limit = 1
    world.resolve()
    assert world.group.resolved == {}
    with pytest.raises(GroupRefusedError):
        world.join("m1", subscribed_topic_regex="a.*")


def test_a_broker_that_stops_does_not_wait_for_patterns(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        coordinator = ManualCoordinator()
        is_over = asyncio.Event()

        async def never_ends() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                is_over.set()

        async def fails() -> None:
            raise ValueError("broken")

        coordinator.start_task(never_ends())
        coordinator.start_task(fails())
        await asyncio.sleep(0)
        coordinator.close()
        await is_over.wait()

    asyncio.run(scenario())
    assert "a task of a group failed" in caplog.text


def test_many_topics_of_many_patterns_do_not_make_a_batch_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stratalog.broker.groups.pattern_resolution._MOST_NAMES", 6)
    world = World(FakeTopics(**{f"a{number}": 1 for number in range(4)}))
    world.join("m0", subscribed_topic_regex="a[0-9]")
    world.resolve()
    for number, regex in enumerate(("a.", "a.?", "none")):
        world.join(f"m{number + 1}", subscribed_topic_regex=regex)
    world.topics.create("a4", 1)
    sizes = []
    append = world.host.append

    def counted(group_id: str, records: Sequence[GroupRecord]) -> None:
        sizes.append(sum(isinstance(decode(*record), RegularExpression) for record in records))
        append(group_id, records)

    monkeypatch.setattr(world.host, "append", counted)
    world.resolve()
    assert sum(sizes) >= 4
    assert max(sizes) <= 2
    everything = tuple(f"a{number}" for number in range(5))
    assert world.group.resolved == {"a[0-9]": everything, "a.": everything, "a.?": everything, "none": ()}

"""Events that come between a check and an await of the group coordinator: none of them is missed.

Each event happens in the turn of the event loop in which the request waits, so the tests depend on no time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from stratalog.broker.groups.classic_group import ClassicGroup
from stratalog.broker.groups.offsets_topic import LoadedOffsets
from stratalog.broker.state_topic import partition_of
from stratalog.errors import TopicExistsError
from stratalog.protocol.error_codes import ErrorCode
from tests.broker.apis.group_lab import GroupLab
from tests.broker.groups.manual_coordinator import ListLog, ManualCoordinator
from tests.broker.groups.test_coordinator import commit, committed, run, started

FAILURE_SECONDS = 60  # a missed event would hold up the test for so long; no test that passes waits


class InterruptedLog(ListLog):
    """A log. `during_read` is called when a partition has been read, before the coordinator gets its records."""

    def __init__(self, partitions: int | None = 3) -> None:
        super().__init__(partitions)
        self.during_read: Callable[[int], None] = lambda partition: None

    async def read(self, partition: int) -> LoadedOffsets:
        loaded = await super().read(partition)
        self.during_read(partition)
        return loaded


def recreate_orders(coordinator: ManualCoordinator) -> None:
    coordinator.topics_changed({"payments": 2})
    coordinator.topics_changed({"orders": 3, "payments": 2})


@pytest.mark.parametrize("is_pending", [False, True])
def test_offsets_of_a_topic_that_is_deleted_during_the_load_are_deleted(is_pending: bool) -> None:
    async def test() -> None:
        log = InterruptedLog(1)
        before = await started(offsets_log=log)
        commit(before)
        commit(before, topic="payments")
        if is_pending:
            log.pending[7] = [record for record in log.records if b"orders" in record[0]]
        after = ManualCoordinator(None, log)
        after.topics_changed({"orders": 1, "payments": 2})
        log.during_read = lambda partition: recreate_orders(after)
        await after.load()
        assert (committed(after), committed(after, topic="payments")) == (None, 5)
        after.end_transaction(0, 7, commit=True)
        assert committed(after) is None
        log.pending.clear()
        log.during_read = lambda partition: None
        again = await started(offsets_log=log)
        assert (committed(again), committed(again, topic="payments")) == (None, 5)

    run(test())


def test_offsets_of_a_topic_that_is_created_again_during_the_load_stay() -> None:
    groups = {partition_of(name, 3): name for name in "abcdefgh"}

    async def test() -> None:
        log = InterruptedLog()
        before = await started(offsets_log=log)
        for group_id in groups.values():
            commit(before, group_id=group_id)
        after = ManualCoordinator(None, log)
        after.topics_changed({"orders": 1, "payments": 2})

        def event(partition: int) -> None:
            if partition == 0:
                recreate_orders(after)
            if partition == 1:
                assert commit(after, 6, group_id=groups[0]) is ErrorCode.none

        log.during_read = event
        await after.load()
        assert [committed(after, groups[partition]) for partition in range(3)] == [6, None, None]

    run(test())


def test_topic_that_another_request_creates_first_is_used() -> None:
    class SlowLog(ListLog):
        async def create(self) -> None:
            self.partition_count = 3
            raise TopicExistsError("topic '__consumer_offsets' exists already")

    async def test() -> None:
        coordinator = await started(offsets_log=SlowLog(None))
        assert await coordinator.prepare("g") is ErrorCode.none

    run(test())


async def two_members(lab: GroupLab) -> list[str]:
    """Make a stable group of two members. Return their ids, the leader first."""
    joins = [lab.join(3) for _ in range(2)]
    await lab.pass_time(3_000)
    await lab.pass_time(3_000)
    joined = [await join for join in joins]
    members = sorted((answer.member_id for answer in joined), key=lambda name: name != joined[0].leader)
    shares = {name: name.encode() for name in members}
    await asyncio.gather(*(lab.sync(name, 1, shares if name == members[0] else None, 4) for name in members))
    return members


async def answers(*tasks: asyncio.Task[Any]) -> list[Any]:
    return list(await asyncio.wait_for(asyncio.gather(*tasks), FAILURE_SECONDS))


def group_of(lab: GroupLab) -> ClassicGroup:
    group = lab.coordinator.group("g")
    assert isinstance(group, ClassicGroup)
    return group


def test_join_phase_that_ends_in_the_turn_of_the_last_join_answers_every_member() -> None:
    async def test() -> None:
        lab = GroupLab()
        leader, follower = await two_members(lab)
        joined = await answers(lab.join(3, leader), lab.join(3, follower))
        assert [(answer.error_code.name, answer.generation_id) for answer in joined] == [("none", 2)] * 2

    run(test())


def test_assignment_that_comes_in_the_turn_of_another_sync_answers_every_member() -> None:
    async def test() -> None:
        lab = GroupLab()
        leader, follower = await two_members(lab)
        await answers(lab.join(3, leader), lab.join(3, follower))
        shares = {leader: b"l", follower: b"f"}
        tasks = [
            asyncio.ensure_future(lab.sync(follower, 2, None, 4)),
            asyncio.ensure_future(lab.sync(leader, 2, shares, 4)),
        ]
        assert [answer.assignment for answer in await answers(*tasks)] == [b"f", b"l"]

    run(test())


def test_client_that_disconnects_in_the_turn_of_its_response_leaves_no_waiting_member() -> None:
    async def test() -> None:
        lab = GroupLab()
        leader, follower = await two_members(lab)
        first, second = lab.join(3, leader), lab.join(3, follower)
        await asyncio.sleep(0)  # both requests have begun to wait, and the second one ended the join phase
        assert group_of(lab).generation == 2
        first.cancel()
        assert (await answers(second))[0].generation_id == 2
        await asyncio.wait([first])
        assert first.cancelled()
        assert not any(member.is_waiting for member in group_of(lab).members)
        assert (await answers(lab.join(3, leader)))[0].generation_id == 2, "a retry gets the lost response"
        lab.coordinator.timers.advance(10_000)
        assert group_of(lab).member_ids == [], "without a retry, the session expires"

    run(test())

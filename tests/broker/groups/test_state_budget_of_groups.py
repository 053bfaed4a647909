"""Groups and offsets at the limit of stratalog.max.coordinator.state.bytes: what is refused, and what frees memory."""

from __future__ import annotations

import asyncio
import uuid

from kio.schema.errors import ErrorCode

from stratalog.broker.groups.classic_messages import MemberIdentity
from stratalog.broker.groups.classic_service import ClassicGroups
from stratalog.broker.groups.config import GroupConfig
from stratalog.broker.groups.offset_service import Committer, OffsetService
from stratalog.broker.groups.offsets import OffsetToCommit
from tests.broker.groups.manual_coordinator import ListLog, ManualCoordinator
from tests.broker.groups.members import Join, join_request, subscription

NONE = ErrorCode.none
MB = 1024 * 1024
TOPIC_ID = uuid.UUID(int=1)


def coordinator_of(limit: int, offsets_log: ListLog | None = None) -> ManualCoordinator:
    coordinator = ManualCoordinator(GroupConfig(stratalog_max_coordinator_state_bytes=limit), offsets_log)
    asyncio.run(coordinator.load())
    return coordinator


def commit(coordinator: ManualCoordinator, partition: int, group_id: str = "g", metadata: str = "") -> ErrorCode:
    who = Committer(group_id, "", -1, None, 8)
    (error,) = OffsetService(coordinator).commit(who, [OffsetToCommit("t", TOPIC_ID, partition, 5, 0, metadata)], None)
    return error


def fill(coordinator: ManualCoordinator) -> int:
    """Commit offsets of new partitions until one is refused. Return how many were accepted."""
    for partition in range(100_000):
        error = commit(coordinator, partition)
        if error is not NONE:
            assert error is ErrorCode.coordinator_not_available
            return partition
    raise AssertionError("never refused")


def test_new_offsets_are_refused_when_the_budget_is_full_and_existing_ones_still_change() -> None:
    coordinator = coordinator_of(MB)
    taken = fill(coordinator)
    assert 1_000 < taken < 4_000
    assert coordinator.budget.used <= MB
    assert commit(coordinator, 0) is NONE
    assert commit(coordinator, 0, metadata="longer than it was before" * 100) is ErrorCode.coordinator_not_available
    assert commit(coordinator, 0, group_id="another") is ErrorCode.coordinator_not_available


def test_all_committed_offsets_survive_a_restart_with_a_smaller_budget() -> None:
    coordinator = coordinator_of(4 * MB)
    taken = fill(coordinator)
    again = coordinator_of(MB, coordinator.log)
    assert again.budget.used > MB
    assert again.budget.used == coordinator.budget.used
    assert sum(map(len, again.offsets.of("g").values())) == taken
    assert commit(again, 0) is NONE
    assert commit(again, taken) is ErrorCode.coordinator_not_available


def test_a_deleted_group_frees_all_of_its_memory() -> None:
    coordinator = coordinator_of(MB)
    fill(coordinator)
    assert coordinator.delete("g") is NONE
    assert coordinator.budget.used == 0
    assert commit(coordinator, 0) is NONE


def test_a_member_frees_its_memory_when_it_leaves_or_its_session_ends() -> None:
    coordinator = coordinator_of(10 * MB)
    groups = ClassicGroups(coordinator)
    for number in range(6):
        join = Join()
        protocols = {"range": subscription("t") + bytes(MB)}
        groups.join(f"g{number}", join_request(protocols=protocols, session_ms=60_000), join)
        coordinator.timers.advance(3_000)
        assert join.answer.error is NONE
    refused = Join()
    groups.join("more", join_request(protocols={"range": bytes(3 * MB)}), refused)
    assert refused.answer.error is ErrorCode.group_max_size_reached
    assert coordinator.group("more") is None
    assert 6 * MB < coordinator.budget.used < 7 * MB
    coordinator.timers.advance(120_000)  # no member syncs
    empty = coordinator.budget.used
    assert empty < MB
    for number in range(6):
        assert coordinator.delete(f"g{number}") is NONE
    assert coordinator.budget.used == 0


def test_a_member_may_rejoin_although_the_budget_is_full() -> None:
    coordinator = coordinator_of(MB)
    groups = ClassicGroups(coordinator)
    join = Join()
    groups.join("live", join_request(), join)
    coordinator.timers.advance(3_000)
    fill(coordinator)
    again, new = Join(), Join()
    groups.join("live", join_request(join.answer.member_id), again)
    assert again.answer.error is NONE
    groups.join("live", join_request(), new)
    assert new.answer.error is ErrorCode.group_max_size_reached
    assert groups.leave("live", [MemberIdentity(join.answer.member_id)]) == [NONE]

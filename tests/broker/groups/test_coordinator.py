from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from stratalog.broker.groups import coordinator as coordinator_module
from stratalog.broker.groups.classic_group import ClassicGroup
from stratalog.broker.groups.classic_messages import MemberIdentity, SyncRequest
from stratalog.broker.groups.classic_service import ClassicGroups
from stratalog.broker.groups.config import GroupConfig
from stratalog.broker.groups.group import Group, GroupHost, GroupKind, GroupRecord
from stratalog.broker.groups.offset_records import OffsetKey, group_key, parse_key
from stratalog.broker.groups.offset_service import Committer, OffsetService
from stratalog.broker.groups.offsets import OffsetToCommit
from stratalog.broker.state_topic import partition_of
from stratalog.errors import StorageError, StratalogError
from tests.broker.groups.manual_coordinator import ListLog, ManualCoordinator
from tests.broker.groups.members import Join, Sync, join_request

NONE = ErrorCode.none
WEEK_MS = 7 * 86_400_000
TOPIC_ID = uuid.UUID(int=1)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


async def started(config: GroupConfig | None = None, offsets_log: ListLog | None = None) -> ManualCoordinator:
    coordinator = ManualCoordinator(config, offsets_log)
    await coordinator.load()
    return coordinator


def stable(coordinator: ManualCoordinator, group_id: str = "g", **changes: Any) -> str:
    """Create a stable group of one member, and return the member's id."""
    groups = ClassicGroups(coordinator)
    join, sync = Join(), Sync()
    groups.join(group_id, join_request(**changes), join)
    coordinator.timers.advance(3_000)
    answer = join.answer
    shares = {answer.member_id: b"all"}
    groups.sync(group_id, SyncRequest(answer.member_id, None, answer.generation, None, None, shares), sync)
    assert sync.answer.error is NONE
    return answer.member_id


def commit(
    coordinator: ManualCoordinator, offset: int = 5, *, group_id: str = "g", member_id: str = "", generation: int = -1,
    topic: str = "orders", api_version: int = 8,
) -> ErrorCode:  # fmt: skip
    who = Committer(group_id, member_id, generation, None, api_version)
    (error,) = OffsetService(coordinator).commit(who, [OffsetToCommit(topic, TOPIC_ID, 0, offset, 0, "")], None)
    return error


def committed(coordinator: ManualCoordinator, group_id: str = "g", topic: str = "orders") -> int | None:
    found = coordinator.offsets.find(OffsetKey(group_id, topic, 0))
    return None if found is None else found.offset


def test_coordinator_is_a_host_for_groups() -> None:
    host: GroupHost = ManualCoordinator()
    assert host.group("g") is None


# State that survives a restart


def test_group_and_offsets_survive_a_restart() -> None:
    async def test() -> None:
        before = await started()
        member = stable(before)
        assert commit(before, 7, member_id=member, generation=1) is NONE
        after = await started(offsets_log=before.log)
        group = after.group("g")
        assert isinstance(group, ClassicGroup)
        assert (group.state_name, group.generation, group.member_ids) == ("Stable", 1, [member])
        assert committed(after) == 7
        assert ClassicGroups(after).heartbeat("g", member, None, 1) is NONE
        after.timers.advance(9_999)
        assert group.member_ids == [member], "a whole session timeout after the start"
        after.timers.advance(10_000)
        assert group.is_empty

    run(test())


def test_group_that_only_has_offsets_is_empty_after_a_restart() -> None:
    async def test() -> None:
        before = await started()
        assert commit(before) is NONE
        after = await started(offsets_log=before.log)
        assert [(group.group_id, group.state_name, group.protocol_type) for group in after.groups()] == [
            ("g", "Empty", "")
        ]

    run(test())


def test_groups_are_served_as_soon_as_their_partition_is_loaded() -> None:
    async def test() -> None:
        before = await started()
        by_partition = {partition_of(name, 3): name for name in "abcdefgh"}
        for name in by_partition.values():
            commit(before, group_id=name)
        before.log.unreadable = {1}
        after = await started(offsets_log=before.log)
        assert [after.status(by_partition[index]) for index in (0, 1, 2)] == [
            NONE,
            ErrorCode.coordinator_not_available,
            NONE,
        ]
        assert committed(after, by_partition[0]) == committed(after, by_partition[2]) == 5

    run(test())


def test_group_in_another_partition_than_its_hash_is_loaded_and_expires() -> None:
    """This happens after partitions were added to the topic."""

    async def test() -> None:
        before = await started()
        stable(before)
        where = partition_of("g", 3)
        records = before.log.partitions.pop(where)
        before.log.partitions[(where + 1) % 3] = records
        after = await started(offsets_log=before.log)
        group = after.group("g")
        assert group is not None
        assert group.state_name == "Stable"
        after.timers.advance(10_000)
        assert group.is_empty

    run(test())


def test_other_requests_are_served_while_a_large_partition_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_module, "_RECORDS_A_TURN", 2)

    async def test() -> None:
        before = await started(offsets_log=ListLog(1))
        for number in range(10):
            commit(before, group_id=f"g{number}")
        after = ManualCoordinator(None, before.log)
        loading = asyncio.ensure_future(after.load())
        seen = set()
        while not loading.done():
            seen.add(len(after.offsets.group_ids()))
            assert loading.done() or after.status("g0") is ErrorCode.coordinator_load_in_progress
            await asyncio.sleep(0)
        assert {2, 4, 6, 8} <= seen
        assert committed(after, "g9") == 5

    run(test())


def test_damaged_record_is_ignored_and_the_rest_is_loaded(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        before = await started()
        commit(before)
        where = partition_of("g", 3)
        before.log.partitions[where] += [
            (b"\0\1\0", b""),
            (group_key("g"), b"\0\x09"),
            (b"\0\x0f\0\1g", b""),
            (b"", b""),
        ]
        after = await started(offsets_log=before.log)
        assert committed(after) == 5
        assert [group.state_name for group in after.groups()] == ["Empty"]

    run(test())
    said = caplog.text
    assert "classic group has version 9" in said
    assert "group (type 15) is ignored" in said


def test_offset_that_could_not_be_written_is_not_committed() -> None:
    async def test() -> None:
        coordinator = await started()
        commit(coordinator, 5)
        coordinator.log.failure = StorageError("disk full")
        assert commit(coordinator, 6) is ErrorCode.not_coordinator
        assert committed(coordinator) == 5
        coordinator.log.failure = type("TooLarge", (StratalogError,), {"code": 10})()
        assert commit(coordinator, 6) is ErrorCode.invalid_commit_offset_size
        assert commit(coordinator, 6, group_id="new") is ErrorCode.invalid_commit_offset_size
        assert coordinator.group("new") is None

    run(test())


def test_records_of_a_group_go_to_one_partition_by_kafkas_hash() -> None:
    # java: Math.abs("g".hashCode()) % 50 and so on, with org.apache.kafka.common.utils.Utils.abs
    assert [partition_of(name, 50) for name in ("", "g", "my-group", "ä", "😀", "polygenelubricants")] == [
        0, 3, 12, 28, 49, 0,
    ]  # fmt: skip


# Commits


def test_error_of_a_commit_to_a_missing_group_depends_on_the_version() -> None:
    async def test() -> None:
        coordinator = await started()
        assert commit(coordinator, generation=3, member_id="m", api_version=8) is ErrorCode.illegal_generation
        assert commit(coordinator, generation=3, member_id="m", api_version=9) is ErrorCode.group_id_not_found
        assert coordinator.groups() == []

    run(test())


def test_commit_of_a_member_restarts_its_session() -> None:
    async def test() -> None:
        coordinator = await started()
        member = stable(coordinator)
        for _ in range(3):
            coordinator.timers.advance(9_000)
            assert commit(coordinator, member_id=member, generation=1) is NONE
        assert commit(coordinator, member_id="other", generation=1) is ErrorCode.unknown_member_id
        assert commit(coordinator) is ErrorCode.unknown_member_id

    run(test())


# State that is removed


def test_group_that_no_member_joins_is_removed() -> None:
    async def test() -> None:
        coordinator = await started()
        groups = ClassicGroups(coordinator)
        join = Join()
        groups.join("g", join_request(needs_known_member_id=True), join)
        assert join.answer.error is ErrorCode.member_id_required
        assert len(coordinator.groups()) == 1
        coordinator.timers.advance(10_000)
        assert coordinator.groups() == []
        assert coordinator.log.records == []
        assert coordinator.timers.waiting == 1, "the timer for the retention of offsets"

    run(test())


def test_groups_that_no_member_joins_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_module, "MAX_PENDING_GROUPS", 3)

    async def test() -> None:
        coordinator = await started()
        stable(coordinator, "real")
        groups = ClassicGroups(coordinator)
        for number in range(10):
            groups.join(f"g{number}", join_request(needs_known_member_id=True), Join())
        assert sorted(group.group_id for group in coordinator.groups()) == ["g7", "g8", "g9", "real"]

    run(test())


def test_earlier_deadline_of_a_group_moves_its_timer_forward() -> None:
    async def test() -> None:
        coordinator = await started()
        groups = ClassicGroups(coordinator)
        groups.join("g", join_request(needs_known_member_id=True, session_ms=1_800_000), Join())
        join = Join()
        groups.join("g", join_request(), join)
        coordinator.timers.advance(3_000)
        assert join.answer.error is NONE

    run(test())


def test_heartbeats_set_no_timers() -> None:
    async def test() -> None:
        coordinator = await started()
        member = stable(coordinator)
        before = coordinator.timers.made
        for _ in range(100):
            ClassicGroups(coordinator).heartbeat("g", member, None, 1)
        assert coordinator.timers.made == before

    run(test())


def test_refused_join_creates_no_group() -> None:
    async def test() -> None:
        coordinator = await started()
        for request in (join_request(session_ms=1), join_request("made-up"), join_request(protocols={})):
            ClassicGroups(coordinator).join("g", request, Join())
        assert coordinator.groups() == []

    run(test())


def test_expired_member_id_does_not_delete_the_offsets_of_the_group() -> None:
    async def test() -> None:
        coordinator = await started()
        commit(coordinator)
        ClassicGroups(coordinator).join("g", join_request(needs_known_member_id=True), Join())
        coordinator.timers.advance(10_000)
        assert committed(coordinator) == 5
        assert [group.group_id for group in coordinator.groups()] == ["g"]

    run(test())


def test_offsets_of_an_empty_group_expire_and_the_group_with_them() -> None:
    async def test() -> None:
        coordinator = await started()
        member = stable(coordinator)
        commit(coordinator, member_id=member, generation=1)
        ClassicGroups(coordinator).leave("g", [MemberIdentity(member)])
        coordinator.timers.advance(WEEK_MS - 1)
        assert committed(coordinator) == 5
        coordinator.timers.advance(600_000)
        assert committed(coordinator) is None
        assert coordinator.groups() == []
        after = await started(offsets_log=coordinator.log)
        assert after.groups() == []

    run(test())


def test_offsets_of_subscribed_topics_do_not_expire() -> None:
    async def test() -> None:
        coordinator = await started(GroupConfig(offsets_retention_minutes=1))
        member = stable(coordinator, session_ms=1_800_000)
        commit(coordinator, member_id=member, generation=1)
        commit(coordinator, member_id=member, generation=1, topic="abandoned")
        coordinator.timers.advance(700_000)
        assert committed(coordinator) == 5
        assert committed(coordinator, topic="abandoned") is None

    run(test())


def test_empty_group_without_offsets_is_deleted_with_the_next_check() -> None:
    async def test() -> None:
        coordinator = await started()
        member = stable(coordinator)
        ClassicGroups(coordinator).leave("g", [MemberIdentity(member)])
        assert [group.state_name for group in coordinator.groups()] == ["Empty"]
        coordinator.timers.advance(600_000)
        assert coordinator.groups() == []
        assert coordinator.log.records[-1] == (group_key("g"), None)

    run(test())


def test_expiry_that_could_not_be_written_is_retried() -> None:
    async def test() -> None:
        coordinator = await started()
        commit(coordinator)
        coordinator.log.failure = StorageError("disk full")
        coordinator.timers.advance(WEEK_MS + 600_000)
        assert committed(coordinator) == 5
        coordinator.log.failure = None
        coordinator.timers.advance(600_000)
        assert committed(coordinator) is None

    run(test())


def test_offsets_are_deleted_with_their_topic() -> None:
    async def test() -> None:
        coordinator = await started()
        coordinator.topics_changed({"orders": 1, "payments": 2})
        commit(coordinator)
        commit(coordinator, topic="payments")
        coordinator.topics_changed({"orders": 1, "payments": 2, "new": 3})
        assert (committed(coordinator), committed(coordinator, topic="payments")) == (5, 5)
        coordinator.topics_changed({"payments": 2, "new": 3})
        assert (committed(coordinator), committed(coordinator, topic="payments")) == (None, 5)
        coordinator.topics_changed({"payments": 4})
        assert committed(coordinator, topic="payments") is None, "created again under the same name"
        after = await started(offsets_log=coordinator.log)
        assert after.offsets.group_ids() == []

    run(test())


def test_thousands_of_tombstones_are_written_in_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_module, "_MOST_BYTES_OF_TOMBSTONES", 100)

    async def test() -> None:
        coordinator = await started()
        commits = [OffsetToCommit("orders", TOPIC_ID, number, 1, 0, "") for number in range(20)]
        OffsetService(coordinator).commit(Committer("g", "", -1, None, 8), commits, None)
        before = coordinator.log.appends
        assert coordinator.delete("g") is NONE
        assert coordinator.log.appends - before == 4
        assert coordinator.offsets.group_ids() == []

    run(test())


def test_stopped_coordinator_has_no_timers_and_serves_no_request() -> None:
    async def test() -> None:
        coordinator = await started()
        stable(coordinator)
        coordinator.close()
        assert coordinator.timers.waiting == 0
        assert coordinator.status("g") is ErrorCode.coordinator_not_available

    run(test())


# The topic


def test_concurrent_requests_create_the_topic_once() -> None:
    async def test() -> None:
        coordinator = await started(offsets_log=ListLog(None))
        errors = await asyncio.gather(*(coordinator.prepare(f"g{number}") for number in range(10)))
        assert set(errors) == {NONE}
        assert coordinator.log.created == 1

    run(test())


def test_client_that_disconnects_does_not_stop_the_creation_of_the_topic() -> None:
    class SlowLog(ListLog):
        def __init__(self) -> None:
            super().__init__(None)
            self.may_go_on = asyncio.Event()

        async def create(self) -> None:
            await self.may_go_on.wait()
            await super().create()

    async def test() -> None:
        log = SlowLog()
        coordinator = await started(offsets_log=log)
        first, second = (asyncio.ensure_future(coordinator.prepare("g")) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        log.may_go_on.set()
        assert await second is NONE
        assert coordinator.log.created == 1

    run(test())


def test_creation_of_the_topic_is_retried_after_a_failure() -> None:
    async def test() -> None:
        coordinator = await started(offsets_log=ListLog(None))
        coordinator.log.failure = StorageError("disk full")
        assert await coordinator.prepare("g") is ErrorCode.coordinator_not_available
        coordinator.log.failure = None
        assert await coordinator.prepare("g") is NONE

    run(test())


@pytest.mark.parametrize(
    ("group_id", "member", "offsets"),
    [
        ("g", NONE, NONE),
        ("", ErrorCode.invalid_group_id, NONE),
        ("ä" * 16_383, NONE, NONE),
        ("ä" * 16_384, ErrorCode.invalid_group_id, ErrorCode.invalid_group_id),
    ],
)
def test_group_ids_are_checked(group_id: str, member: ErrorCode, offsets: ErrorCode) -> None:
    async def test() -> None:
        coordinator = await started()
        assert coordinator.status(group_id) is await coordinator.prepare(group_id) is member
        assert coordinator.status(group_id, may_be_empty=True) is offsets

    run(test())


# Together with KIP-848 groups


class OtherGroup:
    """The part of a KIP-848 group that the coordinator sees."""

    kind: GroupKind = "consumer"
    state_name = "Stable"
    protocol_type = "consumer"
    state_bytes = 1_000

    def __init__(self, group_id: str, *, is_empty: bool = False) -> None:
        self.group_id = group_id
        self.is_empty = is_empty

    def check_commit(
        self,
        member_id: str,
        generation_or_epoch: int,
        group_instance_id: str | None,
        api_version: int,
        *,
        in_transaction: bool = False,
    ) -> ErrorCode:
        return ErrorCode.stale_member_epoch

    def check_fetch(self, member_id: str | None, member_epoch: int) -> ErrorCode:
        return ErrorCode.stale_member_epoch

    def check_offset_delete(self) -> ErrorCode:
        return NONE

    def subscribed_to(self, topic: str) -> bool:
        return topic == "orders"

    def offset_expires_since(self, commit_timestamp_ms: int) -> int | None:
        return commit_timestamp_ms

    def tombstones(self) -> list[GroupRecord]:
        return [(b"\0\3\0\1" + self.group_id.encode(), None)]


def test_group_with_kip_848_members_refuses_classic_ones() -> None:
    async def test() -> None:
        coordinator = await started()
        coordinator.put(OtherGroup("g"))
        groups = ClassicGroups(coordinator)
        join, sync = Join(), Sync()
        groups.join("g", join_request(), join)
        assert join.answer.error is ErrorCode.inconsistent_group_protocol
        groups.sync("g", SyncRequest("m", None, 1, None, None, {}), sync)
        assert sync.answer.error is ErrorCode.unknown_member_id
        assert groups.heartbeat("g", "m", None, 1) is ErrorCode.unknown_member_id
        assert groups.leave("g", [MemberIdentity("m")]) == [ErrorCode.unknown_member_id]
        assert coordinator.delete("g") is ErrorCode.non_empty_group
        assert commit(coordinator) is ErrorCode.stale_member_epoch
        assert OffsetService(coordinator).check_fetch("g", "m", 1) is ErrorCode.stale_member_epoch

    run(test())


def test_empty_kip_848_group_becomes_a_classic_one_and_keeps_its_offsets() -> None:
    async def test() -> None:
        coordinator = await started()
        commit(coordinator)
        coordinator.put(OtherGroup("g", is_empty=True))
        stale = Join()
        ClassicGroups(coordinator).join("g", join_request("m"), stale)
        assert stale.answer.error is ErrorCode.unknown_member_id
        coordinator.log.failure = StorageError("disk full")
        failed = Join()
        ClassicGroups(coordinator).join("g", join_request(), failed)
        assert failed.answer.error is ErrorCode.not_coordinator
        coordinator.log.failure = None
        stable(coordinator)
        assert committed(coordinator) == 5
        assert (b"\0\3\0\1g", None) in coordinator.log.records
        group = coordinator.group("g")
        assert group is not None
        assert group.kind == "classic"

    run(test())


def test_replaced_classic_group_fails_waiting_joins() -> None:
    async def test() -> None:
        coordinator = await started()
        join = Join()
        ClassicGroups(coordinator).join("g", join_request(), join)
        coordinator.put(OtherGroup("g"))
        assert join.answer.error is ErrorCode.unknown_member_id
        coordinator.timers.advance(1_000_000)
        group = coordinator.group("g")
        assert group is not None
        assert group.kind == "consumer"

    run(test())


def test_empty_kip_848_group_is_deleted_with_its_offsets() -> None:
    async def test() -> None:
        coordinator = await started()
        commit(coordinator)
        coordinator.put(OtherGroup("g", is_empty=True))
        assert coordinator.delete("g") is NONE
        assert coordinator.log.records[-1] == (b"\0\3\0\1g", None)
        assert committed(coordinator) is None

    run(test())


def test_records_of_kip_848_groups_are_replayed_and_listeners_called_after_the_load() -> None:
    seen: list[tuple[bytes, bytes | None]] = []

    class Replaying(ManualCoordinator):
        def __init__(self, offsets_log: ListLog) -> None:
            super().__init__(None, offsets_log)
            self._replay_consumer_record = self._note

        def _note(self, groups: Any, key: bytes, value: bytes | None) -> None:
            seen.append((key, value))
            groups.put(OtherGroup(key[4:].decode()))

    async def test() -> None:
        log = ListLog(1)
        records: list[GroupRecord] = [(bytes((0, kind)) + b"\0\1g", b"v") for kind in (3, 4, 5, 6, 7, 8, 16)]
        log.partitions[0] = [*records, (b"\0\x09\0\1g", b"v")]
        coordinator = Replaying(log)
        early: list[Group] = []
        late: list[Group] = []
        coordinator.on_loaded(early.append)
        await coordinator.load()
        coordinator.on_loaded(late.append)
        assert seen == records
        assert [group.group_id for group in early] == [group.group_id for group in late] == ["g"]

    run(test())


def test_offsets_of_subscribed_topics_are_not_deleted() -> None:
    async def test() -> None:
        coordinator = await started()
        commit(coordinator)
        commit(coordinator, topic="payments")
        coordinator.put(OtherGroup("g"))
        service = OffsetService(coordinator)
        assert service.delete("g", [("orders", 0), ("payments", 0), ("payments", 1)]) == [
            ErrorCode.group_subscribed_to_topic,
            NONE,
            NONE,
        ]
        assert (committed(coordinator), committed(coordinator, topic="payments")) == (5, None)
        assert parse_key(coordinator.log.records[-1][0]) == OffsetKey("g", "payments", 0)

    run(test())

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from stratalog.broker.groups.config import GroupConfig
from stratalog.broker.groups.consumer_group import ConsumerGroup
from stratalog.errors import MalformedRequestError, StorageError
from stratalog.protocol.api_keys import ApiKey
from tests.broker.apis.group_lab import GroupLab, versions
from tests.broker.groups.manual_coordinator import ListLog
from tests.broker.groups.members import PROTOCOLS

NONE = ErrorCode.none


def run(test: Any) -> None:
    asyncio.run(test)


@pytest.mark.parametrize("version", versions(ApiKey.JOIN_GROUP))
def test_every_version_of_join_makes_a_member(version: int) -> None:
    async def test() -> None:
        lab = GroupLab()
        answer = await lab.joined(version)
        assert (answer.error_code, answer.generation_id, answer.leader) == (NONE, 1, answer.member_id)
        assert answer.protocol_name == "range"
        assert [one.metadata for one in answer.members] == [PROTOCOLS["range"]]
        assert answer.member_id.startswith("lab-")

    run(test())


@pytest.mark.parametrize("version", versions(ApiKey.JOIN_GROUP))
def test_every_version_of_join_is_told_what_is_wrong(version: int) -> None:
    async def test() -> None:
        lab = GroupLab()
        wrong: list[tuple[dict[str, Any], ErrorCode]] = [
            ({"group_id": ""}, ErrorCode.invalid_group_id),
            ({"session_timeout": 5_999}, ErrorCode.invalid_session_timeout),
            ({"session_timeout": 1_800_001}, ErrorCode.invalid_session_timeout),
            ({"member_id": "made-up"}, ErrorCode.unknown_member_id),
            ({"protocols": []}, ErrorCode.inconsistent_group_protocol),
        ]
        for changes, error in wrong:
            answer = await lab.join(version, **changes)
            assert (answer.error_code, answer.generation_id, answer.members) == (error, -1, ())
            assert answer.protocol_name == (None if version >= 7 else "")
        assert lab.coordinator.groups() == []

    run(test())


def test_members_are_given_their_id_first_from_version_4() -> None:
    async def test() -> None:
        for version in versions(ApiKey.JOIN_GROUP):
            lab = GroupLab()
            join = lab.join(version)
            await lab.pass_time(3_000)
            assert ((await join).error_code is ErrorCode.member_id_required) == (version >= 4)

    run(test())


def test_static_members_are_not_made_to_ask_twice() -> None:
    async def test() -> None:
        for version in range(5, 10):
            lab = GroupLab()
            join = lab.join(version, group_instance_id="i")
            await lab.pass_time(3_000)
            answer = await join
            assert (answer.error_code, answer.members[0].group_instance_id) == (NONE, "i")

    run(test())


def test_assignment_is_skipped_from_version_9() -> None:
    async def test() -> None:
        for version in (8, 9):
            lab = GroupLab()
            first = await lab.stable(version, group_instance_id="i")
            back = await lab.join(version, group_instance_id="i")
            assert back.error_code is NONE
            assert getattr(back, "skip_assignment", False) == (version == 9)
            assert (back.leader == back.member_id) == (version == 9)
            assert (await lab.sync(back.member_id, 1)).assignment == b"all"
            assert first.member_id != back.member_id

    run(test())


def test_rebalance_timeout_of_version_0_is_the_session_timeout() -> None:
    async def test() -> None:
        lab = GroupLab()
        member = await lab.stable(0)
        newcomer = lab.join(0)
        await lab.pass_time(9_000)
        heartbeat = {"group_id": "g", "generation_id": 1, "member_id": member.member_id}
        await lab.ask(ApiKey.HEARTBEAT, 0, **heartbeat)  # it is there, but does not rejoin
        await lab.pass_time(999)
        assert not newcomer.done()
        await lab.pass_time(1)
        assert newcomer.done()
        assert (await newcomer).generation_id == 2

    run(test())


def test_protocol_named_twice_counts_as_it_was_named_first() -> None:
    async def test() -> None:
        lab = GroupLab()
        twice = [{"name": "range", "metadata": b"1"}, {"name": "range", "metadata": b"2"}]
        answer = await lab.joined(protocols=twice)
        assert answer.members[0].metadata == b"1"

    run(test())


def test_member_with_hundreds_of_protocols_is_refused() -> None:
    async def test() -> None:
        many = [{"name": f"protocol-{number}", "metadata": b""} for number in range(101)]
        assert (await GroupLab().join(protocols=many)).error_code is ErrorCode.invalid_request
        assert (await GroupLab().joined(protocols=many[:100])).error_code is NONE

    run(test())


@pytest.mark.parametrize("name", ["group_id", "member_id", "group_instance_id", "protocol_type"])
def test_name_that_no_record_can_hold_is_refused(name: str) -> None:
    async def test() -> None:
        lab = GroupLab()
        changes: dict[str, Any] = {name: "x" * 32_768}
        answer = await lab.join(**changes)
        expected = ErrorCode.invalid_group_id if name == "group_id" else ErrorCode.invalid_request
        assert answer.error_code is expected
        assert lab.coordinator.groups() == []

    run(test())


@pytest.mark.parametrize("version", versions(ApiKey.SYNC_GROUP))
def test_every_version_of_sync_gets_its_share(version: int) -> None:
    async def test() -> None:
        lab = GroupLab()
        member = await lab.joined()
        answer = await lab.sync(member.member_id, 1, {member.member_id: b"all"}, version)
        assert (answer.error_code, answer.assignment) == (NONE, b"all")
        if version >= 5:
            assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")
        assert (await lab.sync("made-up", 1, version=version)).error_code is ErrorCode.unknown_member_id
        assert (await lab.sync(member.member_id, 2, version=version)).error_code is ErrorCode.illegal_generation

    run(test())


def test_protocol_is_required_from_version_5_of_sync() -> None:
    async def test() -> None:
        lab = GroupLab()
        member = await lab.joined()
        for changes in ({"protocol_type": None}, {"protocol_name": None}, {"protocol_name": "sticky"}):
            answer = await lab.sync(member.member_id, 1, **changes)
            assert answer.error_code is ErrorCode.inconsistent_group_protocol
        assert (await lab.sync(member.member_id, 1, {}, 4)).error_code is NONE

    run(test())


@pytest.mark.parametrize("version", versions(ApiKey.HEARTBEAT))
def test_every_version_of_heartbeat(version: int) -> None:
    async def test() -> None:
        lab = GroupLab()
        member = await lab.stable()

        async def beat(**changes: Any) -> ErrorCode:
            fields = {"group_id": "g", "generation_id": 1, "member_id": member.member_id, **changes}
            answer = await lab.ask(ApiKey.HEARTBEAT, version, **fields)
            assert isinstance(answer.error_code, ErrorCode)
            return answer.error_code

        assert await beat() is NONE
        assert await beat(generation_id=2) is ErrorCode.illegal_generation
        assert await beat(member_id="made-up") is ErrorCode.unknown_member_id
        assert await beat(group_id="other") is ErrorCode.unknown_member_id
        assert await beat(group_id="") is ErrorCode.invalid_group_id
        lab.join()
        await lab.pass_time(0)
        lab.join(3)
        await lab.pass_time(0)
        assert await beat() is ErrorCode.rebalance_in_progress
        lab.coordinator.close()
        await lab.pass_time(0)
        assert await beat() is ErrorCode.coordinator_not_available

    run(test())


@pytest.mark.parametrize("version", versions(ApiKey.LEAVE_GROUP))
def test_every_version_of_leave(version: int) -> None:
    async def test() -> None:
        lab = GroupLab()
        member = await lab.stable()

        async def leave(group_id: str, *member_ids: str) -> list[ErrorCode]:
            answer = await lab.ask(
                ApiKey.LEAVE_GROUP,
                version,
                group_id=group_id,
                member_id=member_ids[0],
                members=[{"member_id": each} for each in member_ids],
            )
            if version < 3 or answer.error_code is not NONE:
                return [answer.error_code]
            assert [one.member_id for one in answer.members] == list(member_ids)
            return [one.error_code for one in answer.members]

        assert await leave("other", "x") == [ErrorCode.unknown_member_id]
        assert await leave("", "x") == [ErrorCode.invalid_group_id]
        assert await leave("g", "made-up") == [ErrorCode.unknown_member_id]
        assert await leave("g", member.member_id) == [NONE]
        assert [group.state_name for group in lab.coordinator.groups()] == ["Empty"]

    run(test())


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_GROUPS))
def test_every_version_of_describe(version: int) -> None:
    async def test() -> None:
        lab = GroupLab()
        member = await lab.stable()
        answer = await lab.ask(
            ApiKey.DESCRIBE_GROUPS, version, groups=["g", "nobody", "g"], include_authorized_operations=True
        )
        known, unknown = answer.groups
        assert (known.error_code, known.group_state, known.protocol_type) == (NONE, "Stable", "consumer")
        assert known.protocol_data == "range"
        (only,) = known.members
        assert (only.member_id, only.client_id, only.client_host) == (member.member_id, "lab", "/127.0.0.1")
        assert (only.member_metadata, only.member_assignment) == (PROTOCOLS["range"], b"all")
        assert (unknown.group_state, unknown.members) == ("Dead", ())
        assert unknown.error_code is (ErrorCode.group_id_not_found if version >= 6 else NONE)
        if version >= 3:
            assert known.authorized_operations == 0b1101_0100_1000
        if version >= 6:
            assert unknown.error_message == "Group nobody not found."

    run(test())


def test_kip_848_group_is_listed_but_not_described_as_a_classic_one() -> None:
    async def test() -> None:
        lab = GroupLab()
        lab.coordinator.put(ConsumerGroup("g"))
        described = await lab.ask(ApiKey.DESCRIBE_GROUPS, groups=["g"], include_authorized_operations=False)
        assert described.groups[0].error_code is ErrorCode.group_id_not_found
        assert described.groups[0].error_message == "Group g is not a classic group."
        listed = await lab.ask(ApiKey.LIST_GROUPS)
        assert [one.group_type for one in listed.groups] == ["consumer"]

    run(test())


def test_operations_are_told_only_to_who_asks() -> None:
    async def test() -> None:
        answer = await GroupLab().ask(ApiKey.DESCRIBE_GROUPS, groups=["g"], include_authorized_operations=False)
        assert answer.groups[0].authorized_operations == -(2**31)

    run(test())


@pytest.mark.parametrize("version", versions(ApiKey.LIST_GROUPS))
def test_every_version_of_list(version: int) -> None:
    async def test() -> None:
        lab = GroupLab()
        await lab.stable()
        await lab.commit(5, group_id="offsets-only")
        answer = await lab.ask(ApiKey.LIST_GROUPS, version)
        assert answer.error_code is NONE
        listed = {one.group_id: one for one in answer.groups}
        assert {name: one.protocol_type for name, one in listed.items()} == {"g": "consumer", "offsets-only": ""}
        if version >= 4:
            assert {name: one.group_state for name, one in listed.items()} == {"g": "Stable", "offsets-only": "Empty"}
        if version >= 5:
            assert {one.group_type for one in answer.groups} == {"classic"}

    run(test())


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"states_filter": ["Stable"]}, {"g"}),
        ({"states_filter": ["stable", "EMPTY"]}, {"g", "e"}),
        ({"states_filter": ["Dead"]}, set()),
        ({"types_filter": ["Classic"]}, {"g", "e"}),
        ({"types_filter": ["consumer"]}, set()),
        ({"types_filter": ["classic"], "states_filter": ["Empty"]}, {"e"}),
    ],
)
def test_groups_are_listed_by_state_and_kind(filters: dict[str, list[str]], expected: set[str]) -> None:
    async def test() -> None:
        lab = GroupLab()
        await lab.stable()
        await lab.commit(5, group_id="e")
        answer = await lab.ask(ApiKey.LIST_GROUPS, **filters)
        assert {one.group_id for one in answer.groups} == expected

    run(test())


@pytest.mark.parametrize("version", versions(ApiKey.DELETE_GROUPS))
def test_every_version_of_delete(version: int) -> None:
    async def test() -> None:
        lab = GroupLab()
        await lab.stable()
        await lab.commit(5, group_id="e")
        answer = await lab.ask(ApiKey.DELETE_GROUPS, version, groups_names=["g", "e", "nobody", "e"])
        assert {one.group_id: one.error_code for one in answer.results} == {
            "g": ErrorCode.non_empty_group,
            "e": NONE,
            "nobody": ErrorCode.group_id_not_found,
        }
        assert await lab.committed("e") == -1
        assert [group.group_id for group in lab.coordinator.groups()] == ["g"]

    run(test())


def test_group_that_was_deleted_stays_deleted_after_a_restart() -> None:
    async def test() -> None:
        lab = GroupLab()
        member = await lab.stable()
        await lab.commit(5, generation_id_or_member_epoch=1, member_id=member.member_id)
        await lab.ask(ApiKey.LEAVE_GROUP, 0, group_id="g", member_id=member.member_id)
        assert (await lab.ask(ApiKey.DELETE_GROUPS, groups_names=["g"])).results[0].error_code is NONE
        fresh = GroupLab(offsets_log=lab.coordinator.log)
        assert await fresh.committed() == -1
        assert fresh.coordinator.groups() == []

    run(test())


def test_group_whose_deletion_could_not_be_stored_is_still_there() -> None:
    async def test() -> None:
        lab = GroupLab()
        await lab.commit(5)
        lab.coordinator.log.failure = StorageError("disk full")
        assert (await lab.ask(ApiKey.DELETE_GROUPS, groups_names=["g"])).results[0].error_code is (
            ErrorCode.not_coordinator
        )
        assert await lab.committed() == 5

    run(test())


def test_client_that_hangs_up_while_it_waits_leaves_nothing_behind() -> None:
    async def test() -> None:
        lab = GroupLab()
        join = lab.join(3)
        await lab.pass_time(0)
        assert [group.state_name for group in lab.coordinator.groups()] == ["PreparingRebalance"]
        join.cancel()
        await lab.pass_time(3_000)
        assert join.cancelled()
        assert lab.coordinator.groups() == []
        assert lab.coordinator.log.records == []

    run(test())


def test_client_that_hangs_up_while_it_waits_for_its_share_does_not_stop_the_others() -> None:
    async def test() -> None:
        lab = GroupLab()
        joins = [lab.join(3), lab.join(3)]
        await lab.pass_time(9_000)
        leader, follower = [await join for join in joins]
        waiting = asyncio.ensure_future(lab.sync(follower.member_id, 1))
        await lab.pass_time(0)
        waiting.cancel()
        await lab.pass_time(0)
        assert (await lab.sync(leader.member_id, 1, {})).error_code is NONE

    run(test())


def test_whoever_waits_is_told_when_the_broker_stops() -> None:
    async def test() -> None:
        lab = GroupLab()
        join = lab.join(3)
        await lab.pass_time(0)
        lab.coordinator.close()
        assert (await join).error_code is ErrorCode.coordinator_not_available
        assert lab.coordinator.timers.waiting == 0

    run(test())


def test_groups_answer_that_they_are_loading_until_they_are_loaded() -> None:
    async def test() -> None:
        lab = GroupLab()
        await lab.commit(5)
        fresh = GroupLab(offsets_log=lab.coordinator.log, loads=False)
        loading = ErrorCode.coordinator_load_in_progress
        assert (await fresh.join(group_id="g")).error_code is loading
        assert (await fresh.sync("m", 1)).error_code is loading
        heartbeat = {"group_id": "g", "generation_id": 1, "member_id": "m"}
        assert (await fresh.ask(ApiKey.HEARTBEAT, **heartbeat)).error_code is loading
        assert (await fresh.ask(ApiKey.LEAVE_GROUP, group_id="g", members=[])).error_code is loading
        assert (await fresh.ask(ApiKey.DESCRIBE_GROUPS, groups=["g"], include_authorized_operations=False)).groups[
            0
        ].error_code is loading
        assert (await fresh.ask(ApiKey.LIST_GROUPS)).error_code is loading
        assert (await fresh.ask(ApiKey.DELETE_GROUPS, groups_names=["g"])).results[0].error_code is loading
        assert await fresh.commit(6) is loading
        assert (await fresh.ask(ApiKey.OFFSET_FETCH, 7, group_id="g", topics=None)).error_code is loading
        assert (await fresh.ask(ApiKey.OFFSET_DELETE, group_id="g", topics=[])).error_code is loading
        await fresh.coordinator.load()
        assert await fresh.committed() == 5

    run(test())


def test_asking_makes_nothing() -> None:
    async def test() -> None:
        lab = GroupLab(offsets_log=ListLog(None))
        await lab.ask(ApiKey.DESCRIBE_GROUPS, groups=["g"], include_authorized_operations=False)
        await lab.ask(ApiKey.LIST_GROUPS)
        await lab.ask(ApiKey.FIND_COORDINATOR, key_type=0, coordinator_keys=["g"])
        await lab.ask(ApiKey.OFFSET_FETCH, 7, group_id="g", topics=None)
        await lab.ask(ApiKey.HEARTBEAT, group_id="g", generation_id=1, member_id="m")
        await lab.ask(ApiKey.LEAVE_GROUP, group_id="g", members=[{"member_id": "m"}])
        await lab.sync("m", 1)
        await lab.ask(ApiKey.DELETE_GROUPS, groups_names=["g"])
        assert lab.coordinator.groups() == []
        assert lab.coordinator.log.created == 0
        await lab.commit(5)
        assert lab.coordinator.log.created == 1

    run(test())


def test_thousands_of_things_at_once_are_refused() -> None:
    async def test() -> None:
        lab = GroupLab()
        many = [str(number) for number in range(10_001)]
        with pytest.raises(MalformedRequestError, match="DescribeGroups has 10001"):
            await lab.ask(ApiKey.DESCRIBE_GROUPS, groups=many, include_authorized_operations=False)
        with pytest.raises(MalformedRequestError, match="DeleteGroups has 10001"):
            await lab.ask(ApiKey.DELETE_GROUPS, groups_names=many)
        with pytest.raises(MalformedRequestError, match="FindCoordinator has 10001"):
            await lab.ask(ApiKey.FIND_COORDINATOR, key_type=0, coordinator_keys=many)

    run(test())


def test_settings_are_those_of_the_broker() -> None:
    async def test() -> None:
        lab = GroupLab(GroupConfig(group_initial_rebalance_delay_ms=0, group_max_size=1))
        join = lab.join(3)
        await lab.pass_time(0)
        assert (await join).error_code is NONE
        assert (await lab.join(3)).error_code is ErrorCode.group_max_size_reached

    run(test())

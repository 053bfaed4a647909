from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from stratalog.broker.apis import committed_offsets
from stratalog.broker.groups.config import GroupConfig
from stratalog.broker.metadata.store import Topic
from stratalog.errors import MalformedRequestError
from stratalog.protocol.api_keys import ApiKey
from tests.broker.apis.group_lab import GroupLab, versions

NONE = ErrorCode.none
UNKNOWN = ErrorCode.unknown_topic_or_partition


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


async def fetch(lab: GroupLab, version: int, topics: Any, group_id: str = "g", **changes: Any) -> tuple[ErrorCode, Any]:
    """Return the group's error and its topics from the fields of the version."""
    group = {"group_id": group_id, "topics": topics, **changes}
    answer = await lab.ask(ApiKey.OFFSET_FETCH, version, groups=[group], **group)
    if version >= 8:
        (answer,) = answer.groups
        assert answer.group_id == group_id
    return getattr(answer, "error_code", NONE), answer.topics


def wanted(lab: GroupLab, *partitions: int) -> list[dict[str, Any]]:
    return [{"name": "orders", "topic_id": lab.orders.id, "partition_indexes": list(partitions)}]


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_COMMIT))
def test_every_version_of_commit_stores_offsets(version: int) -> None:
    async def test() -> None:
        lab = GroupLab()
        assert await lab.commit(42, version=version, committed_leader_epoch=3) is NONE
        _, (topic,) = await fetch(lab, 10, wanted(lab, 0))
        (one,) = topic.partitions
        assert (one.committed_offset, one.metadata, one.error_code) == (42, "said", NONE)
        assert one.committed_leader_epoch == (3 if version >= 6 else -1)

    run(test())


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_COMMIT))
def test_every_version_of_commit_gets_errors_for_unknown_partitions(version: int) -> None:
    async def test() -> None:
        lab = GroupLab()

        def commits(*partitions: int) -> list[dict[str, Any]]:
            return [{"partition_index": each, "committed_offset": 1, "committed_metadata": ""} for each in partitions]

        topics = [
            {"name": "orders", "topic_id": lab.orders.id, "partitions": commits(3, 4, -1)},
            {"name": "nothing", "topic_id": uuid.UUID(int=9), "partitions": commits(0)},
        ]
        fields = {"generation_id_or_member_epoch": -1, "member_id": "", "retention_time": -1}
        answer = await lab.ask(ApiKey.OFFSET_COMMIT, version, group_id="g", topics=topics, **fields)
        known, unknown = answer.topics
        assert [(one.partition_index, one.error_code) for one in known.partitions] == [
            (3, NONE),
            (4, UNKNOWN),
            (-1, UNKNOWN),
        ]
        expected = ErrorCode.unknown_topic_id if version >= 10 else UNKNOWN
        assert [one.error_code for one in unknown.partitions] == [expected]
        if version >= 10:
            assert (known.topic_id, unknown.topic_id) == (lab.orders.id, uuid.UUID(int=9))
        else:
            assert (known.name, unknown.name) == ("orders", "nothing")

    run(test())


def test_commits_for_unknown_partitions_create_no_group() -> None:
    async def test() -> None:
        lab = GroupLab()
        assert await lab.commit(1, partition=99) is UNKNOWN
        assert lab.coordinator.groups() == []
        assert lab.coordinator.log.records == []

    run(test())


def test_commit_without_topics_gets_a_response() -> None:
    async def test() -> None:
        lab = GroupLab()
        fields = {"generation_id_or_member_epoch": -1, "member_id": "", "topics": []}
        assert (await lab.ask(ApiKey.OFFSET_COMMIT, group_id="g", **fields)).topics == ()

    run(test())


def test_members_commit_in_their_generation() -> None:
    async def test() -> None:
        lab = GroupLab()
        member = await lab.stable()
        who = {"generation_id_or_member_epoch": 1, "member_id": member.member_id}
        assert await lab.commit(5, **who) is NONE
        assert await lab.commit(5, **{**who, "generation_id_or_member_epoch": 2}) is ErrorCode.illegal_generation
        assert await lab.commit(5, **{**who, "member_id": "x"}) is ErrorCode.unknown_member_id
        assert await lab.commit(5) is ErrorCode.unknown_member_id
        assert await lab.commit(5, group_instance_id="i", **who) is ErrorCode.unknown_member_id

    run(test())


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_COMMIT))
def test_commit_with_a_generation_to_a_group_that_does_not_exist(version: int) -> None:
    async def test() -> None:
        lab = GroupLab()
        error = await lab.commit(5, version=version, generation_id_or_member_epoch=1, member_id="m")
        assert error is (ErrorCode.group_id_not_found if version >= 9 else ErrorCode.illegal_generation)

    run(test())


def test_metadata_that_is_too_long_is_refused() -> None:
    async def test() -> None:
        lab = GroupLab(GroupConfig(offset_metadata_max_bytes=4))
        assert await lab.commit(5, committed_metadata="12345") is ErrorCode.offset_metadata_too_large
        assert await lab.commit(5, committed_metadata="1234") is NONE
        assert await lab.commit(5, committed_metadata=None) is NONE
        _, (topic,) = await fetch(lab, 8, wanted(lab, 0))
        assert topic.partitions[0].metadata == ""

    run(test())


def test_retention_time_of_an_old_client_is_respected() -> None:
    async def test() -> None:
        lab = GroupLab()
        await lab.commit(5, version=2, retention_time=1_000)
        await lab.commit(6, version=4, retention_time=-1, partition=1)
        await lab.pass_time(600_000)
        assert (await lab.committed(partition=0), await lab.committed(partition=1)) == (-1, 6)

    run(test())


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_FETCH))
def test_every_version_of_fetch(version: int) -> None:
    async def test() -> None:
        lab = GroupLab()
        await lab.commit(42, partition=1, committed_leader_epoch=3)
        error, (topic,) = await fetch(lab, version, wanted(lab, 1, 2))
        assert error is NONE
        found, missing = topic.partitions
        assert (found.partition_index, found.committed_offset, found.metadata) == (1, 42, "said")
        assert (missing.partition_index, missing.committed_offset, missing.metadata) == (2, -1, "")
        assert missing.error_code is NONE
        if version >= 5:
            assert (found.committed_leader_epoch, missing.committed_leader_epoch) == (3, -1)

    run(test())


@pytest.mark.parametrize("version", range(2, 11))
def test_every_version_from_2_fetches_all_topics(version: int) -> None:
    async def test() -> None:
        lab = GroupLab()
        await lab.commit(1, partition=0)
        await lab.commit(2, partition=3)
        error, (topic,) = await fetch(lab, version, None)
        assert error is NONE
        assert [(one.partition_index, one.committed_offset) for one in topic.partitions] == [(0, 1), (3, 2)]
        if version >= 10:
            assert topic.topic_id == lab.orders.id
        else:
            assert topic.name == "orders"

    run(test())


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_FETCH))
def test_group_that_does_not_exist_has_no_offsets(version: int) -> None:
    async def test() -> None:
        lab = GroupLab()
        error, (topic,) = await fetch(lab, version, wanted(lab, 0))
        assert (error, topic.partitions[0].committed_offset) == (NONE, -1)

    run(test())


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_FETCH))
def test_error_of_a_group_is_in_the_field_of_its_version(version: int) -> None:
    async def test() -> None:
        lab = GroupLab()
        lab.coordinator.close()
        error, topics = await fetch(lab, version, wanted(lab, 0))
        gone = ErrorCode.coordinator_not_available
        if version == 1:
            assert topics[0].partitions[0].error_code is gone
        else:
            assert (error, topics) == (gone, ())

    run(test())


def test_several_groups_are_fetched_at_once() -> None:
    async def test() -> None:
        lab = GroupLab()
        await lab.commit(1, group_id="a")
        await lab.commit(2, group_id="b")
        groups = [{"group_id": name, "topics": None} for name in ("a", "b", "c", "a")]
        answer = await lab.ask(ApiKey.OFFSET_FETCH, 9, groups=groups)
        found = {one.group_id: [each.partitions[0].committed_offset for each in one.topics] for one in answer.groups}
        assert found == {"a": [1], "b": [2], "c": []}
        assert len(answer.groups) == 3, "asked twice, answered once"

    run(test())


def test_unknown_topic_id_gets_an_error() -> None:
    async def test() -> None:
        lab = GroupLab()
        _, (topic,) = await fetch(lab, 10, [{"topic_id": uuid.UUID(int=9), "partition_indexes": [0]}])
        assert topic.partitions[0].error_code is ErrorCode.unknown_topic_id
        assert topic.topic_id == uuid.UUID(int=9)

    run(test())


def test_offset_of_an_earlier_topic_of_the_same_name_is_not_returned() -> None:
    async def test() -> None:
        lab = GroupLab()
        await lab.commit(42)
        lab.topics.topics["orders"] = Topic("orders", uuid.UUID(int=77), 4)
        assert await lab.committed() == -1
        assert (await fetch(lab, 9, None))[1] == ()
        del lab.topics.topics["orders"]
        assert await lab.committed() == 42, "by name, while nothing else has it"
        assert (await fetch(lab, 10, None))[1] == (), "by id there is nothing to call it by"

    run(test())


def test_repeated_partition_is_returned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committed_offsets, "MOST_PARTITIONS", 2_000)

    async def test() -> None:
        lab = GroupLab()
        await lab.commit(42)
        _, topics = await fetch(lab, 7, wanted(lab, *[0] * 1_000) + wanted(lab, *[0] * 1_000))
        assert [len(topic.partitions) for topic in topics] == [1]
        with pytest.raises(MalformedRequestError, match="it must have at most 2000"):
            await fetch(lab, 7, wanted(lab, *range(2_001)))

    run(test())


def test_too_many_groups_are_refused() -> None:
    async def test() -> None:
        groups = [{"group_id": str(number), "topics": None} for number in range(10_001)]
        with pytest.raises(MalformedRequestError, match="OffsetFetch has 10001 groups"):
            await GroupLab().ask(ApiKey.OFFSET_FETCH, groups=groups)

    run(test())


def test_empty_group_id_has_offsets_as_in_kafka() -> None:
    async def test() -> None:
        lab = GroupLab()
        assert await lab.commit(5, group_id="") is NONE
        assert await lab.committed("") == 5
        assert (await lab.ask(ApiKey.DELETE_GROUPS, groups_names=[""])).results[0].error_code is NONE

    run(test())


# OffsetDelete


async def delete(lab: GroupLab, *partitions: int, topic: str = "orders", group_id: str = "g") -> Any:
    doomed = [{"partition_index": each} for each in partitions]
    return await lab.ask(ApiKey.OFFSET_DELETE, group_id=group_id, topics=[{"name": topic, "partitions": doomed}])


def test_offsets_are_deleted() -> None:
    async def test() -> None:
        lab = GroupLab()
        await lab.commit(5)
        answer = await delete(lab, 0, 1, 99)
        assert answer.error_code is NONE
        (topic,) = answer.topics
        assert [(one.partition_index, one.error_code) for one in topic.partitions] == [
            (0, NONE),
            (1, NONE),
            (99, UNKNOWN),
        ]
        assert await lab.committed() == -1
        unknown = await delete(lab, 0, topic="nothing")
        assert unknown.topics[0].partitions[0].error_code is UNKNOWN

    run(test())


def test_offsets_of_a_subscribed_topic_are_not_deleted() -> None:
    async def test() -> None:
        lab = GroupLab()
        member = await lab.stable()
        await lab.commit(5, generation_id_or_member_epoch=1, member_id=member.member_id)
        answer = await delete(lab, 0)
        assert answer.topics[0].partitions[0].error_code is ErrorCode.group_subscribed_to_topic
        assert await lab.committed() == 5
        other = await delete(lab, 0, topic="payments")
        assert other.topics[0].partitions[0].error_code is NONE

    run(test())


def test_offsets_of_an_unknown_group_or_another_protocol_are_not_deleted() -> None:
    async def test() -> None:
        lab = GroupLab()
        assert (await delete(lab, 0)).error_code is ErrorCode.group_id_not_found
        await lab.stable(protocol_type="connect")
        answer = await delete(lab, 0)
        assert (answer.error_code, answer.topics) == (ErrorCode.non_empty_group, ())

    run(test())

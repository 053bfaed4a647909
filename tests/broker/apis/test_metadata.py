"""Metadata, in every version: brokers, topics by name and topic id, and auto-creation."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import pytest

from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode
from tests.broker.data_lab import DataLab

VERSIONS = range(14)
FIRST_WITH_NULL_FOR_ALL = 1
FIRST_THAT_MAY_FORBID = 4
FIRST_BY_ID = 12


def names(answer: Any) -> list[tuple[str, str]]:
    return [(each.name, each.error_code.name) for each in answer.topics]


def ask(lab: DataLab, *topics: str, version: int = 13, **given: Any) -> Any:
    return lab.ask(ApiKey.METADATA, {"topics": [{"name": name} for name in topics], **given}, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_broker_and_its_topics(data_lab: DataLab, version: int) -> None:
    topic = data_lab.create("orders", 2)
    answer = ask(data_lab, "orders", version=version)
    (broker,) = answer.brokers
    assert (broker.node_id, broker.host, broker.port) == (1, "broker.example", 9092)
    (told,) = answer.topics
    assert (told.error_code, told.name) == (ErrorCode.none, "orders")
    assert [each.partition_index for each in told.partitions] == [0, 1]
    assert all((each.leader_id, each.replica_nodes, each.isr_nodes) == (1, (1,), (1,)) for each in told.partitions)
    if version >= 1:
        assert (answer.controller_id, told.is_internal) == (1, False)
    if version >= 2:
        assert answer.cluster_id == "cluster"
    if version >= 7:
        assert [each.leader_epoch for each in told.partitions] == [0, 0]
    if version >= 10:
        assert told.topic_id == topic.id


@pytest.mark.parametrize("version", VERSIONS)
def test_all_topics(data_lab: DataLab, version: int) -> None:
    for name in ("b", "a", "__consumer_offsets"):
        data_lab.create(name)
    wanted: Any = None if version >= FIRST_WITH_NULL_FOR_ALL else ()
    answer = data_lab.ask(ApiKey.METADATA, {"topics": wanted}, version)
    assert names(answer) == [("__consumer_offsets", "none"), ("a", "none"), ("b", "none")]
    if version >= 1:
        assert [each.is_internal for each in answer.topics] == [True, False, False]


@pytest.mark.parametrize("version", range(FIRST_WITH_NULL_FOR_ALL, 14))
def test_no_topics(data_lab: DataLab, version: int) -> None:
    data_lab.create("a")
    assert names(ask(data_lab, version=version)) == []


def test_cached_response_is_not_used_after_topics_changed(data_lab: DataLab) -> None:
    data_lab.create("a")
    everything = {"topics": None}
    assert len(data_lab.ask(ApiKey.METADATA, everything).topics) == 1
    data_lab.create("b")
    assert len(data_lab.ask(ApiKey.METADATA, everything).topics) == 2
    data_lab.topics.add_partitions("a", 3)
    assert len(data_lab.ask(ApiKey.METADATA, everything).topics[0].partitions) == 3
    data_lab.topics.delete("a")
    assert len(data_lab.ask(ApiKey.METADATA, everything).topics) == 1


def test_a_topic_by_its_id(data_lab: DataLab) -> None:
    topic = data_lab.create("orders")
    unknown = uuid.uuid4()
    for version in (12, 13):
        wanted = [{"topic_id": topic.id, "name": None}, {"topic_id": unknown, "name": None}]
        found, missing = data_lab.ask(ApiKey.METADATA, {"topics": wanted}, version).topics
        assert (found.name, found.error_code) == ("orders", ErrorCode.none)
        assert (missing.error_code, missing.topic_id, missing.name) == (ErrorCode.unknown_topic_id, unknown, None)


def test_topic_without_name_and_topic_id_is_an_invalid_request(data_lab: DataLab) -> None:
    for version in (10, 11, 12, 13):
        (told,) = data_lab.ask(ApiKey.METADATA, {"topics": [{"topic_id": None, "name": None}]}, version).topics
        assert told.error_code == ErrorCode.invalid_request


def test_a_repeated_topic_is_described_once(data_lab: DataLab) -> None:
    data_lab.create("orders")
    assert names(ask(data_lab, *["orders"] * 1000)) == [("orders", "none")]


def test_operations_are_returned_if_requested(data_lab: DataLab) -> None:
    data_lab.create("orders")
    plain = ask(data_lab, "orders", version=8)
    assert plain.cluster_authorized_operations == plain.topics[0].topic_authorized_operations == -(2**31)
    asked = {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}
    full = ask(data_lab, "orders", version=8, **asked)
    assert full.cluster_authorized_operations > 0
    assert full.topics[0].topic_authorized_operations > 0


# Auto-creation


@pytest.mark.parametrize("version", VERSIONS)
def test_an_unknown_topic_is_created_and_is_in_the_same_response(tmp_path: Path, version: int) -> None:
    with DataLab(tmp_path, num_partitions=3) as lab:
        answer = ask(lab, "new", version=version, allow_auto_topic_creation=True)
        assert names(answer) == [("new", "none")]
        assert len(answer.topics[0].partitions) == 3
        assert lab.partition("new", 2).high_watermark == 0


@pytest.mark.parametrize("version", range(FIRST_THAT_MAY_FORBID, 14))
def test_a_client_can_forbid_auto_creation(data_lab: DataLab, version: int) -> None:
    answer = ask(data_lab, "new", version=version, allow_auto_topic_creation=False)
    assert names(answer) == [("new", "unknown_topic_or_partition")]
    assert data_lab.topics.all() == []


def test_the_broker_can_forbid_auto_creation(tmp_path: Path) -> None:
    with DataLab(tmp_path, auto_create_topics_enable=False) as lab:
        answer = ask(lab, "new", allow_auto_topic_creation=True)
        assert names(answer) == [("new", "unknown_topic_or_partition")]
        assert lab.topics.all() == []


def test_topic_that_can_not_be_created_does_not_stop_the_others(tmp_path: Path) -> None:
    with DataLab(tmp_path, stratalog_max_partitions=2) as lab:
        answer = ask(lab, "a", "a/b", "b", "c", allow_auto_topic_creation=True)
        assert names(answer) == [
            ("a", "none"),
            ("a/b", "invalid_topic_exception"),
            ("b", "none"),
            ("c", "invalid_partitions"),
        ]


def test_two_clients_that_create_a_topic_at_once_get_the_same_topic(data_lab: DataLab) -> None:
    async def both() -> list[Any]:
        asked = {"topics": [{"name": "new"}], "allow_auto_topic_creation": True}
        return list(await asyncio.gather(*(data_lab.asking(ApiKey.METADATA, asked) for _ in range(2))))

    first, second = asyncio.run(both())
    assert names(first) == names(second) == [("new", "none")]
    assert first.topics[0].topic_id == second.topics[0].topic_id


def test_unknown_topic_id_creates_nothing(data_lab: DataLab) -> None:
    asked = {"topics": [{"topic_id": uuid.uuid4(), "name": None}], "allow_auto_topic_creation": True}
    assert data_lab.ask(ApiKey.METADATA, asked).topics[0].error_code == ErrorCode.unknown_topic_id
    assert data_lab.topics.all() == []


def test_cached_responses_are_limited(data_lab: DataLab) -> None:
    metadata: Any = data_lab.routes[ApiKey.METADATA].__self__  # type: ignore[attr-defined]
    data_lab.create("orders")
    for number in range(200):
        ask(data_lab, "orders", f"nope-{number}", allow_auto_topic_creation=False)
    ask(data_lab, *(f"nope-{number}" for number in range(300)), allow_auto_topic_creation=False)
    assert len(metadata._responses) <= 64
    assert all(len(question[1].topics) <= 100 for question in metadata._responses)

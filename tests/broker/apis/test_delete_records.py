from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stratalog.protocol.api_keys import ApiKey
from tests.broker.apis.admin_lab import AdminLab, versions
from tests.broker.metadata.registry_lab import killed_copy
from tests.storage.faults.failing_disk import FailingDisk
from tests.storage.hand_made import START_MS, batch_of


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[AdminLab]:
    with AdminLab(tmp_path / "data") as lab:
        lab.topics.create("orders", 2, {})
        lab.append("orders", *(batch_of(START_MS) for _ in range(10)))
        yield lab


def delete(lab: AdminLab, *offsets: tuple[str, int, int], version: int | None = None) -> list[tuple[Any, ...]]:
    topics = [
        {"name": name, "partitions": [{"partition_index": index, "offset": offset}]} for name, index, offset in offsets
    ]
    answer = lab.answer(ApiKey.DELETE_RECORDS, version, topics=topics, timeout=1000)
    return [
        (topic.name, each.partition_index, each.low_watermark, each.error_code.name)
        for topic in answer.topics
        for each in topic.partitions
    ]


@pytest.mark.parametrize("version", versions(ApiKey.DELETE_RECORDS))
def test_log_starts_at_the_requested_offset(lab: AdminLab, version: int) -> None:
    assert delete(lab, ("orders", 0, 4), version=version) == [("orders", 0, 4, "none")]
    assert [record.offset for record in lab.append("orders").records()] == list(range(4, 10))


def test_offset_minus_one_deletes_all_records(lab: AdminLab) -> None:
    assert delete(lab, ("orders", 0, -1)) == [("orders", 0, 10, "none")]
    assert list(lab.append("orders").records()) == []
    assert delete(lab, ("orders", 1, -1)) == [("orders", 1, 0, "none")]  # it is empty


def test_offset_before_the_start_changes_nothing(lab: AdminLab) -> None:
    delete(lab, ("orders", 0, 6))
    assert delete(lab, ("orders", 0, 2)) == [("orders", 0, 6, "none")]
    assert delete(lab, ("orders", 0, 0)) == [("orders", 0, 6, "none")]


@pytest.mark.parametrize("offset", [11, 2**63 - 1, -2, -(2**63)])
def test_offsets_that_are_not_in_the_log_are_refused(lab: AdminLab, offset: int) -> None:
    assert delete(lab, ("orders", 0, offset)) == [("orders", 0, -1, "offset_out_of_range")]
    assert lab.append("orders").log_start_offset == 0


@pytest.mark.parametrize(("name", "index"), [("nope", 0), ("orders", 2), ("orders", -1), ("..", 0)])
def test_unknown_partitions_do_not_stop_the_others(lab: AdminLab, name: str, index: int) -> None:
    topics = delete(lab, (name, index, 1), ("orders", 0, 1))
    assert sorted(topics) == sorted([(name, index, -1, "unknown_topic_or_partition"), ("orders", 0, 1, "none")])


def test_internal_topics_are_refused(lab: AdminLab) -> None:
    lab.topics.create("__consumer_offsets", 1, {})
    lab.append("__consumer_offsets", batch_of(START_MS))
    assert delete(lab, ("__consumer_offsets", 0, 1)) == [("__consumer_offsets", 0, -1, "invalid_topic_exception")]
    assert lab.append("__consumer_offsets").log_start_offset == 0


def test_last_offset_of_a_repeated_partition_counts(lab: AdminLab) -> None:
    assert delete(lab, ("orders", 0, 3), ("orders", 0, 2)) == [("orders", 0, 2, "none")]


def test_topic_that_is_deleted_during_the_request_gets_unknown_topic(lab: AdminLab) -> None:
    lab.before_background = lambda: lab.topics.delete("orders")
    assert delete(lab, ("orders", 0, 3)) == [("orders", 0, -1, "unknown_topic_or_partition")]


def test_deleted_records_stay_deleted_after_kill_9(lab: AdminLab, tmp_path: Path) -> None:
    delete(lab, ("orders", 0, 7))
    with AdminLab(killed_copy(tmp_path / "data", tmp_path / "killed")) as restarted:
        assert restarted.append("orders").log_start_offset == 7


def test_failing_disk_gets_a_storage_error(tmp_path: Path) -> None:
    disk = FailingDisk()
    with AdminLab(tmp_path, disk) as lab:
        lab.topics.create("orders", 1, {})
        lab.append("orders", batch_of(START_MS))
        disk.arm("EIO", 1, 100)
        assert delete(lab, ("orders", 0, 1)) == [("orders", 0, -1, "kafka_storage_error")]
        disk.heal()
        assert delete(lab, ("orders", 0, 1)) == [("orders", 0, 1, "none")]


def test_many_partitions_are_saved_a_few_hundred_at_a_time(tmp_path: Path) -> None:
    with AdminLab(tmp_path) as lab:
        lab.topics.create("orders", 600, {})
        for index in (0, 599):
            lab.append("orders", batch_of(START_MS), partition=index)
        wanted = [{"partition_index": index, "offset": -1} for index in range(600)]
        answer = lab.answer(ApiKey.DELETE_RECORDS, topics=[{"name": "orders", "partitions": wanted}], timeout=1000)
        [topic] = answer.topics
        assert [each.partition_index for each in topic.partitions] == list(range(600))
        assert {each.error_code.name for each in topic.partitions} == {"none"}
        assert [each.partition_index for each in topic.partitions if each.low_watermark == 1] == [0, 599]
        assert lab.background_calls == 2

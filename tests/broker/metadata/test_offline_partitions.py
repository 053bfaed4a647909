"""A partition that can't be opened is offline: its requests are refused, and all others are served."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from stratalog.errors import UnusablePartitionError
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode
from stratalog.records.builder import build_batch
from tests.broker.apis.admin_lab import AdminLab
from tests.broker.data_lab import DataLab
from tests.broker.metadata.registry_lab import Broker

SEGMENT = "00000000000000000000.log"
STORAGE_ERROR = 56


def made(data: Path, topic: str = "orders") -> Path:
    """Create two partitions with a record each, and replace the segment of the second by a named pipe."""
    with Broker(data) as broker:
        broker.topics.create(topic, 2, {})
        broker.append(topic, 0)
        broker.append(topic, 1)
    path = data / f"{topic}-1" / SEGMENT
    path.rename(data / "saved")
    os.mkfifo(path)
    return path


def test_unusable_partition_is_offline_until_it_is_repaired(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = made(tmp_path)
    with Broker(tmp_path) as broker:
        assert broker.count("orders", 0) == 1
        assert [partition.is_offline for partition in broker.topics.partitions("orders")] == [False, True]
        assert f"orders-1 is offline, clients get KAFKA_STORAGE_ERROR: {path}: is a named pipe" in caplog.text
        broker.append("orders", 0)
    path.unlink()
    (tmp_path / "saved").rename(path)
    with Broker(tmp_path) as broker:
        assert (broker.count("orders", 0), broker.count("orders", 1)) == (2, 1)


def test_directory_with_a_segments_name_makes_only_its_partition_offline(tmp_path: Path) -> None:
    path = made(tmp_path)
    path.unlink()
    path.mkdir()
    with Broker(tmp_path) as broker:
        assert [partition.is_offline for partition in broker.topics.partitions("orders")] == [False, True]


def test_file_with_a_partitions_name_makes_only_its_partition_offline(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        broker.topics.create("orders", 2, {})
    for entry in (tmp_path / "orders-1").iterdir():
        entry.unlink()
    (tmp_path / "orders-1").rmdir()
    (tmp_path / "orders-1").write_text("in the way")
    with Broker(tmp_path) as broker:
        assert [partition.is_offline for partition in broker.topics.partitions("orders")] == [False, True]


def test_topic_with_an_offline_partition_is_altered_grown_and_deleted(tmp_path: Path) -> None:
    made(tmp_path)
    with Broker(tmp_path) as broker:
        broker.topics.alter_settings("orders", {"retention.ms": "1000"})
        broker.topics.reconfigure_all()
        broker.topics.add_partitions("orders", 3)
        assert [partition.is_offline for partition in broker.topics.partitions("orders")] == [False, True, False]
        broker.topics.delete("orders")
        assert broker.topics.all() == []
        assert broker.on_disk == {}


def test_unusable_partition_of_an_internal_topic_keeps_the_broker_from_starting(tmp_path: Path) -> None:
    """Otherwise all committed offsets would seem to be lost."""
    path = made(tmp_path, "__consumer_offsets")
    with pytest.raises(UnusablePartitionError, match=f"{path}: is a named pipe"):
        Broker(tmp_path)


def test_requests_for_an_offline_partition_get_a_storage_error(tmp_path: Path) -> None:
    made(tmp_path)
    batch = bytes(build_batch([(None, b"value")]))
    with DataLab(tmp_path) as lab:
        topic = lab.topics.get("orders")
        assert topic is not None

        def codes(key: ApiKey, answers: str, of_partitions: str, **fields: Any) -> list[int]:
            [answer] = getattr(lab.ask(key, fields), answers)
            return [int(each.error_code) for each in getattr(answer, of_partitions)]

        data = [{"index": index, "records": batch} for index in (0, 1)]
        produced = {"topic_id": topic.id, "partition_data": data}
        assert codes(
            ApiKey.PRODUCE, "responses", "partition_responses", acks=-1, timeout=1000, topic_data=[produced]
        ) == [0, STORAGE_ERROR]
        wanted = [{"partition": index, "fetch_offset": 0, "partition_max_bytes": 10**6} for index in (0, 1)]
        fetched = [{"topic_id": topic.id, "partitions": wanted}]
        fields = {"min_bytes": 1, "max_bytes": 10**6, "max_wait": 0, "topics": fetched}
        assert codes(ApiKey.FETCH, "responses", "partitions", **fields) == [0, STORAGE_ERROR]
        for timestamp in (-1, -2, -3, 5):
            asked = [{"partition_index": index, "timestamp": timestamp} for index in (0, 1)]
            topics = [{"name": "orders", "partitions": asked}]
            fields = {"replica_id": -1, "isolation_level": 0, "topics": topics}
            assert codes(ApiKey.LIST_OFFSETS, "topics", "partitions", **fields) == [0, STORAGE_ERROR]
        [described] = lab.ask(ApiKey.METADATA, {"topics": [{"topic_id": topic.id, "name": None}]}).topics
        assert [each.offline_replicas for each in described.partitions] == [(), (1,)]
        assert [(each.leader_id, each.isr_nodes) for each in described.partitions] == [(1, (1,)), (-1, ())]
        assert described.partitions[1].error_code == ErrorCode.leader_not_available


def test_admin_requests_for_an_offline_partition_get_a_storage_error(tmp_path: Path) -> None:
    made(tmp_path)
    with AdminLab(tmp_path) as lab:
        asked = [{"partition_index": index, "offset": -1} for index in (0, 1)]
        answer = lab.answer(ApiKey.DELETE_RECORDS, topics=[{"name": "orders", "partitions": asked}], timeout=1000)
        assert [int(each.error_code) for each in answer.topics[0].partitions] == [0, STORAGE_ERROR]
        epochs = [{"partition": index, "current_leader_epoch": -1, "leader_epoch": 0} for index in (0, 1)]
        answer = lab.answer(
            ApiKey.OFFSET_FOR_LEADER_EPOCH, replica_id=-1, topics=[{"topic": "orders", "partitions": epochs}]
        )
        assert [int(each.error_code) for each in answer.topics[0].partitions] == [0, STORAGE_ERROR]

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

import pytest

from stratalog.broker.metadata.store import METADATA_FILE
from stratalog.errors import StorageError
from stratalog.storage.checkpoints import format_partition_metadata, read_partition_metadata
from tests.broker.metadata.registry_lab import Broker
from tests.golden.test_opening_kafkas_directories import copy_data_directory, copy_partition, expected_of
from tests.storage.hand_made import GOLDEN, START_MS, batch_of, write_segment


def test_kafkas_data_directory_becomes_topics_with_kafkas_ids(tmp_path: Path) -> None:
    copy_data_directory(tmp_path)
    golden = {path.parent.name for path in GOLDEN.glob("*/expected.json")} - {"data-directory"}
    names = {name for name in golden if expected_of(name)["magic"] == 2}
    for _ in range(2):  # again, with the topics in the metadata
        with Broker(tmp_path) as broker:
            assert broker.shape == dict.fromkeys(names, 1)
            for name in names:
                topic = broker.topics.get(name)
                assert topic is not None
                assert topic.id == read_partition_metadata(GOLDEN / name / "partition.metadata")
                assert broker.count(name) > expected_of(name)["records"][-1]["offset"]
            assert broker.store.load_cluster_id(1) in (tmp_path / "meta.properties").read_text()


@pytest.mark.parametrize("name", ["magic0-none", "magic1-lz4"])
def test_topic_without_topic_id_gets_one_and_keeps_it(tmp_path: Path, name: str) -> None:
    partition = copy_partition(name, tmp_path)
    (partition / "partition.metadata").unlink(missing_ok=True)
    ids = set()
    for _ in range(2):
        with Broker(tmp_path) as broker:
            topic = broker.topics.get(name)
            assert topic is not None
            ids.add(topic.id)
    assert len(ids) == 1


def test_lost_metadata_costs_the_settings_not_the_topics(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        created = broker.topics.create("orders", 3, {"retention.ms": "1"})
        broker.append("orders", 1)
    (tmp_path / METADATA_FILE).unlink()
    with Broker(tmp_path) as broker:
        assert broker.shape == {"orders": 3}
        topic = broker.topics.get("orders")
        assert topic is not None
        assert topic.id == created.id
        assert broker.count("orders", 1) == 1


def test_records_of_a_topic_whose_settings_are_lost_are_all_kept(tmp_path: Path) -> None:
    write_segment(tmp_path / "orders-0", 0, batch_of(1))
    write_segment(tmp_path / "orders-0", 1, batch_of(START_MS, base_offset=1))
    for _ in range(2):
        with Broker(tmp_path) as broker:
            log = broker.topics.partitions("orders")[0].log
            assert log.apply_retention() == []
            assert (log.log_start_offset, log.log_end_offset) == (0, 2)


def test_missing_partitions_are_created_empty(tmp_path: Path) -> None:
    write_segment(tmp_path / "orders-0", 0, batch_of(1))
    write_segment(tmp_path / "orders-3", 0, batch_of(1))
    with Broker(tmp_path) as broker:
        assert broker.shape == {"orders": 4}
        assert [broker.count("orders", index) for index in range(4)] == [1, 0, 0, 1]


def test_directories_after_the_last_partition_of_a_topic_are_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Broker(tmp_path) as broker:
        created = broker.topics.create("orders", 1, {"retention.ms": "1000"})
    write_segment(tmp_path / "orders-2", 0, batch_of(1))
    with Broker(tmp_path) as broker:
        topic = broker.topics.get("orders")
        assert topic is not None
        assert (topic.partition_count, topic.id, topic.settings) == (3, created.id, created.settings)
        assert "directories up to partition 2" in caplog.text


@pytest.mark.parametrize("known", [False, True])
def test_directory_with_a_partitions_name_but_no_log_is_left_alone(
    tmp_path: Path, known: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with Broker(tmp_path) as broker:
        if known:
            broker.topics.create("backup", 1, {})
    stray = tmp_path / "backup-20240101"
    stray.mkdir()
    (stray / "notes.txt").write_text("mine")
    with Broker(tmp_path) as broker:
        assert broker.shape == ({"backup": 1} if known else {})
        assert "but no log in it" in caplog.text
    assert (stray / "notes.txt").read_text() == "mine"


def test_too_many_partitions_stop_the_start_with_advice(tmp_path: Path) -> None:
    write_segment(tmp_path / "orders-2147483646", 0, batch_of(1))
    with pytest.raises(
        StorageError, match=r"2147483647 partitions.*stratalog\.max\.partitions, 1000; raise the setting"
    ):
        Broker(tmp_path)
    assert not (tmp_path / METADATA_FILE).exists()
    shutil.move(tmp_path / "orders-2147483646", tmp_path / "orders-0")
    with Broker(tmp_path) as broker:
        assert broker.shape == {"orders": 1}


def test_lowered_limit_does_not_affect_existing_topics(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        broker.topics.create("orders", 3, {})
    with Broker(tmp_path, most_partitions=2) as broker:
        assert broker.shape == {"orders": 3}


def test_copied_topic_gets_a_new_topic_id(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Broker(tmp_path) as broker:
        original = broker.topics.create("orders", 1, {})
    for name in ("copy", "zcopy"):
        shutil.copytree(tmp_path / "orders-0", tmp_path / f"{name}-0")
    with Broker(tmp_path) as broker:
        assert broker.shape == {"copy": 1, "orders": 1, "zcopy": 1}  # checks that each can be looked up by its topic id
        assert broker.topics.get("orders") == original
    assert "as a copy would" in caplog.text


@pytest.mark.parametrize("content", [b"", b"version: 9\n", b"\xff", format_partition_metadata(uuid.UUID(int=0))])
def test_unreadable_topic_id_is_read_from_the_next_partition(tmp_path: Path, content: bytes) -> None:
    with Broker(tmp_path) as broker:
        created = broker.topics.create("orders", 2, {})
    (tmp_path / METADATA_FILE).unlink()
    (tmp_path / "orders-0" / "partition.metadata").write_bytes(content)
    with Broker(tmp_path) as broker:
        topic = broker.topics.get("orders")
        assert topic is not None
        assert topic.id == created.id


def test_kafkas_controller_log_is_not_a_topic(tmp_path: Path) -> None:
    write_segment(tmp_path / "__cluster_metadata-0", 0, batch_of(1))
    with Broker(tmp_path) as broker:
        assert broker.shape == {}
    assert (tmp_path / "__cluster_metadata-0").exists()

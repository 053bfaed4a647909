from __future__ import annotations

import base64
import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from stratalog.broker.metadata.store import META_PROPERTIES, METADATA_FILE, MetadataStore, Topic
from stratalog.errors import CorruptCheckpointError, StorageError
from stratalog.storage.disk import Disk
from tests.storage.faults.failing_disk import FailingDisk


def store_at(path: Path, disk: Disk | None = None) -> MetadataStore:
    return MetadataStore(path, disk or Disk())


def test_metadata_is_read_as_it_was_written(tmp_path: Path) -> None:
    topics = {
        "orders": Topic("orders", uuid.uuid4(), 3, {"retention.ms": "1000", "compression.type": "zstd"}),
        "gone": Topic("gone", uuid.uuid4(), 1, {}, deleting=True),
    }
    store = store_at(tmp_path)
    store.change(topics=topics)
    store.change(next_producer_id=5000)
    store.change(broker_settings={"log.retention.ms": "2000"})
    assert store_at(tmp_path).metadata == store.metadata
    assert store.metadata.topics == topics
    assert (store.metadata.next_producer_id, store.metadata.broker_settings) == (5000, {"log.retention.ms": "2000"})


def test_failing_disk_changes_nothing(tmp_path: Path) -> None:
    disk = FailingDisk()
    store = store_at(tmp_path, disk)
    store.change(next_producer_id=1000)
    for nth in (1, 2, 3):
        disk.arm("ENOSPC", nth)
        with pytest.raises(StorageError, match="can't be written"):
            store.change(next_producer_id=2000)
        disk.heal()
        assert store.metadata == store_at(tmp_path).metadata
        assert store.metadata.next_producer_id == 1000


def sound() -> dict[str, Any]:
    topic = {"id": str(uuid.uuid4()), "partitions": 1, "settings": {}}
    return {"version": 1, "next_producer_id": 0, "broker_settings": {}, "topics": {"orders": topic}}


def test_undamaged_file_is_valid(tmp_path: Path) -> None:
    (tmp_path / METADATA_FILE).write_text(json.dumps(sound()))
    assert list(store_at(tmp_path).metadata.topics) == ["orders"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content.update(version=2),
        lambda content: content.pop("topics"),
        lambda content: content.update(topics=[]),
        lambda content: content.update(next_producer_id=-1),
        lambda content: content.update(next_producer_id="many"),
        lambda content: content["topics"].update({"../../etc": content["topics"]["orders"]}),
        lambda content: content["topics"]["orders"].update(id="none"),
        lambda content: content["topics"]["orders"].update(partitions=0),
        lambda content: content["topics"]["orders"].update(partitions="3"),
        lambda content: content["topics"]["orders"].pop("settings"),
        lambda content: content["topics"].update(orders=None),
    ],
)
def test_invalid_file_is_refused_with_advice(tmp_path: Path, damage: Any) -> None:
    content = sound()
    damage(content)
    (tmp_path / METADATA_FILE).write_text(json.dumps(content))
    with pytest.raises(CorruptCheckpointError, match="replace it with a backup, or move it away"):
        store_at(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b"null", b"1"])
def test_file_that_is_not_a_json_object_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / METADATA_FILE).write_bytes(content)
    with pytest.raises(CorruptCheckpointError):
        store_at(tmp_path)


class TestIdentity:
    def test_new_directory_gets_a_cluster_id_and_keeps_it(self, tmp_path: Path) -> None:
        cluster_id = store_at(tmp_path).load_cluster_id(7)
        assert len(base64.urlsafe_b64decode(cluster_id + "==")) == 16
        assert store_at(tmp_path).load_cluster_id(7) == cluster_id
        lines = (tmp_path / META_PROPERTIES).read_text().splitlines()
        assert {"version=1", "node.id=7", f"cluster.id={cluster_id}"} <= set(lines)

    @pytest.mark.parametrize(
        "content",
        [
            "#\n#Sun Nov 16 00:06:00 UTC 2025\ncluster.id=abc\nversion=1\nnode.id=3\ndirectory.id=xyz\n",
            "#old\nversion=0\nbroker.id=3\ncluster.id=abc\n",
            "cluster.id = abc\r\nnode.id = 3\r\n",
        ],
    )
    def test_meta_properties_of_kafka_are_kept(self, tmp_path: Path, content: str) -> None:
        (tmp_path / META_PROPERTIES).write_text(content)
        assert store_at(tmp_path).load_cluster_id(3) == "abc"
        assert (tmp_path / META_PROPERTIES).read_text() == content.replace("\r\n", "\n")

    def test_directory_of_another_broker_is_refused_with_its_node_id(self, tmp_path: Path) -> None:
        store_at(tmp_path).load_cluster_id(1)
        with pytest.raises(StorageError, match=r"belongs to node\.id 1, .* --set node\.id=1"):
            store_at(tmp_path).load_cluster_id(2)

    def test_unreadable_file_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / META_PROPERTIES).write_bytes(b"\xff\xfe")
        with pytest.raises(StorageError, match="can't be read"):
            store_at(tmp_path).load_cluster_id(1)

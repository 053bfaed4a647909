from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from stratalog.broker.background import finish
from stratalog.broker.metadata.topics import RequestedTopic
from stratalog.errors import ConfigError, InvalidPartitionsError, InvalidTopicError, TopicExistsError, UnknownTopicError
from stratalog.storage.checkpoints import read_partition_metadata
from tests.broker.metadata.registry_lab import Broker, CountingDisk, QuickDisk


def test_topics_are_found_again_with_ids_settings_and_records(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        orders = broker.topics.create("orders", 3, {"retention.ms": "1000"})
        broker.topics.create("events", 1, {})
        broker.append("orders", 2)
        assert broker.shape == {"events": 1, "orders": 3}
    with Broker(tmp_path) as broker:
        assert broker.shape == {"events": 1, "orders": 3}
        assert broker.topics.get("orders") == orders
        assert broker.count("orders", 2) == 1
        assert broker.topics.partitions("orders")[0].log.config.retention_ms == 1000


def test_a_topics_id_is_in_the_files_of_its_partitions(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        topic = broker.topics.create("orders", 2, {})
        broker.topics.add_partitions("orders", 3)
        for index in range(3):
            assert read_partition_metadata(tmp_path / f"orders-{index}" / "partition.metadata") == topic.id


def test_a_given_id_is_kept(tmp_path: Path) -> None:
    wanted = uuid.uuid4()
    with Broker(tmp_path) as broker:
        assert broker.topics.create("orders", 1, {}, wanted).id == wanted


def test_deleted_topic_is_permanently_gone(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        broker.topics.create("orders", 2, {})
        broker.topics.create("events", 1, {})
        broker.append("orders")
        log = broker.topics.partitions("orders")[0].log
        broker.topics.delete("orders")
        assert broker.shape == broker.on_disk == {"events": 1}
        assert log.is_closed
    with Broker(tmp_path) as broker:
        assert broker.shape == broker.on_disk == {"events": 1}


def test_topic_that_is_created_again_has_another_topic_id(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        old = broker.topics.create("orders", 1, {})
        broker.append("orders")
        broker.topics.delete("orders")
        new = broker.topics.create("orders", 2, {})
        assert new.id != old.id
        assert broker.topics.by_id(old.id) is None
        assert broker.count("orders") == 0
    with Broker(tmp_path) as broker:
        assert broker.shape == {"orders": 2}


def test_delete_with_an_old_topic_id_deletes_nothing(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        old = broker.topics.create("orders", 1, {})
        broker.topics.delete("orders", old.id)
        broker.topics.create("orders", 1, {})
        with pytest.raises(UnknownTopicError):
            broker.topics.delete("orders", old.id)
        assert broker.shape == {"orders": 1}


def test_partitions_are_added_and_the_old_ones_kept(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        topic = broker.topics.create("orders", 1, {"retention.ms": "1000"})
        broker.append("orders")
        grown = broker.topics.add_partitions("orders", 3)
        assert (grown.id, grown.settings) == (topic.id, topic.settings)
        assert broker.shape == {"orders": 3}
        assert [partition.log.config.retention_ms for partition in broker.topics.partitions("orders")] == [1000] * 3
        assert (broker.count("orders", 0), broker.count("orders", 2)) == (1, 0)
        for total in (3, 2, 0, -1):
            with pytest.raises(InvalidPartitionsError, match="has 3 partitions"):
                broker.topics.add_partitions("orders", total)
    with Broker(tmp_path) as broker:
        assert broker.shape == {"orders": 3}


def test_altered_settings_apply_at_once_and_after_a_restart(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        broker.topics.create("orders", 2, {"retention.ms": "1000", "segment.bytes": "5000"})
        broker.topics.alter_settings("orders", {"retention.ms": "2000"})
        configs = [partition.log.config for partition in broker.topics.partitions("orders")]
        assert [(config.retention_ms, config.segment_bytes) for config in configs] == [(2000, 1024**3)] * 2
        with pytest.raises(ConfigError):
            broker.topics.alter_settings("orders", {"retention.ms": "soon"})
    with Broker(tmp_path) as broker:
        topic = broker.topics.get("orders")
        assert topic is not None
        assert topic.settings == {"retention.ms": "2000"}


@pytest.mark.parametrize("other", ["a_b.c", "a.b_c", "a.b.c", "a_b_c"])
def test_names_with_the_same_metric_name_collide(tmp_path: Path, other: str) -> None:
    with Broker(tmp_path) as broker:
        broker.topics.create("a.b_c" if other != "a.b_c" else "a.b.c", 1, {})
        with pytest.raises(InvalidTopicError, match="collides with"):
            broker.topics.create(other, 1, {})
        broker.topics.create("abc", 1, {})
        broker.topics.create("a-b-c", 1, {})


def test_existing_name_is_refused_as_existing_not_as_colliding(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        broker.topics.create("a.b", 1, {})
        with pytest.raises(TopicExistsError):
            broker.topics.create("a.b", 1, {})


def test_metric_name_of_a_deleted_topic_can_be_used_again(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        broker.topics.create("a.b", 1, {})
        broker.topics.delete("a.b")
        broker.topics.create("a_b", 1, {})
        assert broker.shape == {"a_b": 1}


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "a\0b", "x" * 250, "ünï", "a b", "a\n"])
def test_invalid_names_create_nothing(tmp_path: Path, name: str) -> None:
    with Broker(tmp_path / "data") as broker:
        with pytest.raises(InvalidTopicError):
            broker.topics.create(name, 1, {})
        assert broker.shape == broker.on_disk == {}
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_invalid_settings_create_nothing(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        for settings in ({"retention.ms": "soon"}, {"nonsense": "1"}, {"producer.id.expiration.ms": "1"}):
            with pytest.raises(ConfigError):
                broker.topics.create("orders", 1, settings)
        assert broker.shape == broker.on_disk == {}


def test_there_are_never_more_partitions_than_allowed(tmp_path: Path) -> None:
    with Broker(tmp_path, most_partitions=5) as broker:
        broker.topics.create("a", 3, {})
        for call in (
            lambda: broker.topics.create("b", 3, {}),
            lambda: broker.topics.create("b", 2**31, {}),
            lambda: broker.topics.add_partitions("a", 6),
            lambda: broker.topics.add_partitions("a", 2**31 - 1),
            lambda: broker.topics.check_new("b", 1, {}, planned=2),
        ):
            with pytest.raises(InvalidPartitionsError, match=r"room for 2 .stratalog\.max\.partitions is 5"):
                call()
        broker.topics.add_partitions("a", 4)
        broker.topics.create("b", 1, {})
        with pytest.raises(InvalidPartitionsError, match="room for 0"):
            broker.topics.create("c", 1, {})
        broker.topics.delete("a")
        broker.topics.create("c", 4, {})
        assert broker.shape == {"b": 1, "c": 4}


def test_unknown_topics_can_be_neither_changed_nor_deleted(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        for call in (
            lambda: broker.topics.delete("orders"),
            lambda: broker.topics.add_partitions("orders", 2),
            lambda: broker.topics.alter_settings("orders", {}),
        ):
            with pytest.raises(UnknownTopicError):
                call()


def test_listeners_are_called_when_a_change_is_visible(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        seen: list[dict[str, int]] = []
        versions: list[int] = []
        broker.topics.on_change(lambda: seen.append(broker.shape))
        broker.topics.on_change(lambda: versions.append(broker.topics.version))
        broker.topics.create("a", 1, {})
        broker.topics.add_partitions("a", 2)
        broker.topics.alter_settings("a", {"retention.ms": "1"})
        broker.topics.delete("a")
        assert seen == [{"a": 1}, {"a": 2}, {"a": 2}, {}]
        assert len(set(versions)) == 4


def test_start_reports_progress(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        broker.topics.create("a", 2, {})
        broker.topics.create("b", 1, {})
    with Broker(tmp_path) as broker:
        steps: list[tuple[int, int]] = []
        broker.topics.load(lambda done, total: steps.append((done, total)))
        assert steps == [(1, 3), (2, 3), (3, 3)]


def test_many_topics_are_created_and_deleted_with_as_many_syncs_as_one(tmp_path: Path) -> None:
    def syncs(count: int) -> tuple[int, int]:
        disk = CountingDisk()
        with Broker(tmp_path / str(count), disk=disk) as broker:
            disk.syncs = 0
            finish(broker.topics.create_all([RequestedTopic(f"t{number}", 4, {}) for number in range(count)]))
            assert broker.topics.partition_count == 4 * count
            created, disk.syncs = disk.syncs, 0
            broker.topics.delete_all([(f"t{number}", None) for number in range(count)])
            assert broker.shape == broker.on_disk == {}
            return created, disk.syncs

    assert syncs(30) == syncs(1)


def test_no_topic_is_altered_if_one_alteration_is_invalid(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        broker.topics.create("a", 1, {})
        for changes in ({"a": {"flush.ms": "7"}, "b": {}}, {"a": {"flush.ms": "x"}}):
            with pytest.raises((UnknownTopicError, ConfigError)):
                broker.topics.alter_settings_of_all(changes)
        assert [topic.settings for topic in broker.topics.all()] == [{}]


def test_other_changes_run_while_very_many_partitions_are_created(tmp_path: Path) -> None:
    with Broker(tmp_path, most_partitions=1000) as broker:
        work = broker.topics.create_all([RequestedTopic("large", 450, {}), RequestedTopic("a.b", 50, {})])
        next(work)
        assert broker.shape == {}
        broker.topics.create("other", 1, {})
        for name in ("large", "a.b"):
            with pytest.raises(TopicExistsError, match="is being created already"):
                broker.topics.create(name, 1, {})
            with pytest.raises(UnknownTopicError):
                broker.topics.delete(name)
        with pytest.raises(InvalidTopicError, match="collides with"):
            broker.topics.create("a_b", 1, {})
        with pytest.raises(InvalidPartitionsError, match="room for 499"):
            broker.topics.create("more", 500, {})
        finish(work)
        assert broker.shape == {"a.b": 50, "large": 450, "other": 1}
        broker.topics.delete("large")
        broker.topics.create("large", 1, {})


def test_refused_topic_does_not_keep_the_others_from_being_created(tmp_path: Path) -> None:
    class FullDisk(QuickDisk):
        def make_directory(self, path: Path) -> None:
            if path.name == "b-1":
                raise OSError(28, "No space left on device")
            super().make_directory(path)

    wanted = [RequestedTopic(name, 2, {}) for name in ("a", "b", "..", "a", "c")]
    with Broker(tmp_path, disk=FullDisk()) as broker:
        outcomes = finish(broker.topics.create_all(wanted))
        assert [type(outcome).__name__ for outcome in outcomes] == [
            "Topic",
            "StorageError",
            "InvalidTopicError",
            "TopicExistsError",
            "Topic",
        ]
        assert broker.shape == broker.on_disk == {"a": 2, "c": 2}
    with Broker(tmp_path) as broker:
        assert broker.shape == broker.on_disk == {"a": 2, "c": 2}


def test_default_that_changes_during_creation_applies_to_all_partitions(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        work = broker.topics.create_all([RequestedTopic("large", 250, {})])
        next(work)
        broker.defaults = replace(broker.defaults, retention_ms=7)
        broker.topics.reconfigure_all()
        finish(work)
        assert {partition.log.config.retention_ms for partition in broker.topics.all_partitions()} == {7}


def test_topic_that_can_not_be_removed_does_not_keep_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class StuckDisk(QuickDisk):
        def rename(self, source: Path, target: Path) -> None:
            if source.name == "b-0" and target.name.endswith("-delete"):
                raise OSError(5, "Input/output error")
            super().rename(source, target)

    with Broker(tmp_path, disk=StuckDisk()) as broker:
        for name in ("a", "b", "c"):
            broker.topics.create(name, 1, {})
        assert broker.topics.delete_all([("a", None), ("b", None), ("c", None)]) == [None, None, None]
        assert broker.shape == {}
        assert broker.on_disk == {"b": 1}
        assert "topic b is deleted, but some of its files could not be removed" in caplog.text
    with Broker(tmp_path) as broker:
        assert broker.shape == broker.on_disk == {}


def test_lost_file_with_a_topics_id_is_written_again(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        topic = broker.topics.create("orders", 3, {})
    files = [tmp_path / f"orders-{index}" / "partition.metadata" for index in range(3)]
    files[0].unlink()
    files[1].write_bytes(b"")
    files[2].write_bytes(bytes(43))
    with Broker(tmp_path):
        assert [read_partition_metadata(path) for path in files] == [topic.id] * 3

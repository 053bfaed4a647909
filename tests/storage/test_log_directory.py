from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import uuid
from pathlib import Path
from typing import Any

import pytest

from stratalog.errors import ConfigError, InvalidTopicError, LogAlreadyOpenError, LogClosedError, StorageError
from stratalog.storage import Log, LogConfig, LogDirectory, TopicPartition
from stratalog.storage.checkpoints import read_partition_metadata
from stratalog.storage.disk import Disk
from stratalog.storage.names import CLEAN_SHUTDOWN
from tests.storage.hand_made import GOLDEN, START_MS, batch_of, offsets_of, open_directory

SMALL: dict[str, Any] = {"segment_index_bytes": 1024}


def test_missing_log_is_created_and_found_again(tmp_path: Path) -> None:
    with open_directory(tmp_path / "new" / "data", **SMALL) as directory:
        for topic, partition in (("b", 0), ("a", 10), ("a", 2)):
            directory.log(topic, partition).append(batch_of(partition))
        assert directory.partitions() == [TopicPartition("a", 2), TopicPartition("a", 10), TopicPartition("b", 0)]
    with open_directory(tmp_path / "new" / "data", **SMALL) as directory:
        seen: list[tuple[int, int]] = []
        logs = directory.open_all(lambda done, total: seen.append((done, total)))
        assert [(str(log.partition), log.log_end_offset) for log in logs] == [("a-2", 1), ("a-10", 1), ("b-0", 1)]
        assert seen == [(1, 3), (2, 3), (3, 3)]


def test_same_partition_is_the_same_log(tmp_path: Path) -> None:
    with open_directory(tmp_path, **SMALL) as directory:
        log = directory.log("orders", 0)
        assert directory.log("orders", 0) is log
        log.append(batch_of(1))
        log.close()
        again = directory.log("orders", 0)
        assert again is not log
        assert offsets_of(again) == [0]


@pytest.mark.parametrize("topic", ["..", "a/b", "", "a\0b", "x" * 250])
def test_topic_name_that_is_not_valid_creates_no_directory(tmp_path: Path, topic: str) -> None:
    with open_directory(tmp_path / "data") as directory:
        with pytest.raises(InvalidTopicError):
            directory.log(topic, 0)
        with pytest.raises(InvalidTopicError):
            directory.log("orders", -1)
        assert directory.partitions() == []
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_each_log_has_its_own_settings_or_the_directorys(tmp_path: Path) -> None:
    with open_directory(tmp_path, segment_bytes=5000, **SMALL) as directory:
        assert directory.log("a", 0).config.segment_bytes == 5000
        assert directory.log("b", 0, {"segment.bytes": "6000"}).config.segment_bytes == 6000
        assert directory.log("c", 0, LogConfig(segment_bytes=7000)).config.segment_bytes == 7000
        with pytest.raises(ConfigError, match=r"did you mean segment\.bytes"):
            directory.log("d", 0, {"segment.bites": 1})


def test_topic_id_is_written_once(tmp_path: Path) -> None:
    topic_id = uuid.uuid4()
    with open_directory(tmp_path, **SMALL) as directory:
        directory.log("orders", 0, topic_id=topic_id)
        directory.log("other", 0)
    with open_directory(tmp_path, **SMALL) as directory:
        directory.log("orders", 0, topic_id=uuid.uuid4())
        assert read_partition_metadata(tmp_path / "orders-0" / "partition.metadata") == topic_id
        assert read_partition_metadata(tmp_path / "other-0" / "partition.metadata") not in (None, topic_id)


class TestCleanMarker:
    def test_marker_exists_only_between_a_clean_shutdown_and_the_next_start(self, tmp_path: Path) -> None:
        marker = tmp_path / CLEAN_SHUTDOWN
        for clean in (False, True):
            with open_directory(tmp_path, **SMALL) as directory:
                assert directory.log("orders", 0).recovery.clean is clean
                assert not marker.exists()
            assert json.loads(marker.read_bytes()) == {"version": 0, "brokerEpoch": -1}

    def test_marker_is_not_written_before_every_crashed_log_was_recovered(self, tmp_path: Path) -> None:
        with open_directory(tmp_path, **SMALL) as directory:
            directory.log("a", 0)
            directory.log("b", 0)
        (tmp_path / CLEAN_SHUTDOWN).unlink()
        with open_directory(tmp_path, **SMALL) as directory:
            directory.log("a", 0)
        assert not (tmp_path / CLEAN_SHUTDOWN).exists()
        with open_directory(tmp_path, **SMALL) as directory:
            directory.open_all()
        assert (tmp_path / CLEAN_SHUTDOWN).exists()

    def test_marker_is_written_again_if_no_log_was_opened(self, tmp_path: Path) -> None:
        with open_directory(tmp_path, **SMALL) as directory:
            directory.log("a", 0).append(batch_of(1))
        open_directory(tmp_path, **SMALL).close()
        with open_directory(tmp_path, **SMALL) as directory:
            assert directory.log("a", 0).recovery.clean

    @pytest.mark.parametrize("closed_by", ["directory", "hand"])
    def test_marker_is_not_written_when_closing_a_log_failed(self, tmp_path: Path, closed_by: str) -> None:
        disk = FailingSync()
        directory = LogDirectory.open(tmp_path, LogConfig(**SMALL), disk=disk, background=False)
        log = directory.log("orders", 0)
        log.append(batch_of(1))
        disk.fails = True
        if closed_by == "hand":
            with pytest.raises(StorageError, match="can't close the log"):
                log.close()
            disk.fails = False
            directory.close()
        else:
            with pytest.raises(StorageError):
                directory.close()
        assert not (tmp_path / CLEAN_SHUTDOWN).exists()
        disk.fails = False
        with open_directory(tmp_path, **SMALL) as again:
            assert not again.log("orders", 0).recovery.clean
            assert offsets_of(again.log("orders", 0)) == [0]


class FailingSync(Disk):
    fails = False

    def sync(self, fd: int) -> None:
        if self.fails:
            raise OSError(errno.EIO, "Input/output error")
        super().sync(fd)


def test_closed_directory_opens_no_log(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    directory.close()
    directory.close()
    with pytest.raises(LogClosedError, match="the data directory is closed"):
        directory.log("orders", 0)


def test_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="can't be used as a data directory"):
        open_directory(tmp_path / "file")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "orders-0").write_text("")
    with open_directory(tmp_path / "data") as directory:
        assert directory.partitions() == []
        with pytest.raises(StorageError, match="orders-0: can't open the log"):
            directory.log("orders", 0)


class TestKafkasOwnFiles:
    def test_kafkas_files_are_not_touched(self, tmp_path: Path) -> None:
        files = {
            "meta.properties": b"version=1\nnode.id=1\n",
            "bootstrap.checkpoint": b"\0\1\2",
            "cleaner-offset-checkpoint": b"0\n0\n",
            "notes.txt": b"mine",
        }
        for name, content in files.items():
            (tmp_path / name).write_bytes(content)
        for name in ("__cluster_metadata-0", "orders-0.0123456789abcdef0123456789abcdef-future", "not-a-partition"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "00000000000000000000.log").write_bytes(b"not ours")
        with open_directory(tmp_path, **SMALL) as directory:
            directory.log("orders", 0)
            assert directory.partitions() == [TopicPartition("orders", 0)]
            assert [log.partition.topic for log in directory.open_all()] == ["orders"]
            with pytest.raises(InvalidTopicError, match="internal to Apache Kafka"):
                directory.log("__cluster_metadata", 0)
        for name, content in files.items():
            assert (tmp_path / name).read_bytes() == content
        logs = sorted(path.parent.name for path in tmp_path.glob("*/00000000000000000000.log"))
        assert len(logs) == 4

    def test_only_directories_of_deleted_partitions_are_removed(self, tmp_path: Path) -> None:
        doomed = tmp_path / "orders-0.0123456789abcdef0123456789abcdef-delete"
        others = [tmp_path / "do-not-delete", tmp_path / "orders-0.0123-delete", tmp_path / "-delete"]
        for path in (doomed, *others):
            path.mkdir()
            (path / "file").write_bytes(b"")
        open_directory(tmp_path).close()
        assert not doomed.exists()
        assert all((path / "file").exists() for path in others)

    def test_deleted_partition_that_can_not_be_removed_does_not_prevent_opening(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        doomed = tmp_path / "orders-0.0123456789abcdef0123456789abcdef-delete"
        (doomed / "sub").mkdir(parents=True)
        with caplog.at_level(logging.WARNING), open_directory(tmp_path, **SMALL) as directory:
            directory.log("orders", 0).append(batch_of(1))
        assert "can't remove" in caplog.text

    def test_high_watermarks_are_read_and_kept(self, tmp_path: Path) -> None:
        shutil.copy(GOLDEN / "data-directory" / "replication-offset-checkpoint", tmp_path)
        key = TopicPartition("java-none", 0)
        with open_directory(tmp_path) as directory:
            assert directory.high_watermarks.get(key) == 12
            directory.high_watermarks.update({key: 13})
        assert "java-none 0 13\n" in (tmp_path / "replication-offset-checkpoint").read_text()


class TestDelete:
    def test_deleted_partition_loses_its_files_and_checkpoint_entries(self, tmp_path: Path) -> None:
        with open_directory(tmp_path, **SMALL) as directory:
            for topic in ("a", "b"):
                log = directory.log(topic, 0)
                log.append(batch_of(1, 2))
                log.advance_start(1)
                log.save_recovery_point()
                directory.high_watermarks.update({log.partition: 1})
            log = directory.log("a", 0)
            directory.delete("a", 0)
            assert log.is_closed
            assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["b-0"]
            for name in ("recovery-point-offset", "log-start-offset", "replication-offset"):
                content = (tmp_path / f"{name}-checkpoint").read_text()
                assert ("a 0" in content, "b 0" in content) == (False, True)
            fresh = directory.log("a", 0)
            assert (fresh.log_start_offset, fresh.log_end_offset) == (0, 0)

    def test_deleted_partition_does_not_prevent_the_clean_shutdown_marker(self, tmp_path: Path) -> None:
        with open_directory(tmp_path, **SMALL) as directory:
            directory.log("a", 0)
            directory.log("b", 0)
            directory.delete("a", 0)
        assert (tmp_path / CLEAN_SHUTDOWN).exists()

    def test_deleting_many_partitions_syncs_as_often_as_deleting_one(self, tmp_path: Path) -> None:
        class CountingDisk(Disk):
            waits = 0

            def sync(self, fd: int) -> None:
                self.waits += 1

            def sync_directory(self, path: Path) -> None:
                self.waits += 1

        waits = []
        for count in (1, 20):
            disk = CountingDisk()
            data = tmp_path / str(count)
            with LogDirectory.open(data, LogConfig(**SMALL), disk=disk, background=False) as directory:
                keys = [TopicPartition("a", index) for index in range(count)]
                for key in keys:
                    directory.log(*key).append(batch_of(1))
                    directory.log(*key).advance_start(1)
                disk.waits = 0
                directory.delete_all([*keys, TopicPartition("nope", 0)])
                waits.append(disk.waits)
                assert directory.partitions() == []
            assert [path.name for path in data.iterdir() if path.is_dir()] == []
        assert waits[0] == waits[1]

    def test_failed_deletion_prevents_the_clean_shutdown_marker(self, tmp_path: Path) -> None:
        class StuckDisk(Disk):
            def rename(self, source: Path, target: Path) -> None:
                if target.name.endswith("-delete"):
                    raise OSError(errno.EIO, "Input/output error")
                super().rename(source, target)

        open_directory(tmp_path, **SMALL).close()
        with LogDirectory.open(tmp_path, LogConfig(**SMALL), disk=StuckDisk(), background=False) as directory:
            directory.log("a", 0).append(batch_of(1))
            with pytest.raises(StorageError, match="can't delete partitions"):
                directory.delete("a", 0)
            assert directory.log("a", 0).log_end_offset == 1  # no record of it is lost
            directory.log("a", 0).append(batch_of(2))
            with pytest.raises(StorageError):
                directory.delete("a", 0)
        assert not (tmp_path / CLEAN_SHUTDOWN).exists()


class TestOneLogAlone:
    """Log.open(), which opens a single log."""

    def test_log_opened_by_its_path_locks_the_directory(self, tmp_path: Path) -> None:
        with Log.open(tmp_path / "orders-0", {"segment.bytes": 5000}) as log:
            log.append(batch_of(START_MS))
            assert (log.partition, log.config.segment_bytes) == (TopicPartition("orders", 0), 5000)
            with pytest.raises(StorageError):
                LogDirectory.open(tmp_path)
            with pytest.raises(LogAlreadyOpenError, match="is already open in this process"):
                Log.open(tmp_path / "orders-0")
        with LogDirectory.open(tmp_path, background=False) as directory:
            assert directory.log("orders", 0).recovery.clean

    def test_two_logs_share_their_directory_until_the_last_is_closed(self, tmp_path: Path) -> None:
        first, second = Log.open(tmp_path / "orders-0"), Log.open(str(tmp_path / "orders-1"))
        first.append(batch_of(1))
        first.close()
        second.append(batch_of(2))
        assert not (tmp_path / CLEAN_SHUTDOWN).exists()
        second.close()
        assert (tmp_path / CLEAN_SHUTDOWN).exists()

    def test_name_that_is_not_a_partitions_is_refused_with_an_example(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidTopicError, match="use <topic>-<partition>, like orders-0"):
            Log.open(tmp_path / "orders")

    def test_setting_that_is_not_valid_leaves_nothing_locked(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError):
            Log.open(tmp_path / "orders-0", {"nonsense": 1})
        (tmp_path / "orders-0").write_text("a file")
        with pytest.raises(StorageError):
            Log.open(tmp_path / "orders-0")
        LogDirectory.open(tmp_path, background=False).close()


def test_a_deleted_log_keeps_no_file_open(tmp_path: Path) -> None:
    """Otherwise its bytes would still take up disk space."""
    with open_directory(tmp_path, segment_bytes=300) as directory:
        log = directory.log("orders", 0)
        for _ in range(5):
            log.append(batch_of(1, size=200))
            list(log.records())
        directory.delete("orders", 0)
        directory.turn()
        held = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_link(fd)]
        assert not [path for path in held if str(tmp_path) in path and "orders" in path]


def _is_link(fd: str) -> bool:
    return Path(f"/proc/self/fd/{fd}").is_symlink()

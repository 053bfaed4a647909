"""Creating, advancing and deleting many logs of a data directory at the cost of few syncs."""

from __future__ import annotations

import random
import threading
import uuid
from pathlib import Path

import pytest

from stratalog.clock import ManualClock
from stratalog.errors import LogClosedError, OffsetOutOfRangeError, StorageError
from stratalog.storage import LogConfig, LogDirectory, TopicPartition
from stratalog.storage.disk import Disk
from stratalog.storage.names import LOG_START_OFFSET_CHECKPOINT
from tests.storage.faults.faulty_disk import FaultyDisk
from tests.storage.hand_made import START_MS, batch_of, open_directory

SMALL = LogConfig(segment_index_bytes=1024)


def open_on(path: Path, disk: Disk) -> LogDirectory:
    return LogDirectory.open(path, SMALL, disk=disk, clock=ManualClock(START_MS), background=False)


def partitions(count: int) -> list[TopicPartition]:
    return [TopicPartition("orders", index) for index in range(count)]


def fill(directory: LogDirectory, count: int, records: int = 5) -> None:
    for key in partitions(count):
        for _ in range(records):
            directory.log(*key).append(batch_of(START_MS))


class CheckpointDisk(Disk):
    """Counts how often the log start offsets are saved, and can make that fail."""

    def __init__(self) -> None:
        self.saves = 0
        self.refuses = False

    def replace(self, path: Path, content: bytes, *, durable: bool = True) -> None:
        if path.name == LOG_START_OFFSET_CHECKPOINT:
            self.saves += 1
            if self.refuses:
                raise OSError(5, "Input/output error")
        super().replace(path, content, durable=durable)


class TestAdvanceStarts:
    def test_starts_of_many_logs_are_saved_once(self, tmp_path: Path) -> None:
        disk = CheckpointDisk()
        with open_on(tmp_path, disk) as directory:
            fill(directory, 8)
            offsets = {key: index % 5 + 1 for index, key in enumerate(partitions(8))}
            assert directory.advance_starts(offsets) == {}
            assert disk.saves == 1
            assert {key: directory.log(*key).log_start_offset for key in partitions(8)} == offsets
        with open_on(tmp_path, disk) as directory:
            assert {key: directory.log(*key).log_start_offset for key in partitions(8)} == offsets

    def test_partition_that_fails_to_advance_does_not_affect_the_others(self, tmp_path: Path) -> None:
        with open_directory(tmp_path, segment_index_bytes=1024) as directory:
            fill(directory, 2)
            first, second = partitions(2)
            unknown = TopicPartition("nope", 0)
            failures = directory.advance_starts({first: 6, second: 2, unknown: 1})
            assert {key: type(error) for key, error in failures.items()} == {
                first: OffsetOutOfRangeError,
                unknown: LogClosedError,
            }
            assert [directory.log(*key).log_start_offset for key in (first, second)] == [0, 2]

    def test_log_does_not_start_at_an_offset_that_was_not_saved(self, tmp_path: Path) -> None:
        disk = CheckpointDisk()
        with open_on(tmp_path, disk) as directory:
            fill(directory, 2)
            disk.refuses = True
            failures = directory.advance_starts(dict.fromkeys(partitions(2), 3))
            assert {type(error) for error in failures.values()} == {StorageError}
            assert [directory.log(*key).log_start_offset for key in partitions(2)] == [0, 0]
            disk.refuses = False
            assert directory.advance_starts(dict.fromkeys(partitions(2), 3)) == {}

    def test_saved_start_is_never_lowered_by_a_later_call(self, tmp_path: Path) -> None:
        with open_directory(tmp_path, segment_index_bytes=1024) as directory:
            fill(directory, 1)
            [key] = partitions(1)
            assert directory.advance_starts({key: 4}) == {}
            assert directory.advance_starts({key: 2}) == {}
            assert directory.log(*key).log_start_offset == 4
        with open_directory(tmp_path, segment_index_bytes=1024) as directory:
            assert directory.log(*key).log_start_offset == 4

    def test_starts_survive_a_power_cut(self, tmp_path: Path) -> None:
        data = tmp_path / "data"
        disk = FaultyDisk(data)
        with open_on(data, disk) as directory:
            disk.sync_directory(data)
            fill(directory, 3)
            assert directory.advance_starts(dict.fromkeys(partitions(3), 4)) == {}
            images = [tmp_path / f"image-{seed}" for seed in range(10)]
            for seed, image in enumerate(images):
                disk.crash_image(random.Random(seed), image)
        disk.forget()
        for image in images:
            with open_on(image, Disk()) as directory:
                logs = [directory.log(*key) for key in partitions(3)]
                assert [(log.log_start_offset, log.log_end_offset) for log in logs] == [(4, 5)] * 3

    def test_leader_epochs_begin_at_the_start_after_a_restart_too(self, tmp_path: Path) -> None:
        with open_directory(tmp_path, segment_index_bytes=1024) as directory:
            log = directory.log("orders", 0)
            for epoch in (3, 3, 4, 4):
                log.append(batch_of(START_MS), leader_epoch=epoch)
            log.advance_start(1)
            assert log.leader_epochs.entries == [(3, 1), (4, 2)]
        with open_directory(tmp_path, segment_index_bytes=1024) as directory:
            assert directory.log("orders", 0).leader_epochs.entries == [(3, 1), (4, 2)]


class TestDeletedInTheBackground:
    class SlowDisk(Disk):
        """Removes files only when the test allows it."""

        def __init__(self) -> None:
            self.may_remove = threading.Event()
            self.removing = threading.Event()

        def remove(self, path: Path) -> None:
            if path.parent.name.endswith("-delete"):
                self.removing.set()
                assert self.may_remove.wait(30)
            super().remove(path)

    def test_deletion_does_not_wait_for_the_removal_of_files(self, tmp_path: Path) -> None:
        disk = self.SlowDisk()
        with LogDirectory.open(tmp_path, SMALL, disk=disk, clock=ManualClock(START_MS)) as directory:
            fill(directory, 3)
            directory.delete_all(partitions(3))
            assert disk.removing.wait(30)
            assert directory.partitions() == []
            assert len(list(tmp_path.glob("*-delete"))) == 3
            fill(directory, 1, records=2)  # the names can be used again at once
            assert directory.log("orders", 0).log_end_offset == 2
            disk.may_remove.set()

    def test_directories_left_by_a_stop_are_removed_by_the_next_start(self, tmp_path: Path) -> None:
        disk = self.SlowDisk()
        directory = LogDirectory.open(tmp_path, SMALL, disk=disk, clock=ManualClock(START_MS))
        fill(directory, 3)
        directory.delete_all(partitions(3))
        assert disk.removing.wait(30)
        closing = threading.Thread(target=directory.close)
        closing.start()
        disk.may_remove.set()
        closing.join(30)
        assert not closing.is_alive()
        with open_on(tmp_path, Disk()):
            assert list(tmp_path.glob("*-delete")) == []


def test_names_of_many_new_partitions_are_durable(tmp_path: Path) -> None:
    data = tmp_path / "data"
    disk = FaultyDisk(data)
    with open_on(data, disk) as directory:
        assert directory.make_all(dict.fromkeys(partitions(5), uuid.uuid4())) == {}
        disk.durable_image(tmp_path / "image")
    disk.forget()
    with open_on(tmp_path / "image", Disk()) as directory:
        assert directory.partitions() == partitions(5)


def test_partition_that_can_not_be_created_is_reported_and_the_others_are_created(tmp_path: Path) -> None:
    (tmp_path / "orders-1").write_text("a file is in the way")
    with open_directory(tmp_path, segment_index_bytes=1024) as directory:
        failures = directory.make_all(dict.fromkeys(partitions(3), uuid.uuid4()))
        assert list(failures) == [TopicPartition("orders", 1)]
        with pytest.raises(StorageError, match=r"orders-1: can't create the partition: .*File exists"):
            raise failures[TopicPartition("orders", 1)]
        assert [key.partition for key in directory.partitions()] == [0, 2]

"""When records become durable. (tests/storage/faults tests that synced bytes survive a power cut.)"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stratalog.clock import ManualClock
from stratalog.storage import DirectoryConfig
from stratalog.storage.disk import Disk
from stratalog.storage.names import RECOVERY_POINT_CHECKPOINT
from tests.storage.hand_made import START_MS, batch_of, left_by_kill, open_directory, open_with
from tests.storage.log_builder import PARTITION, LogBuilder

SMALL: dict[str, Any] = {"segment_index_bytes": 1024, "index_interval_bytes": 100}


class CountingDisk(Disk):
    def __init__(self) -> None:
        self.syncs = 0

    def sync(self, fd: int) -> None:
        self.syncs += 1
        super().sync(fd)


def test_append_does_not_flush(tmp_path: Path) -> None:
    with LogBuilder(tmp_path, **SMALL) as built:
        built.append(3)
        assert built.log.recovery_point == 0
        built.flush()
        assert built.log.recovery_point == 3
        built.append(2)
        assert built.log.recovery_point == 3


def test_roll_makes_the_sealed_segment_durable(tmp_path: Path) -> None:
    disk = CountingDisk()
    with LogBuilder(tmp_path, disk=disk, **SMALL) as built:
        built.append(3)
        before = disk.syncs
        built.roll()
        assert disk.syncs > before
        assert built.log.recovery_point == 3
        built.append(1)
        assert built.log.recovery_point == 3


def test_flush_messages_flushes_when_that_many_records_are_not_flushed(tmp_path: Path) -> None:
    with LogBuilder(tmp_path, flush_messages=5, **SMALL) as built:
        points = []
        for _ in range(5):
            built.append(2)
            points.append(built.log.recovery_point)
        assert points == [0, 0, 6, 6, 6]
        built.append(2)
        assert built.log.recovery_point == 12


def test_flush_messages_of_one_flushes_every_append(tmp_path: Path) -> None:
    disk = CountingDisk()
    with LogBuilder(tmp_path, disk=disk, flush_messages=1, **SMALL) as built:
        built.append(1)  # the first batch of an epoch also saves the epoch
        before = disk.syncs
        built.append(1).append(4)
        assert (built.log.recovery_point, disk.syncs - before) == (6, 2)


def test_flush_ms_counts_from_the_last_flush(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    config = DirectoryConfig(log_flush_scheduler_interval_ms=100)
    with open_with(tmp_path, config, clock, flush_ms=1000, **SMALL) as directory:
        log = directory.log(*PARTITION)
        log.append(batch_of(1))
        points = []
        for _ in range(12):
            clock.advance(100)
            directory.turn()
            points.append(log.recovery_point)
        assert points == [0] * 9 + [1] * 3
        log.append(batch_of(1))
        clock.advance(700)
        directory.turn()
        assert log.recovery_point == 1
        clock.advance(100)
        directory.turn()
        assert log.recovery_point == 2


def test_flush_ms_does_not_sync_without_new_records(tmp_path: Path) -> None:
    disk = CountingDisk()
    with LogBuilder(tmp_path, disk=disk, flush_ms=0, **SMALL) as built:
        built.append(1).log.flush_if_due()
        before = disk.syncs
        built.clock.advance(10**6)
        built.log.flush_if_due()
        assert (disk.syncs, built.log.recovery_point) == (before, 1)


def test_recovery_points_are_saved_by_the_housekeeper_and_at_the_end(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    config = DirectoryConfig(log_flush_offset_checkpoint_interval_ms=60_000)
    checkpoint = tmp_path / RECOVERY_POINT_CHECKPOINT
    with open_with(tmp_path, config, clock, **SMALL) as directory:
        log = directory.log(*PARTITION)
        log.append(batch_of(1, 2, 3))
        log.flush()
        clock.advance(59_999)
        directory.turn()
        assert not checkpoint.exists()
        clock.advance(1)
        directory.turn()
        assert checkpoint.read_text() == "0\n1\norders 0 3\n"
        log.append(batch_of(4))
        clock.advance(60_000)
        directory.turn()
        assert checkpoint.read_text() == "0\n1\norders 0 3\n"
    assert checkpoint.read_text() == "0\n1\norders 0 4\n"


def test_only_batches_after_the_saved_recovery_point_are_scanned(tmp_path: Path) -> None:
    """The active segment is scanned from the index entry before the recovery point. Sealed segments are not scanned."""
    with LogBuilder(tmp_path / "data", **SMALL) as built:
        built.append_until(20_000).roll().append_until(40_000)
        built.flush().log.save_recovery_point()
        flushed = built.log.size
        built.append(3).append(3)
        copy = left_by_kill(tmp_path / "data", tmp_path / "copy")
        with open_directory(copy, **SMALL) as directory:
            log = directory.log(*PARTITION)
            assert list(log.records()) == built.expected
            assert log.recovery.segments_scanned == 1
            new = built.log.size - flushed
            assert new <= log.recovery.bytes_scanned <= new + 1000
            assert log.recovery.problems == []


def test_without_a_saved_recovery_point_everything_is_scanned(tmp_path: Path) -> None:
    with LogBuilder(tmp_path / "data", **SMALL) as built:
        built.append_until(5_000).roll().append_until(10_000)
        copy = left_by_kill(tmp_path / "data", tmp_path / "copy")
        (copy / RECOVERY_POINT_CHECKPOINT).unlink(missing_ok=True)
        with open_directory(copy, **SMALL) as directory:
            log = directory.log(*PARTITION)
            assert (log.recovery.segments_scanned, log.recovery.bytes_scanned) == (2, built.log.size)
            assert list(log.records()) == built.expected


def test_clean_reopening_scans_nothing(tmp_path: Path) -> None:
    with LogBuilder(tmp_path, **SMALL) as built:
        built.append_until(5_000).roll().append_until(10_000).reopen()
        assert (built.log.recovery.clean, built.log.recovery.segments_scanned) == (True, 0)
        assert built.log.recovery.bytes_scanned == 0
        assert built.log.recovery_point == built.log.log_end_offset
        assert list(built.log.records()) == built.expected


def test_indexes_after_a_crash_equal_those_without_a_crash(tmp_path: Path) -> None:
    with LogBuilder(tmp_path / "data", **SMALL) as built:
        built.append_until(3_000).flush().log.save_recovery_point()
        built.append_until(5_000)
        copy = left_by_kill(tmp_path / "data", tmp_path / "copy")
        with open_directory(copy, **SMALL) as directory:
            directory.log(*PARTITION)
        built.close()
        for suffix in (".index", ".timeindex"):
            name = f"{0:020d}{suffix}"
            assert (copy / str(PARTITION) / name).read_bytes() == (built.log_path / name).read_bytes()

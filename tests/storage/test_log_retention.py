"""Retention in a log: which segments are deleted, when their files are removed, and the log after reopening."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from stratalog.errors import OffsetOutOfRangeError
from stratalog.records.builder import build_batch, build_control_batch
from stratalog.records.format import ControlType
from stratalog.storage import Origin
from tests.storage.hand_made import batch_of, left_by_kill, open_directory
from tests.storage.log_builder import PARTITION, START_MS, LogBuilder

SMALL: dict[str, Any] = {"segment_index_bytes": 1024, "index_interval_bytes": 100}
HOUR = 3_600_000


def three_segments(path: Path, **settings: Any) -> LogBuilder:
    """Offsets 0..3, 4..7, 8..11. The records of each segment are an hour later than those of the previous one."""
    built = LogBuilder(path, **{**SMALL, **settings})
    for hour in range(3):
        if hour:
            built.roll()
        built.append(2, timestamp=START_MS + hour * HOUR).append(2, timestamp=START_MS + hour * HOUR)
    return built


@pytest.mark.parametrize(
    ("later", "start"), [(0, 0), (2 * HOUR, 0), (2 * HOUR + 1, 4), (3 * HOUR + 1, 8), (4 * HOUR, 8), (5 * HOUR, 12)]
)
def test_segments_are_deleted_by_age_oldest_first(tmp_path: Path, later: int, start: int) -> None:
    with three_segments(tmp_path, retention_ms=2 * HOUR) as built:
        built.clock.advance(later)
        verdicts = built.log.apply_retention()
        assert [verdict.base_offset for verdict in verdicts] == list(range(0, start, 4))
        assert (built.log.log_start_offset, built.log.log_end_offset) == (start, 12)
        assert list(built.log.records()) == built.expected
        if start:
            with pytest.raises(OffsetOutOfRangeError, match=f"which has {start} to 12"):
                built.log.read(start - 1, 100)
        built.append(2)
        assert list(built.log.records()) == built.expected


def test_segments_are_deleted_by_size(tmp_path: Path) -> None:
    with three_segments(tmp_path, retention_ms=-1, retention_bytes=1) as built:
        sizes = [segment.size for segment in built.log.segments]
        verdicts = built.log.apply_retention()
        assert [verdict.base_offset for verdict in verdicts] == [0, 4]
        assert built.log.size == sizes[2]
        assert list(built.log.records()) == built.expected


def test_segment_with_offsets_after_the_high_watermark_is_kept(tmp_path: Path) -> None:
    with three_segments(tmp_path, retention_ms=0) as built:
        built.clock.advance(100 * HOUR)
        built.log.high_watermark = 7
        assert [verdict.base_offset for verdict in built.log.apply_retention()] == [0]
        assert built.log.log_start_offset == 4


def test_records_of_an_open_transaction_stay_until_it_ends(tmp_path: Path) -> None:
    producer: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    with three_segments(tmp_path, retention_ms=0) as built:
        built.log.append(build_batch([(b"k", b"v")], is_transactional=True, **producer))
        built.log.roll()
        built.clock.advance(100 * HOUR)
        built.log.apply_retention()
        assert built.log.log_start_offset == 8
        built.log.append(build_control_batch(ControlType.COMMIT, 7, 0, 0, START_MS), origin=Origin.COORDINATOR)
        built.log.apply_retention()
        assert built.log.log_start_offset == 14


def test_age_of_records_without_timestamps_is_the_files(tmp_path: Path) -> None:
    with LogBuilder(tmp_path, retention_ms=HOUR, **SMALL) as built:
        built.append(2, timestamp=-1).roll().append(2, timestamp=-1)
        for path, age in zip(built.files(".log"), (2 * HOUR, 0), strict=True):
            os.utime(path, ns=((START_MS - age) * 10**6,) * 2)
        assert [verdict.base_offset for verdict in built.log.apply_retention()] == [0]


def test_files_are_renamed_at_once_and_removed_after_the_delay(tmp_path: Path) -> None:
    with three_segments(tmp_path, retention_ms=HOUR, file_delete_delay_ms=5000) as built:
        built.clock.advance(HOUR + 1)
        built.apply_retention()
        marked = {path.name for path in built.files(".deleted")}
        assert marked == {f"{0:020d}.{suffix}.deleted" for suffix in ("log", "index", "timeindex")}
        assert not (built.log_path / f"{0:020d}.log").exists()
        built.clock.advance(4999)
        built.directory.turn()
        assert {path.name for path in built.files(".deleted")} == marked
        built.clock.advance(1)
        built.directory.turn()
        assert built.files(".deleted") == []


def test_closing_removes_files_before_their_delay_is_over(tmp_path: Path) -> None:
    built = three_segments(tmp_path, retention_ms=HOUR)
    built.clock.advance(HOUR + 1)
    built.apply_retention().close()
    assert built.files(".deleted") == []


def test_files_left_by_a_crash_are_removed_by_the_next_opening(tmp_path: Path) -> None:
    with three_segments(tmp_path / "data", retention_ms=HOUR) as built:
        built.clock.advance(HOUR + 1)
        built.apply_retention()
        copy = left_by_kill(tmp_path / "data", tmp_path / "copy")
        assert list((copy / str(PARTITION)).glob("*.deleted"))
        with open_directory(copy, clock=built.clock, **SMALL) as directory:
            log = directory.log(*PARTITION)
            assert not list(log.path.glob("*.deleted"))
            assert (log.log_start_offset, log.recovery.problems) == (4, [])
            assert list(log.records()) == built.expected


def test_log_start_is_kept_when_deleted_files_come_back(tmp_path: Path) -> None:
    """A power cut may undo the renames. The saved log start offset hides those segments."""
    with three_segments(tmp_path / "data", retention_ms=HOUR) as built:
        built.clock.advance(HOUR + 1)
        built.apply_retention()
        copy = left_by_kill(tmp_path / "data", tmp_path / "copy")
        for path in (copy / str(PARTITION)).glob("*.deleted"):
            path.rename(path.with_suffix(""))
        with open_directory(copy, clock=built.clock, retention_ms=HOUR, **SMALL) as directory:
            log = directory.log(*PARTITION)
            assert log.log_start_offset == 4
            assert list(log.records()) == built.expected
            assert [verdict.base_offset for verdict in log.apply_retention()] == [0]


def test_log_without_remaining_segments_continues_at_its_end(tmp_path: Path) -> None:
    with three_segments(tmp_path, retention_ms=HOUR) as built:
        built.clock.advance(100 * HOUR)
        built.apply_retention()
        assert (built.log.log_start_offset, built.log.log_end_offset, built.log.size) == (12, 12, 0)
        assert built.log.apply_retention() == []
        built.reopen()
        assert (built.log.log_start_offset, built.log.log_end_offset) == (12, 12)
        assert built.append(2).last is not None
        assert list(built.log.records()) == built.expected
        assert [segment.base_offset for segment in built.log.segments] == [12]


def test_snapshots_of_deleted_segments_are_removed(tmp_path: Path) -> None:
    with three_segments(tmp_path, retention_ms=HOUR) as built:
        assert [path.name[:20] for path in built.files(".snapshot")] == [f"{4:020d}", f"{8:020d}"]
        built.clock.advance(2 * HOUR + 1)
        built.apply_retention()
        assert [path.name[:20] for path in built.files(".snapshot")] == [f"{8:020d}"]


def test_idempotent_producer_is_known_after_its_batches_were_deleted(tmp_path: Path) -> None:
    fields = {"producer_id": 7, "producer_epoch": 0}
    with LogBuilder(tmp_path, retention_ms=HOUR, **SMALL) as built:
        built.log.append(batch_of(START_MS, base_sequence=0, **fields))
        built.log.append(batch_of(START_MS, base_sequence=1, **fields))
        built.clock.advance(2 * HOUR)
        built.apply_retention().reopen()
        assert built.log.log_start_offset == 2
        assert built.log.append(batch_of(START_MS, base_sequence=1, **fields)).duplicate
        assert built.log.append(batch_of(START_MS, base_sequence=2, **fields)).base_offset == 2


def test_idempotent_producer_is_known_after_deletion_and_a_lost_snapshot(tmp_path: Path) -> None:
    """The snapshot of a roll is not synced, so a power cut may remove it. Retention must not rely on it."""
    fields = {"producer_id": 7, "producer_epoch": 0}
    with LogBuilder(tmp_path / "data", retention_ms=HOUR, **SMALL) as built:
        built.log.append(batch_of(START_MS, base_sequence=0, **fields))
        built.roll()
        for path in built.files(".snapshot"):
            path.unlink()
        built.clock.advance(2 * HOUR)
        built.apply_retention()
        copy = left_by_kill(tmp_path / "data", tmp_path / "copy")
        with open_directory(copy, clock=built.clock, **SMALL) as directory:
            assert directory.log(*PARTITION).append(batch_of(START_MS, base_sequence=0, **fields)).duplicate


def test_idle_producer_is_forgotten_after_its_expiration(tmp_path: Path) -> None:
    """Otherwise every producer that ever wrote would be kept in memory and in each snapshot."""
    fields = {"producer_id": 7, "producer_epoch": 0}
    with LogBuilder(tmp_path, retention_ms=-1, producer_id_expiration_ms=HOUR, **SMALL) as built:
        built.log.append(batch_of(START_MS, base_sequence=0, **fields))
        built.apply_retention()
        assert len(built.log.producers) == 1
        built.clock.advance(2 * HOUR)
        built.apply_retention()
        assert len(built.log.producers) == 0

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stratalog.errors import OffsetOutOfRangeError
from stratalog.records.builder import build_batch
from stratalog.storage import Appended
from stratalog.storage.names import RECOVERY_POINT_CHECKPOINT
from stratalog.storage.sealed_segment import SealedSegment
from tests.storage.hand_made import batch_of, left_by_kill, offsets_of, open_directory, timed, write_segment
from tests.storage.log_builder import PARTITION, START_MS, LogBuilder

SMALL: dict[str, Any] = {"segment_index_bytes": 4096, "index_interval_bytes": 100, "retention_ms": -1}


def small_log(path: Path) -> LogBuilder:
    """Batches of 1, 2, 3 records: 0, 1..2, 3..5 | 6, 7..8, 9..11 | 12, 13..14, 15..17"""
    built = LogBuilder(path, **SMALL)
    for _ in range(3):
        built.append(1).append(2).append(3).roll()
    return built


def batch_start(offset: int) -> int:
    return offset // 6 * 6 + (0, 1, 1, 3, 3, 3)[offset % 6]


def check(built: LogBuilder, end: int) -> None:
    log = built.log
    assert log.log_end_offset == built.next_offset == end
    assert list(log.records()) == built.expected
    assert built.log.size == sum(path.stat().st_size for path in built.files(".log"))
    for offset in range(log.log_start_offset, end):
        assert next(log.records(offset, offset + 1)) == built.history[offset]
        assert log.find_timestamp(START_MS + offset * 10) == (offset, START_MS + offset * 10)
    assert log.find_timestamp(START_MS + end * 10) is None


@pytest.mark.parametrize("offset", range(19))
def test_truncation_at_any_offset_keeps_earlier_batches_and_allows_appends(tmp_path: Path, offset: int) -> None:
    with small_log(tmp_path / "data") as built:
        expected = batch_start(offset) if offset < 18 else 18
        assert built.log.truncate(offset) == expected
        del built._records[expected:]
        built.generation += 1
        check(built, expected)
        assert built.log.recovery_point <= expected
        assert [segment.base_offset for segment in built.log.segments if segment.base_offset > expected] == []
        built.append(2).append(1)
        check(built, expected + 3)
        crashed = left_by_kill(tmp_path / "data", tmp_path / "copy")
        built.reopen()
        check(built, expected + 3)
        with open_directory(crashed, **SMALL) as directory:
            assert list(directory.log(*PARTITION).records()) == built.expected


@pytest.mark.parametrize("offset", [1, 5, 7, 12])
def test_truncation_survives_an_immediate_crash(tmp_path: Path, offset: int) -> None:
    with small_log(tmp_path / "data") as built:
        built.truncate(offset)
        crashed = left_by_kill(tmp_path / "data", tmp_path / "copy")
        with open_directory(crashed, **SMALL) as directory:
            log = directory.log(*PARTITION)
            assert list(log.records()) == built.expected
            assert (log.recovery.problems, log.recovery.cut) == ([], None)


def test_truncation_at_or_after_the_end_does_nothing(tmp_path: Path) -> None:
    with small_log(tmp_path) as built:
        for offset in (18, 19, 10**12):
            assert built.log.truncate(offset) == 18
        check(built, 18)


def test_truncation_before_the_start_is_refused(tmp_path: Path) -> None:
    with small_log(tmp_path) as built:
        built.advance_start(4)
        with pytest.raises(OffsetOutOfRangeError, match="offset 3 is before the log start offset, 4"):
            built.log.truncate(3)
        check(built, 18)


def test_recovery_point_is_lowered_durably_before_the_truncation(tmp_path: Path) -> None:
    with small_log(tmp_path) as built:
        built.flush().log.save_recovery_point()
        built.truncate(8)
        assert (tmp_path / RECOVERY_POINT_CHECKPOINT).read_text() == "0\n1\norders 0 7\n"
        assert built.log.recovery_point == 7
        built.append(2).flush()
        assert built.log.recovery_point == 9


def test_truncated_sealed_segment_becomes_the_active_one(tmp_path: Path) -> None:
    with small_log(tmp_path) as built:
        assert isinstance(built.log.segments[0], SealedSegment)
        built.truncate(3)
        assert [type(segment).__name__ for segment in built.log.segments] == ["ActiveSegment"]
        assert not [path for path in built.files("") if path.name.startswith("0000000000000000000600")]
        assert {path.name[:20] for path in built.files(".log")} == {f"{0:020d}"}


def test_sealed_segment_without_indexes_can_be_truncated(tmp_path: Path) -> None:
    built = small_log(tmp_path).close()
    for path in built.files("index"):
        path.unlink()
    built._open()
    with built:
        built.truncate(10)
        check(built, 9)


@pytest.mark.parametrize("start", [2, 4, 5, 8, 10])
def test_truncation_in_the_batch_of_the_log_start_leaves_an_empty_log(tmp_path: Path, start: int) -> None:
    with small_log(tmp_path) as built:
        built.advance_start(start)
        end = built.log.truncate(start)
        assert (built.log.log_start_offset, built.log.log_end_offset) == (end, end) == (batch_start(start),) * 2
        assert list(built.log.records()) == []
        assert built.log.append(batch_of(1, 2)) == Appended(end, end + 1, 2)
        assert offsets_of(built.log) == [end, end + 1]
        built.reopen()
        assert offsets_of(built.log) == [end, end + 1]


def test_leader_epochs_are_truncated_with_the_log(tmp_path: Path) -> None:
    with open_directory(tmp_path, **SMALL) as directory:
        log = directory.log("orders", 0)
        for epoch in range(5):
            log.append(batch_of(1, 2), leader_epoch=epoch)
        log.truncate(5)
        assert log.leader_epochs.entries == [(0, 0), (1, 2)]
        log.append(batch_of(1), leader_epoch=7)
        assert log.leader_epochs.entries == [(0, 0), (1, 2), (7, 4)]
    with open_directory(tmp_path, **SMALL) as directory:
        assert directory.log("orders", 0).leader_epochs.entries == [(0, 0), (1, 2), (7, 4)]


def test_truncation_in_a_gap_ends_the_log_there(tmp_path: Path) -> None:
    partition = tmp_path / "orders-0"
    write_segment(
        partition, 0, build_batch(timed(1, 2), offset_deltas=[0, 4]), build_batch(timed(3, 4), base_offset=20)
    )
    write_segment(partition, 40, build_batch(timed(5), base_offset=45))
    with open_directory(tmp_path, **SMALL) as directory:
        log = directory.log("orders", 0)
        assert log.truncate(42) == 42
        assert offsets_of(log) == [0, 4, 20, 21]
        assert log.truncate(10) == 10
        assert offsets_of(log) == [0, 4]
        assert log.append(batch_of(9)).base_offset == 10
        assert offsets_of(log) == [0, 4, 10]


class TestAdvanceStart:
    @pytest.mark.parametrize("offset", range(19))
    def test_records_before_the_new_start_stay_deleted(self, tmp_path: Path, offset: int) -> None:
        with small_log(tmp_path / "data") as built:
            built.advance_start(offset)
            check(built, 18)
            assert built.log.log_start_offset == offset
            crashed = left_by_kill(tmp_path / "data", tmp_path / "copy")
            built.apply_retention()
            check(built, 18)
            built.reopen()
            check(built, 18)
            assert built.log.log_start_offset == offset
            with open_directory(crashed, **SMALL) as directory:
                assert list(directory.log(*PARTITION).records()) == built.expected

    def test_start_after_the_log_end_is_refused(self, tmp_path: Path) -> None:
        with small_log(tmp_path) as built:
            with pytest.raises(OffsetOutOfRangeError, match="offset 19 is after the log end offset, 18"):
                built.log.advance_start(19)
            check(built, 18)

    def test_log_start_is_never_lowered(self, tmp_path: Path) -> None:
        with small_log(tmp_path) as built:
            built.advance_start(7).advance_start(3).advance_start(0)
            assert built.log.log_start_offset == 7

    def test_log_with_an_advanced_start_is_durable(self, tmp_path: Path) -> None:
        with LogBuilder(tmp_path, **SMALL) as built:
            built.append(3).append(3)
            assert built.log.recovery_point == 0
            built.advance_start(4)
            assert built.log.recovery_point == 6
            assert (tmp_path / "log-start-offset-checkpoint").read_text() == "0\n1\norders 0 4\n"

    def test_epoch_that_covers_the_start_begins_there(self, tmp_path: Path) -> None:
        with open_directory(tmp_path, **SMALL) as directory:
            log = directory.log("orders", 0)
            for epoch in range(3):
                log.append(batch_of(1, 2, 3), leader_epoch=epoch)
            log.advance_start(4)
            assert log.leader_epochs.entries == [(1, 4), (2, 6)]

"""Nothing at or after the high watermark is removed, or returned by a read that ends there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stratalog.errors import OffsetOutOfRangeError
from stratalog.records.builder import build_batch
from stratalog.storage import LogConfig, LogDirectory
from stratalog.storage.disk import Disk
from stratalog.storage.names import REPLICATION_OFFSET_CHECKPOINT
from stratalog.storage.segment import Segment
from tests.storage.hand_made import left_by_kill, open_directory, timed
from tests.storage.log_builder import PARTITION, START_MS, STEP_MS, LogBuilder

SMALL: dict[str, Any] = {"segment_index_bytes": 4096, "index_interval_bytes": 100, "retention_ms": -1}


def batches_of_three(path: Path, **settings: Any) -> LogBuilder:
    """0..2, 3..5 | 6..8, 9..11 | 12..14, 15..17"""
    built = LogBuilder(path, **SMALL | settings)
    for _ in range(3):
        built.append(3).append(3).roll()
    return built


class TestRemoval:
    @pytest.mark.parametrize(
        ("high_watermark", "start"), [(None, 18), (18, 18), (17, 12), (12, 12), (11, 6), (5, 0), (0, 0)]
    )
    def test_retention_keeps_segments_that_reach_above_it(
        self, tmp_path: Path, high_watermark: int | None, start: int
    ) -> None:
        with batches_of_three(tmp_path, retention_ms=0) as built:
            built.clock.advance(1_000_000)
            built.log.high_watermark = high_watermark
            built.apply_retention()
            assert built.log.log_start_offset == start

    def test_start_is_not_advanced_past_it(self, tmp_path: Path) -> None:
        with batches_of_three(tmp_path) as built:
            built.log.high_watermark = 10
            with pytest.raises(OffsetOutOfRangeError, match="offset 11 is after the high watermark, 10"):
                built.advance_start(11)
            failures = built.directory.advance_starts({PARTITION: 11})
            assert "after the high watermark" in str(failures[PARTITION])
            assert built.log.log_start_offset == 0
            built.advance_start(10)
            assert built.log.log_start_offset == 10

    @pytest.mark.parametrize(("high_watermark", "clean"), [(None, 30), (30, 30), (29, 20), (20, 20), (9, 0)])
    def test_compaction_leaves_what_is_above_it(self, tmp_path: Path, high_watermark: int | None, clean: int) -> None:
        compacted = LogConfig(cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0, segment_index_bytes=4096)
        with LogDirectory.open(tmp_path, compacted, background=False) as directory:
            log = directory.log(*PARTITION)
            log.high_watermark = high_watermark
            for _ in range(3):
                for _ in range(10):
                    log.append(build_batch([(b"key", b"value")]))
                log.roll()
            before = {record.offset for record in log.records(clean)}
            status = directory.cleaner.status(log)
            directory.cleaner.turn()
            assert status.dirt.first_uncleanable_offset == clean
            if high_watermark not in (None, 30):
                assert f"offset {high_watermark}, the high watermark" in status.dirt.blocked_by
            assert {record.offset for record in log.records(clean)} == before
            assert sum(record.offset < clean for record in log.records()) == (1 if clean else 0)


class TestCheckpoint:
    def test_single_broker_writes_no_such_file(self, tmp_path: Path) -> None:
        with batches_of_three(tmp_path) as built:
            built.truncate(4).advance_start(2).roll()
            built.directory.delete(*PARTITION)
        assert not (tmp_path / REPLICATION_OFFSET_CHECKPOINT).exists()

    def test_many_high_watermarks_are_saved_in_one_write(self, tmp_path: Path) -> None:
        class Counting(Disk):
            replaced = 0

            def replace(self, path: Path, content: bytes, *, durable: bool = True) -> None:
                self.replaced += path.name == REPLICATION_OFFSET_CHECKPOINT
                super().replace(path, content, durable=durable)

        disk = Counting()
        with LogDirectory.open(tmp_path, disk=disk, background=False) as directory:
            offsets = {directory.log("many", index).partition: index for index in range(20)}
            directory.high_watermarks.update(offsets)
            directory.high_watermarks.update(offsets)
            assert disk.replaced == 1
        with LogDirectory.open(tmp_path, background=False) as directory:
            assert {key: directory.high_watermarks.get(key, -1) for key in offsets} == offsets

    @pytest.mark.parametrize(("saved", "after"), [(18, 9), (10, 9), (9, 9), (4, 4)])
    def test_truncation_lowers_it_durably(self, tmp_path: Path, saved: int, after: int) -> None:
        with batches_of_three(tmp_path / "data") as built:
            built.directory.high_watermarks.update({PARTITION: saved})
            built.truncate(10)
            assert built.directory.high_watermarks.get(PARTITION) == after
            with open_directory(left_by_kill(tmp_path / "data", tmp_path / "copy"), **SMALL) as crashed:
                assert crashed.high_watermarks.get(PARTITION) == after


class TestReads:
    @pytest.mark.parametrize("max_offset", range(19))
    @pytest.mark.parametrize("max_bytes", [1, 300, 100_000])
    def test_batch_that_spans_the_limit_is_not_returned(self, tmp_path: Path, max_offset: int, max_bytes: int) -> None:
        with batches_of_three(tmp_path) as built:
            log, complete = built.log, max_offset // 3 * 3
            for offset in range(18):
                for read in (log.read, log.read_at_once):
                    got = list(read(offset, max_bytes, max_offset=max_offset).batches())
                    assert bool(got) == (offset < complete)
                    assert all(batch.header.next_offset <= complete for batch in got)

    def test_limit_that_moves_back_and_forth_is_not_confused(self, tmp_path: Path) -> None:
        with batches_of_three(tmp_path) as built:
            for _ in range(2):
                for limit in (18, 15, 14, 18, 17, 3):
                    ends = [batch.header.next_offset for batch in built.log.read(12, 9999, max_offset=limit).batches()]
                    assert ends == [end for end in (15, 18) if end <= limit]

    def test_position_of_a_limit_is_forgotten_by_a_truncation(self, tmp_path: Path) -> None:
        with LogBuilder(tmp_path, **SMALL) as built:
            built.append(3, value_size=100).append(3, value_size=100).append(3)
            assert len(list(built.log.read(0, 9999, max_offset=6).batches())) == 2
            built.truncate(3).append(1).append(1).append(1).append(3)
            batches = list(built.log.read(0, 9999, max_offset=6).batches())
            assert [batch.header.next_offset for batch in batches] == [3, 4, 5, 6]

    def test_reader_at_the_limit_looks_nothing_up(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with batches_of_three(tmp_path).reopen() as built:

            def fail(*_: object) -> None:
                raise AssertionError("looked up")

            monkeypatch.setattr(Segment, "locate", fail)
            monkeypatch.setattr(Segment, "is_in_memory", fail)
            for offset in (4, 9, 14, 18):
                assert built.log.read_at_once(offset, 1000, max_offset=min(offset, 17)).slice.length == 0

    def test_readers_at_one_high_watermark_look_it_up_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with batches_of_three(tmp_path) as built:
            looked_up: list[int] = []
            locate = Segment.locate

            def counting(segment: Segment, offset: int) -> Any:
                looked_up.append(offset)
                return locate(segment, offset)

            monkeypatch.setattr(Segment, "locate", counting)
            for _ in range(3):
                assert built.log.read(12, 9999, max_offset=15).slice.length
            assert looked_up == [12, 15, 12, 12]

    @pytest.mark.parametrize("limit", range(19))
    def test_timestamps_of_records_after_the_limit_are_not_found(self, tmp_path: Path, limit: int) -> None:
        with batches_of_three(tmp_path) as built:
            for offset in range(18):
                time = START_MS + offset * STEP_MS
                assert built.log.find_timestamp(time, limit) == ((offset, time) if offset < limit else None)
            last = limit // 3 * 3 - 1
            assert built.log.max_timestamp_before(limit) == (START_MS + last * STEP_MS if last >= 0 else -1)

    def test_largest_timestamp_before_the_limit_may_be_an_early_one(self, tmp_path: Path) -> None:
        with open_directory(tmp_path, **SMALL) as directory:
            log = directory.log(*PARTITION)
            for timestamp in (50, 10, 20, 90, 70, 95):
                log.append(build_batch(timed(timestamp, size=60)))
            assert [log.max_timestamp_before(offset) for offset in range(7)] == [-1, 50, 50, 50, 90, 90, 95]
            log.roll()
            assert [log.max_timestamp_before(offset) for offset in range(7)] == [-1, 50, 50, 50, 90, 90, 95]
            assert log.max_timestamp == 95

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from stratalog.clock import ManualClock
from stratalog.storage import Log
from stratalog.storage.sealed_segment import SealedSegment
from tests.storage.hand_made import START_MS, batch_of, files_of, offsets_of, open_directory, write_segment
from tests.storage.log_builder import LogBuilder

SMALL: dict[str, Any] = {"segment_index_bytes": 4096, "index_interval_bytes": 100}


def bases(log: Log) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def test_segment_that_would_grow_past_segment_bytes_is_rolled_before(tmp_path: Path) -> None:
    size = len(batch_of(1))
    with open_directory(tmp_path, segment_bytes=size * 4, **SMALL) as directory:
        log = directory.log("orders", 0)
        for _ in range(9):
            log.append(batch_of(1))
        assert bases(log) == [0, 4, 8]
        assert [segment.size for segment in log.segments] == [size * 4, size * 4, size]


def test_batches_of_one_append_stay_in_one_segment(tmp_path: Path) -> None:
    size = len(batch_of(1))
    with open_directory(tmp_path, segment_bytes=size * 4, **SMALL) as directory:
        log = directory.log("orders", 0)
        log.append(batch_of(1) * 3)
        log.append(batch_of(1) * 3)
        assert bases(log) == [0, 3]
        log.append(batch_of(1) * 4)
        assert bases(log) == [0, 3, 6]


def test_roll_of_an_empty_segment_does_nothing(tmp_path: Path) -> None:
    built = LogBuilder(tmp_path, **SMALL)
    with built:
        built.roll().append(3).roll().roll()
        assert bases(built.log) == [0, 3]


@pytest.mark.parametrize(("later", "rolled"), [(999, False), (1000, False), (1001, True)])
def test_record_time_rolls_when_records_have_timestamps(tmp_path: Path, later: int, rolled: bool) -> None:
    with open_directory(tmp_path, segment_ms=1000, **SMALL) as directory:
        log = directory.log("orders", 0)
        log.append(batch_of(5000))
        log.append(batch_of(4000))  # the first batch's timestamp counts, not the largest or the last one
        log.append(batch_of(5000 + later))
        assert bases(log) == ([0, 2] if rolled else [0])


def test_wall_clock_time_does_not_roll_records_with_timestamps(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with open_directory(tmp_path, clock=clock, segment_ms=1000, **SMALL) as directory:
        log = directory.log("orders", 0)
        log.append(batch_of(5000))
        clock.advance(10**9)
        log.append(batch_of(5001))
        assert bases(log) == [0]


@pytest.mark.parametrize(("later", "rolled"), [(1000, False), (1001, True)])
def test_wall_clock_time_rolls_records_without_timestamps(tmp_path: Path, later: int, rolled: bool) -> None:
    clock = ManualClock(START_MS)
    with open_directory(tmp_path, clock=clock, segment_ms=1000, **SMALL) as directory:
        log = directory.log("orders", 0)
        log.append(batch_of(-1))
        clock.advance(later)
        log.append(batch_of(-1))
        assert bases(log) == ([0, 1] if rolled else [0])


@pytest.mark.parametrize(("later", "rolled"), [(1000, False), (1001, True)])
def test_append_time_rolls_a_log_with_log_append_time(tmp_path: Path, later: int, rolled: bool) -> None:
    clock = ManualClock(START_MS)
    settings = {"segment_ms": 1000, "message_timestamp_type": "LogAppendTime", **SMALL}
    with open_directory(tmp_path, clock=clock, **settings) as directory:
        log = directory.log("orders", 0)
        log.append(batch_of(-1))
        clock.advance(later)
        log.append(batch_of(-1))
        assert bases(log) == ([0, 1] if rolled else [0])


def test_first_timestamp_of_a_segment_is_known_after_reopening(tmp_path: Path) -> None:
    for timestamp, expected in ((5000, [0]), (5900, [0]), (6001, [0, 2])):
        with open_directory(tmp_path, segment_ms=1000, **SMALL) as directory:
            directory.log("orders", 0).append(batch_of(timestamp))
            assert bases(directory.log("orders", 0)) == expected


def test_quiet_log_is_rolled_by_the_housekeeper_only_when_due(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with open_directory(tmp_path, clock=clock, segment_ms=1000, **SMALL) as directory:
        log = directory.log("orders", 0)
        log.roll_if_due()
        log.append(batch_of(START_MS))
        clock.advance(1000)
        log.roll_if_due()
        assert bases(log) == [0]
        clock.advance(1)
        log.roll_if_due()
        log.roll_if_due()
        assert bases(log) == [0, 1]


def test_jitter_is_subtracted_from_segment_ms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranges: list[tuple[int, int]] = []

    def largest(low: int, high: int) -> int:
        ranges.append((low, high))
        return high

    monkeypatch.setattr(random, "randint", largest)
    with open_directory(tmp_path, segment_ms=1000, segment_jitter_ms=400, **SMALL) as directory:
        log = directory.log("orders", 0)
        log.append(batch_of(5000))
        log.append(batch_of(5600))
        assert bases(log) == [0]
        log.append(batch_of(5601))
        assert bases(log) == [0, 2]
    assert set(ranges) == {(0, 400)}


def test_full_index_rolls(tmp_path: Path) -> None:
    with open_directory(tmp_path, segment_index_bytes=64, index_interval_bytes=0) as directory:
        log = directory.log("orders", 0)
        for number in range(20):
            log.append(batch_of(1000 + number))
        # 5 time entries fit, and with 4 the index is full. The first batch has no entry, so a segment has 5 batches.
        assert bases(log) == [0, 5, 10, 15]
        assert all(segment.time_index.count == 4 or segment is log.segments[-1] for segment in log.segments)
        assert offsets_of(log) == list(range(20))


def test_full_index_rolls_records_without_timestamps(tmp_path: Path) -> None:
    with open_directory(tmp_path, segment_index_bytes=64, index_interval_bytes=0) as directory:
        log = directory.log("orders", 0)
        for _ in range(20):
            log.append(batch_of(-1))
        assert bases(log) == [0, 8, 16]


def test_offset_too_far_from_the_base_rolls(tmp_path: Path) -> None:
    base = 10_000_000_000
    write_segment(tmp_path / "orders-0", base, batch_of(1, base_offset=base), batch_of(2, base_offset=base + 2**31 - 3))
    with open_directory(tmp_path, **SMALL) as directory:
        log = directory.log("orders", 0)
        log.append(batch_of(3))  # base + 2^31 - 2
        log.append(batch_of(4))  # base + 2^31 - 1, the last that fits
        assert bases(log) == [base]
        log.append(batch_of(5))
        assert bases(log) == [base, base + 2**31]
        assert offsets_of(log) == [base, *range(base + 2**31 - 3, base + 2**31 + 1)]


def test_append_that_would_end_too_far_from_the_base_rolls_before_it(tmp_path: Path) -> None:
    write_segment(tmp_path / "orders-0", 0, batch_of(1), batch_of(2, base_offset=2**31 - 3))
    with open_directory(tmp_path, **SMALL) as directory:
        log = directory.log("orders", 0)
        log.append(batch_of(3, 4, 5))
        assert bases(log) == [0, 2**31 - 2]


def test_batches_that_together_would_end_too_far_from_the_base_roll_before_the_first(tmp_path: Path) -> None:
    write_segment(tmp_path / "orders-0", 0, batch_of(1), batch_of(2, base_offset=2**31 - 3))
    with open_directory(tmp_path, **SMALL) as directory:
        log = directory.log("orders", 0)
        log.append(batch_of(3) + batch_of(4) + batch_of(5))
        assert bases(log) == [0, 2**31 - 2]


def test_segment_wider_than_an_index_entry_can_express_is_read(tmp_path: Path) -> None:
    offsets = [0, 5, 2**31 + 7, 2**33]
    write_segment(tmp_path / "orders-0", 0, *(batch_of(100 + at % 97, base_offset=at) for at in offsets))
    write_segment(tmp_path / "orders-0", 2**34, batch_of(900, base_offset=2**34))
    with open_directory(tmp_path, index_interval_bytes=0, segment_index_bytes=1024) as directory:
        log = directory.log("orders", 0)
        assert offsets_of(log) == [*offsets, 2**34]
        for offset, base_offset in ((1, 5), (6, 2**31 + 7), (2**32, 2**33), (2**33 + 1, 2**34)):
            assert log.read(offset, 100).base_offset == base_offset


@pytest.mark.parametrize("codec", [0, 4])
def test_sealed_indexes_are_trimmed_and_equal_to_rebuilt_ones(tmp_path: Path, codec: int) -> None:
    built = LogBuilder(tmp_path, segment_bytes=3000, **SMALL)
    generator = random.Random(5)
    with built:
        for _ in range(120):
            built.append(generator.randint(1, 4), codec=codec, batches=generator.randint(1, 3))
        built.roll()
        sealed = built.log.segments[:-1]
        assert len(sealed) > 5
        before = files_of(built.log_path)
        for segment in sealed:
            assert isinstance(segment, SealedSegment)
            assert segment.offset_index.count > 3
            assert segment.path(".index").stat().st_size == segment.offset_index.count * 8
            assert segment.path(".timeindex").stat().st_size == segment.time_index.count * 12
            segment.rebuild_indexes()
        assert files_of(built.log_path) == before
        assert list(built.log.records()) == built.expected


def test_active_indexes_are_preallocated_and_trimmed_by_a_clean_close(tmp_path: Path) -> None:
    built = LogBuilder(tmp_path, segment_index_bytes=1000, index_interval_bytes=0).append(1).append(1).append(1)
    index, time_index = built.files(".index")[0], built.files(".timeindex")[0]
    assert (index.stat().st_size, time_index.stat().st_size) == (1000, 996)
    built.close()
    assert (index.stat().st_size, time_index.stat().st_size) == (16, 24)


def test_roll_saves_a_snapshot_at_the_new_base(tmp_path: Path) -> None:
    with LogBuilder(tmp_path, **SMALL) as built:
        built.append(3).roll().append(2).roll()
        assert [path.name for path in built.files(".snapshot")] == [f"{base:020d}.snapshot" for base in (3, 5)]

"""Lookup by timestamp: the first record that is not older than the timestamp."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from stratalog.clock import ManualClock
from stratalog.records._records import Record
from stratalog.records.format import Codec
from stratalog.records.legacy import build_message_set
from stratalog.storage import Log, TimestampedOffset
from tests.storage.hand_made import START_MS, batch_of, left_by_kill, open_directory, timed, write_segment

SMALL: dict[str, Any] = {"segment_index_bytes": 4096, "index_interval_bytes": 0, "retention_ms": -1}


def fill(log: Log, segments: list[list[list[int]]], codec: int = 0) -> list[int]:
    """Append batches with these timestamps, segment by segment. Return all timestamps by offset."""
    for segment in segments:
        for batch in segment:
            log.append(batch_of(*batch, codec=codec))
        log.roll()
    return [timestamp for segment in segments for batch in segment for timestamp in batch]


def first_not_older(timestamps: list[int], target: int, start: int = 0) -> TimestampedOffset | None:
    for offset, timestamp in enumerate(timestamps):
        if timestamp >= target and offset >= start:
            return TimestampedOffset(offset, timestamp)
    return None


def check_every(log: Log, timestamps: list[int], start: int = 0) -> None:
    for target in {near for timestamp in timestamps for near in (timestamp - 1, timestamp, timestamp + 1)}:
        assert log.find_timestamp(target) == first_not_older(timestamps, target, start), target


CASES: dict[str, list[list[list[int]]]] = {
    "rising": [[[10, 20], [30, 40]], [[50], [60, 70]]],
    "equal": [[[10, 10], [10], [20], [20, 20]], [[20], [20, 30]]],
    "out of order inside a batch": [[[50, 10, 90, 20], [5, 95]], [[1, 2, 3]]],
    "out of order between batches": [[[500], [100], [300], [200], [600], [50]], [[400], [700]]],
    "one far ahead": [[[10], [10**15], [20], [30]], [[40], [50]]],
    "older segment is younger": [[[900], [1000]], [[10], [20]], [[1500], [5]]],
    "no time at all": [[[-1], [-1, -1]], [[-1]]],
    "some without time": [[[-1], [10], [-1, 20]], [[-1]], [[-1, 30], [-1]]],
    "zero": [[[0], [0, 1]], [[0]]],
}


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize("case", CASES)
def test_lookup_returns_the_first_record_that_is_not_older(tmp_path: Path, case: str, codec: Codec) -> None:
    with open_directory(tmp_path, **SMALL) as directory:
        log = directory.log("orders", 0)
        check_every(log, fill(log, CASES[case], codec))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("how", ["clean", "crash", "no indexes"])
def test_lookup_returns_the_same_after_reopening(tmp_path: Path, case: str, how: str) -> None:
    data = tmp_path / "data"
    with open_directory(data, **SMALL) as directory:
        log = directory.log("orders", 0)
        timestamps = fill(log, CASES[case])
        log.append(batch_of(15, 25))
        timestamps += [15, 25]
        if how == "crash":
            data = left_by_kill(data, tmp_path / "copy")
    if how == "no indexes":
        for path in (data / "orders-0").glob("*index"):
            path.unlink()
    with open_directory(data, **SMALL) as directory:
        check_every(directory.log("orders", 0), timestamps)


@pytest.mark.parametrize("interval", [0, 300, 4096])
def test_lookup_of_random_timestamps_with_any_index_interval(tmp_path: Path, interval: int) -> None:
    generator = random.Random(interval)
    segments = [
        [[generator.randint(0, 300) for _ in range(generator.randint(1, 4))] for _ in range(12)] for _ in range(4)
    ]
    with open_directory(tmp_path, **{**SMALL, "index_interval_bytes": interval}) as directory:
        log = directory.log("orders", 0)
        timestamps = fill(log, segments)
        check_every(log, timestamps)
        for start in (5, 40, 70):
            log.advance_start(start)
            check_every(log, timestamps, start)


def test_lookup_ignores_records_before_the_log_start(tmp_path: Path) -> None:
    with open_directory(tmp_path, **SMALL) as directory:
        log = directory.log("orders", 0)
        fill(log, [[[10, 20, 30], [40]], [[15]]])
        log.advance_start(2)
        assert log.find_timestamp(5) == (2, 30)
        log.advance_start(4)
        assert log.find_timestamp(5) == (4, 15)
        assert log.find_timestamp(16) is None


def test_lookup_of_append_time(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with open_directory(tmp_path, clock=clock, message_timestamp_type="LogAppendTime", **SMALL) as directory:
        log = directory.log("orders", 0)
        for _ in range(5):
            log.append(batch_of(1, 2))
            clock.advance(100)
        assert log.find_timestamp(START_MS + 101) == (4, START_MS + 200)
        assert log.find_timestamp(START_MS + 401) is None


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_lookup_in_magic_1_messages(tmp_path: Path, codec: Codec) -> None:
    times = [100, 300, 200, 400]
    records = [
        Record(offset=offset, timestamp=timestamp, key=b"k", value=b"v") for offset, timestamp in enumerate(times)
    ]
    sets = [build_message_set(records[:2], magic=1, codec=codec), build_message_set(records[2:], magic=1, codec=codec)]
    write_segment(tmp_path / "orders-0", 0, *sets)
    with open_directory(tmp_path, **SMALL) as directory:
        log = directory.log("orders", 0)
        assert [record.timestamp for record in log.records()] == times
        log.append(batch_of(500))
        check_every(log, [*times, 500])


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.SNAPPY])
def test_lookup_in_messages_without_timestamps_returns_nothing(tmp_path: Path, codec: Codec) -> None:
    records = [Record(offset=offset, value=b"v") for offset in range(4)]
    write_segment(tmp_path / "orders-0", 0, build_message_set(records, magic=0, codec=codec))
    with open_directory(tmp_path, **SMALL) as directory:
        log = directory.log("orders", 0)
        assert [(record.offset, record.timestamp) for record in log.records()] == [(offset, -1) for offset in range(4)]
        assert log.find_timestamp(0) is None
        log.roll()
        log.append(batch_of(500))
        assert log.find_timestamp(0) == (4, 500)
        assert [record.offset for record in log.records(2)] == [2, 3, 4]


def test_corrupt_time_index_is_rebuilt_and_causes_no_wrong_result(tmp_path: Path) -> None:
    with open_directory(tmp_path, **SMALL) as directory:
        log = directory.log("orders", 0)
        timestamps = fill(log, CASES["rising"])
    index = tmp_path / "orders-0" / "00000000000000000000.timeindex"
    good = index.read_bytes()
    for wrong in (b"", bytes(24), b"\xff" * 24, good[:12], good[12:], good + b"\0" * 5, bytes([1]) + good[1:]):
        index.write_bytes(wrong)
        with open_directory(tmp_path, **SMALL) as directory:
            check_every(directory.log("orders", 0), timestamps)


def test_lookup_returns_the_offset_of_the_record_not_of_its_batch(tmp_path: Path) -> None:
    """The returned offset is that of the record, not of its batch."""
    with open_directory(tmp_path, **SMALL) as directory:
        log = directory.log("orders", 0)
        log.append(batch_of(10, 20, 30, 40))
        match = log.find_timestamp(25)
        assert match is not None
        assert next(log.records(match.offset)).value == timed(30)[0].value


def test_largest_timestamp_is_that_of_all_segments(tmp_path: Path) -> None:
    with open_directory(tmp_path, **SMALL) as directory:
        log = directory.log("orders", 0)
        assert log.max_timestamp == -1
        fill(log, [[[10, 90, 30]], [[40]], [[15]]])
        assert log.max_timestamp == 90
        log.append(batch_of(100))
        assert log.max_timestamp == 100

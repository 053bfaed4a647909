"""Rows read directly from a partition's files: the same as from the log's own reader, while the log changes."""

from __future__ import annotations

import itertools
import mmap
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import CorruptBatchError
from stratalog.records._records import Record
from stratalog.records.builder import build_batch
from stratalog.records.format import ControlType
from stratalog.spark import direct_scan
from stratalog.spark.data_loss import DataLossError
from stratalog.spark.direct_plan import FilesUnavailableError
from stratalog.spark.direct_scan import scan
from stratalog.spark.predicate import EVERYTHING, Predicate
from stratalog.spark.scan_request import MIB, READ_COMMITTED, OffsetRange, ScanRequest
from stratalog.spark.schema import ALL_COLUMNS
from stratalog.storage import Log
from tests.spark.rows import Row, matches, row_of, rows_in
from tests.storage.compaction.keyed_log import KeyedLog
from tests.storage.faults.racing import Unsynced
from tests.storage.log_builder import PARTITION, START_MS, LogBuilder


def request_for(path: Path, predicate: Predicate = EVERYTHING, **settings: Any) -> ScanRequest:
    columns = settings.pop("columns", ALL_COLUMNS)
    return ScanRequest(columns, {}, predicate, data_dirs=(str(path),), **settings)


def range_of(log: Log, start: int | None = None, end: int | None = None) -> OffsetRange:
    return OffsetRange(
        log.partition.topic,
        log.partition.partition,
        log.log_start_offset if start is None else start,
        log.log_end_offset if end is None else end,
    )


def rows_from(batches: Iterator[Any]) -> list[Row]:
    return [row for batch in batches for row in rows_in(batch)]


def expected(records: list[Record], predicate: Predicate = EVERYTHING) -> list[Row]:
    return [row_of(record, topic=PARTITION.topic, partition=0) for record in records if matches(predicate, record)]


@pytest.fixture
def built(tmp_path: Path) -> Iterator[LogBuilder]:
    with LogBuilder(tmp_path, disk=Unsynced(), index_interval_bytes=200) as builder:
        yield builder


def fill(built: LogBuilder, segments: int = 4, batches: int = 10) -> LogBuilder:
    for codec in range(segments):
        for _ in range(batches):
            built.append(7, codec=codec % 5)
        built.roll()
    return built.append(3)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogBuilder]:
    with LogBuilder(tmp_path_factory.mktemp("model"), disk=Unsynced(), index_interval_bytes=200) as builder:
        yield fill(builder, segments=5)


@given(data=st.data())
def test_rows_are_those_of_the_log_reader(model: LogBuilder, data: st.DataObject) -> None:
    start, end = sorted(data.draw(st.tuples(*[st.integers(0, model.next_offset)] * 2)))
    moments = st.integers(START_MS, START_MS + 10 * model.next_offset)
    predicate = Predicate(
        from_timestamp=data.draw(st.just(-(2**63)) | moments),
        until_timestamp=data.draw(st.just(2**63 - 1) | moments),
        keys=data.draw(st.none() | st.just(frozenset(r.key for r in model.history[::3] if r.key is not None))),
    )
    actual = rows_from(scan(range_of(model.log, start, end), request_for(model.path, predicate)))
    assert actual == expected(model.history[start:end], predicate)


def test_range_can_end_inside_a_batch(built: LogBuilder) -> None:
    built.append(10).append(10)
    actual = rows_from(scan(range_of(built.log, 3, 15), request_for(built.path)))
    assert actual == expected(built.history[3:15])


def test_an_empty_range_reads_nothing(tmp_path: Path) -> None:
    assert list(scan(OffsetRange("orders", 0, 5, 5), request_for(tmp_path))) == []


def test_batches_larger_than_a_window_are_read(built: LogBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_scan, "WINDOW", 4096)
    for size in (10, 20_000, 10, 100_000, 5000, 10):
        built.append(2, value_size=size)
    built.roll().append(1, value_size=9000)
    assert rows_from(scan(range_of(built.log), request_for(built.path))) == expected(built.history)


def test_torn_batch_after_the_range_is_not_read(built: LogBuilder) -> None:
    fill(built).flush()
    with built.files(".log")[-1].open("ab") as file:
        file.write(built.next_batch(5)[:70])
    assert rows_from(scan(range_of(built.log), request_for(built.path))) == expected(built.history)


def test_segment_deleted_during_the_scan_is_read_to_its_end(built: LogBuilder) -> None:
    fill(built, segments=2)
    whole = built.history
    batches = scan(range_of(built.log, 0, 70), request_for(built.path, rows_per_batch=10))
    rows = rows_in(next(batches))
    built.advance_start(70).apply_retention()
    built.directory.turn()
    assert not (built.log_path / f"{0:020d}.log").exists()
    assert rows + rows_from(batches) == expected(whole[:70])


def test_segments_deleted_before_they_are_opened_are_lost(built: LogBuilder, caplog: pytest.LogCaptureFixture) -> None:
    fill(built, segments=3)
    whole = built.history
    offset_range = range_of(built.log)
    strict = scan(offset_range, request_for(built.path, rows_per_batch=10))
    lenient = scan(offset_range, request_for(built.path, rows_per_batch=10, fail_on_data_loss=False))
    first = [rows_in(next(strict)), rows_in(next(lenient))]
    built.advance_start(140).apply_retention()
    built.directory.turn()
    with pytest.raises(DataLossError, match=r"orders-0: the records from offset 70 to 139 were deleted.*failOnDataL"):
        rows_from(strict)
    assert first[1] + rows_from(lenient) == expected(whole[:70] + whole[140:])
    assert "orders-0: the records from offset 70 to 139 were deleted" in caplog.text


def test_records_deleted_before_the_scan_are_lost(built: LogBuilder) -> None:
    fill(built, segments=2)
    offset_range = range_of(built.log)
    built.advance_start(70).apply_retention()
    built.directory.turn()
    with pytest.raises(DataLossError, match="from offset 0 to 69"):
        rows_from(scan(offset_range, request_for(built.path)))


def test_segments_rolled_during_the_scan_are_read(built: LogBuilder) -> None:
    built.append(10)
    offset_range = range_of(built.log, 0, 30)
    batches = scan(offset_range, request_for(built.path, rows_per_batch=5))
    rows = rows_in(next(batches))
    built.append(10).roll().append(10)
    assert rows + rows_from(batches) == expected(built.history)


def test_files_that_lag_behind_the_broker_are_unavailable(built: LogBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_scan, "_ATTEMPTS", 3)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    built.append(10)
    rows: list[Row] = []
    with pytest.raises(FilesUnavailableError, match="files end at offset 10, but the broker has later") as caught:
        for batch in scan(range_of(built.log, 0, 30), request_for(built.path)):
            rows += rows_in(batch)
    assert rows == expected(built.history)
    assert caught.value.next_offset == 10


def test_compaction_during_the_scan_loses_and_repeats_no_record(tmp_path: Path) -> None:
    with KeyedLog(tmp_path) as keyed:
        for turn in range(6):
            keyed.put_each(*(f"{key}={turn}" for key in "abcdef")).roll()
        keyed.put("z=1")
        end = keyed.log.log_end_offset
        request = request_for(tmp_path, rows_per_batch=1)
        for seen in (1, 4, 7, 13, 30):
            batches = scan(range_of(keyed.log, 0, end), request)
            rows = [row for batch in itertools.islice(batches, seen) for row in rows_in(batch)]
            keyed.clean_again()
            rows += rows_from(batches)
            offsets = [row["offset"] for row in rows]
            assert offsets == sorted(set(offsets))
            # All surviving records are read, and possibly some removed ones.
            latest = {row["key"]: row["value"] for row in rows}
            assert {key: latest[key] for key in (b"a", b"f", b"z")} == {b"a": b"5", b"f": b"5", b"z": b"1"}


def test_gaps_of_a_compacted_log_are_not_a_loss(tmp_path: Path) -> None:
    with KeyedLog(tmp_path) as keyed:
        for turn in range(4):
            keyed.put_each(*(f"{key}={turn}" for key in "abcdef")).roll()
        keyed.put("z=1").clean()
        actual = rows_from(scan(range_of(keyed.log, 0), request_for(tmp_path)))
        assert [row["offset"] for row in actual] == keyed.offsets()
        assert len(actual) < keyed.log.log_end_offset


def test_aborted_transactions_are_skipped_across_segments(tmp_path: Path) -> None:
    with KeyedLog(tmp_path, cleanup_policy=("delete",)) as keyed:
        transactional = {"producer_epoch": 0, "is_transactional": True}
        keyed.put("a=1", "b=1", producer_id=7, base_sequence=0, **transactional)
        keyed.put("c=1", producer_id=8, base_sequence=0, **transactional).roll()
        keyed.put("d=1", producer_id=7, base_sequence=2, **transactional).roll()
        keyed.end_transaction(ControlType.ABORT, 7).end_transaction(ControlType.COMMIT, 8).roll()
        keyed.put("e=1", producer_id=7, base_sequence=3, **transactional)
        keyed.end_transaction(ControlType.COMMIT, 7)
        committed = rows_from(scan(range_of(keyed.log), request_for(tmp_path, isolation=READ_COMMITTED)))
        assert [row["key"] for row in committed] == [b"c", b"e"]
        late = request_for(tmp_path, Predicate(from_timestamp=START_MS + 3), isolation=READ_COMMITTED)
        assert [row["key"] for row in rows_from(scan(range_of(keyed.log, 1), late))] == [b"e"]
        everything = rows_from(scan(range_of(keyed.log), request_for(tmp_path)))
        assert [row["key"] for row in everything] == [b"a", b"b", b"c", b"d", b"e"]


def test_corrupt_batch_is_reported_with_file_position_and_offset(built: LogBuilder) -> None:
    fill(built, segments=1, batches=3).flush()
    path = built.files(".log")[0]
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptBatchError, match=r"00000000\.log: orders-0, offset 14: checksum .* at position \d+"):
        rows_from(scan(range_of(built.log), request_for(built.path)))


def test_base_offset_that_would_hide_records_is_an_error(built: LogBuilder) -> None:
    built.append(5).append(5).roll().append(5).append(5).flush()
    path = built.files(".log")[0]
    content = bytearray(path.read_bytes())
    second = build_batch(built.history[:5])
    content[len(second) + 2] ^= 1  # makes the base offset of the second batch large
    path.write_bytes(content)
    with pytest.raises(CorruptBatchError, match="successor starts at 10"):
        rows_from(scan(range_of(built.log), request_for(built.path)))


def test_torn_batch_in_a_sealed_segment_is_an_error(built: LogBuilder) -> None:
    built.append(5).append(5).roll().append(5).flush()
    path = built.files(".log")[0]
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(CorruptBatchError, match="not a complete batch"):
        rows_from(scan(range_of(built.log), request_for(built.path)))


def test_missing_directory_is_an_error_before_the_first_row(tmp_path: Path) -> None:
    batches = scan(OffsetRange("orders", 0, 2, 5), request_for(tmp_path))
    with pytest.raises(FilesUnavailableError, match="orders-0 does not exist") as caught:
        next(batches)
    assert caught.value.next_offset == 2


def test_topic_that_was_created_again_is_not_read(built: LogBuilder) -> None:
    fill(built, segments=2)
    offset_range = OffsetRange("orders", 0, 0, built.next_offset, topic_id=uuid.uuid4())
    with pytest.raises(FilesUnavailableError, match="it was created again"):
        rows_from(scan(offset_range, request_for(built.path)))


def test_reader_that_stops_early_closes_its_files(built: LogBuilder) -> None:
    fill(built)
    before = len(list(Path("/proc/self/fd").iterdir()))
    batches = scan(range_of(built.log), request_for(built.path, rows_per_batch=5))
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert len(list(Path("/proc/self/fd").iterdir())) == before


class TrackedMap(mmap.mmap):
    """A mapping that counts the bytes that are mapped at the same time."""

    mapped = 0
    most = 0

    def __init__(self, fileno: int, length: int, **_: int) -> None:
        self._length = length
        TrackedMap.mapped += length
        TrackedMap.most = max(TrackedMap.most, TrackedMap.mapped)

    def __exit__(self, *error: object) -> None:
        TrackedMap.mapped -= self._length
        self.close()


def test_scan_holds_a_window_and_one_batch_at_a_time(built: LogBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_scan, "WINDOW", 2 * MIB)
    constants = {name: getattr(mmap, name) for name in ("PROT_READ", "ALLOCATIONGRANULARITY")}
    monkeypatch.setattr(direct_scan, "mmap", SimpleNamespace(mmap=TrackedMap, **constants))
    for _ in range(20):
        built.append(10, value_size=100_000)
    request = request_for(built.path, columns=("value",), bytes_per_batch=MIB)
    sizes = [(batch.num_rows, batch.nbytes) for batch in scan(range_of(built.log), request)]
    assert sum(rows for rows, _ in sizes) == 200
    assert max(size for _, size in sizes) < 1.2 * MIB
    assert 0 < TrackedMap.most <= 2 * MIB + mmap.ALLOCATIONGRANULARITY
    assert TrackedMap.mapped == 0

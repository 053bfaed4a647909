from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stratalog.clock import ManualClock
from stratalog.errors import OffsetOutOfRangeError, StorageError
from stratalog.records.builder import build_batch
from stratalog.records.format import Codec
from stratalog.storage import DirectoryConfig, Log
from stratalog.storage.active_segment import ActiveSegment
from stratalog.storage.disk import Disk
from tests.storage.hand_made import START_MS, batch_of, offsets_of, open_directory, open_with, timed, write_segment
from tests.storage.log_builder import LogBuilder

SMALL: dict[str, Any] = {"segment_index_bytes": 4096, "index_interval_bytes": 150}


@pytest.fixture
def built(tmp_path: Path) -> Iterator[LogBuilder]:
    """Batches 0..2, 3..5, 6..8 | 9..11, 12..14, 15..17 | 18..20"""
    with LogBuilder(tmp_path, **SMALL) as built:
        for _ in range(2):
            built.append(3).append(3).append(3).roll()
        yield built.append(3)


def batch_offsets(log: Log, offset: int, max_bytes: int = 10**6, **bounds: Any) -> list[int]:
    return [batch.header.base_offset for batch in log.read(offset, max_bytes, **bounds).batches()]


def test_read_starts_at_the_batch_of_the_offset_and_ends_with_the_segment(built: LogBuilder) -> None:
    for offset in range(21):
        end = min((offset // 9 + 1) * 9, 21)
        assert batch_offsets(built.log, offset) == list(range(offset // 3 * 3, end, 3))


def test_read_has_its_base_offset_and_the_log_offsets(built: LogBuilder) -> None:
    built.advance_start(4)
    read = built.log.read(5, 10**6)
    assert (read.base_offset, read.log_start_offset, read.log_end_offset) == (3, 4, 21)
    assert read.slice.position == len(built.log_path.joinpath("00000000000000000000.log").read_bytes()) - len(
        read.slice
    )
    assert len(read.slice) == read.slice.length == len(read.slice.read())
    assert "00000000000000000000.log" in repr(read.slice)


def test_read_at_the_log_end_is_empty(built: LogBuilder) -> None:
    read = built.log.read(21, 10**6)
    assert (read.slice.length, read.slice.read(), read.base_offset, list(read.batches())) == (0, b"", 21, [])


@pytest.mark.parametrize("offset", [-1, 3, 22, 10**12])
def test_offset_outside_the_log_is_refused_with_the_range(built: LogBuilder, offset: int) -> None:
    built.advance_start(4)
    with pytest.raises(OffsetOutOfRangeError, match=f"offset {offset} is outside the log, which has 4 to 21") as caught:
        built.log.read(offset, 100)
    assert caught.value.code == 1


def test_empty_log_can_be_read_only_at_its_end(tmp_path: Path) -> None:
    with LogBuilder(tmp_path) as built:
        assert built.log.read(0, 100).slice.length == 0
        assert list(built.log.records()) == []
        assert built.log.find_timestamp(0) is None
        with pytest.raises(OffsetOutOfRangeError, match="0 to 0"):
            built.log.read(1, 100)


def test_max_bytes_limits_the_read_but_the_first_batch_is_complete(built: LogBuilder) -> None:
    whole = built.log.read(0, 10**6).slice
    first = next(built.log.read(0, 10**6).batches()).header.size
    for max_bytes in range(0, whole.length + 10, 7):
        read = built.log.read(0, max_bytes)
        assert read.slice.length == min(max(max_bytes, first), whole.length)
        assert read.slice.read() == whole.read()[: read.slice.length]
        strict = built.log.read(0, max_bytes, at_least_one=False)
        assert strict.slice.length == (0 if max_bytes < first else min(max_bytes, whole.length))
        assert len(list(strict.batches())) <= len(list(read.batches()))


def test_negative_max_bytes_is_refused(built: LogBuilder) -> None:
    with pytest.raises(ValueError, match="max_bytes is -1"):
        built.log.read(0, -1)


@pytest.mark.parametrize(
    ("max_offset", "batches"),
    [(0, []), (1, []), (2, []), (3, [0]), (5, [0]), (6, [0, 3]), (8, [0, 3]), (9, [0, 3, 6]), (99, [0, 3, 6])],
)
def test_batches_that_reach_max_offset_are_not_read(built: LogBuilder, max_offset: int, batches: list[int]) -> None:
    assert batch_offsets(built.log, 0, max_offset=max_offset) == batches


def test_max_offset_at_or_before_the_offset_makes_the_read_empty(built: LogBuilder) -> None:
    for offset in range(21):
        assert batch_offsets(built.log, offset, max_offset=offset) == []
    assert batch_offsets(built.log, 20, max_offset=21) == [18]


def test_records_yields_exactly_the_range(built: LogBuilder) -> None:
    for start in range(0, 22, 2):
        for end in range(22):
            assert list(built.log.records(start, end)) == built.history[start:end]
    assert list(built.log.records(end=10**9)) == built.history
    assert list(built.log.records(20)) == built.history[20:]


def test_batch_larger_than_the_read_of_a_lookup_is_skipped_and_read(tmp_path: Path) -> None:
    with LogBuilder(tmp_path, index_interval_bytes=10**6, segment_index_bytes=4096) as built:
        built.append(2).append(2, value_size=40_000).append(2, value_size=100_000).append(2)
        for offset in range(8):
            assert next(built.log.read(offset, 1).batches()).header.base_offset == offset // 2 * 2
        assert list(built.log.records()) == built.expected


@pytest.fixture
def compacted(tmp_path: Path) -> Path:
    """Offsets 2, 4, 9 in batch 0..9, no record in batch 20..24, 30, and a second segment from 50 with 55 in 55..59."""
    partition = tmp_path / "orders-0"
    write_segment(
        partition,
        0,
        build_batch(timed(1, 2, 3), base_offset=0, offset_deltas=[2, 4, 9]),
        build_batch(timed(5), base_offset=20, offset_deltas=[1], last_offset_delta=4),
        batch_of(6, base_offset=30),
    )
    write_segment(partition, 50, build_batch(timed(9), base_offset=55, offset_deltas=[0], last_offset_delta=4))
    return tmp_path


@pytest.mark.parametrize(
    ("offset", "base"),
    [(0, 0), (9, 0), (10, 20), (19, 20), (24, 20), (25, 30), (30, 30), (31, 55), (49, 55), (50, 55), (59, 55)],
)
def test_offset_in_a_gap_reads_the_batch_after_it(compacted: Path, offset: int, base: int) -> None:
    with open_directory(compacted, **SMALL) as directory:
        log = directory.log("orders", 0)
        assert log.read(offset, 10).base_offset == base
        assert batch_offsets(log, offset, 10)[0] == base


def test_compacted_log_continues_after_its_last_batch(compacted: Path) -> None:
    with open_directory(compacted, **SMALL) as directory:
        log = directory.log("orders", 0)
        assert offsets_of(log) == [2, 4, 9, 21, 30, 55]
        assert log.append(batch_of(10)).base_offset == 60
        assert batch_offsets(log, 40, max_offset=55) == []
        assert batch_offsets(log, 40, max_offset=60) == [55]


def test_slice_stays_readable_when_its_segment_is_deleted(tmp_path: Path) -> None:
    with LogBuilder(tmp_path, retention_bytes=0, retention_ms=-1, file_delete_delay_ms=0, **SMALL) as built:
        built.append(3).append(3)
        read = built.log.read(0, 10**6)
        content = read.slice.read()
        built.apply_retention()
        built.directory.turn()
        assert not built.files("00000000000000000000.log.deleted")
        assert not built.files("00000000000000000000.log")
        assert read.slice.read() == content
        assert built.log.log_start_offset == 6


def test_slice_of_truncated_bytes_raises_instead_of_a_short_read(tmp_path: Path) -> None:
    with LogBuilder(tmp_path, **SMALL) as built:
        read = built.append(3).append(3).log.read(0, 10**6)
        built.truncate(3)
        with pytest.raises(StorageError, match="the log was truncated under this slice"):
            read.slice.read()


def test_many_segments_are_read_with_few_open(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with open_with(tmp_path, DirectoryConfig(max_open_segments=2), clock, **SMALL) as directory:
        log = directory.log("orders", 0)
        for number in range(30):
            log.append(batch_of(START_MS + number, START_MS + number))
            log.roll()
    with open_with(tmp_path, DirectoryConfig(max_open_segments=2), clock, **SMALL) as directory:
        log = directory.log("orders", 0)
        generator = random.Random(3)
        before = open_logs(tmp_path)
        held = [log.read(offset, 1000) for offset in generator.sample(range(60), 20)]
        for read in held:
            assert len(list(read.batches())) == 1
        del held, read
        assert offsets_of(log) == list(range(60))
        assert log.find_timestamp(START_MS + 7) == (14, START_MS + 7)
        assert open_logs(tmp_path) - before <= 3


def open_logs(path: Path) -> int:
    count = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            target = descriptor.readlink()
        except FileNotFoundError:
            continue
        count += path in target.parents and target.suffix == ".log"
    return count


def test_readers_see_only_complete_records_while_a_writer_rolls_and_deletes(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"retention_bytes": 4000, "file_delete_delay_ms": 0, "segment_bytes": 1000, **SMALL}
    failures: list[BaseException] = []
    done = threading.Event()
    reads = [0, 0]
    with LogBuilder(tmp_path, **settings) as built:
        log = built.log
        built.append(2)

        def read(which: int) -> None:
            generator = random.Random(which)
            while not done.is_set():
                try:
                    high_watermark = log.log_end_offset
                    offset = generator.randint(log.log_start_offset, high_watermark)
                    try:
                        result = log.read(offset, 5000, max_offset=high_watermark)
                    except OffsetOutOfRangeError:
                        assert offset < log.log_start_offset
                        continue
                    for batch in result.batches():
                        batch.check_crc()
                        assert batch.header.last_offset < high_watermark
                    if offset % 5 == 0:
                        log.find_timestamp(START_MS + offset * 10)
                    reads[which] += 1
                except BaseException as error:
                    failures.append(error)
                    return

        readers = [threading.Thread(target=read, args=(which,)) for which in range(2)]
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)  # so that threads switch at any line
        try:
            for reader in readers:
                reader.start()
            number = 0
            while number < 600 or (min(reads) <= 20 and not failures):
                built.append(2, codec=Codec.LZ4 if number % 3 else Codec.NONE)
                if number % 20 == 0:
                    built.apply_retention()
                    built.directory.turn()
                number += 1
        finally:
            done.set()
            for reader in readers:
                reader.join()
            sys.setswitchinterval(interval)
        assert failures == []
        assert log.log_start_offset > 100


def test_reader_in_the_middle_of_an_append_sees_nothing_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[int]] = []
    with LogBuilder(tmp_path, **SMALL) as built:
        built.append(2).append(2)

        def set_and_read(segment: ActiveSegment, name: str, value: object) -> None:
            object.__setattr__(segment, name, value)
            seen.append(batch_offsets(built.log, 0, max_offset=4))

        monkeypatch.setattr(ActiveSegment, "__setattr__", set_and_read)
        built.append(2)
        monkeypatch.undo()
        assert len(seen) >= 2
        assert all(offsets == [0, 2] for offsets in seen)


class DeletesBeforeOpening(Disk):
    """Deletes a sealed segment just before its file is opened."""

    log: Log | None = None

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        if self.log is not None and not writable:
            log, self.log = self.log, None
            log.advance_start(3)
            log.apply_retention()
        return super().open(path, create=create, writable=writable)


@pytest.mark.parametrize("indexes", ["there", "missing"])
@pytest.mark.parametrize("by", ["time", "offset"])
def test_segment_that_is_deleted_during_a_lookup_is_skipped(tmp_path: Path, indexes: str, by: str) -> None:
    disk = DeletesBeforeOpening()
    with LogBuilder(tmp_path, disk=disk, file_delete_delay_ms=0, retention_ms=-1, **SMALL) as built:
        built.append(3).roll().append(3).roll().append(3).reopen()
        if indexes == "missing":
            for path in built.files("index")[:2]:
                path.unlink()
        disk.log = built.log
        if by == "time":
            assert built.log.find_timestamp(START_MS) == (3, START_MS + 30)
        else:
            with pytest.raises(OffsetOutOfRangeError, match="which has 3 to 9"):
                built.log.read(0, 100)
        assert list(built.log.records()) == built.expected
        built.reopen()
        assert {path.name[:20] for path in built.files("")} & {f"{0:020d}"} == set()

"""An active and a sealed segment, each in a directory of its own."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from stratalog.clock import ManualClock
from stratalog.errors import CorruptBatchError, StorageError
from stratalog.records._framing import parse_headers
from stratalog.storage import LogConfig
from stratalog.storage.active_segment import ActiveSegment
from stratalog.storage.disk import Disk
from stratalog.storage.file_slice import FileSlice, LogFile
from stratalog.storage.open_segments import OpenSegments
from stratalog.storage.sealed_segment import SealedSegment
from stratalog.storage.segment import Segment
from tests.storage.hand_made import START_MS, batch_of, flip, write_segment

BASE = 1000
SMALL: dict[str, Any] = {"segment_index_bytes": 1024, "index_interval_bytes": 100}


def active_in(directory: Path, disk: Disk | None = None, *, keep: bool = False, **settings: Any) -> ActiveSegment:
    config = LogConfig(**{**SMALL, **settings})
    disk = disk or Disk()
    size = (directory / f"{BASE:020d}.log").stat().st_size if keep else None
    return ActiveSegment(disk, directory, BASE, config, START_MS, threading.RLock(), OpenSegments(10), size=size)


def append(segment: ActiveSegment, *timestamps: int) -> None:
    data = batch_of(*timestamps, base_offset=segment.next_offset)
    segment.append(data, len(data), parse_headers(data)[0])


def filled(directory: Path, batches: int = 8, disk: Disk | None = None) -> ActiveSegment:
    """Return a segment with batches of two records: 1000..1001, 1002..1003, ..."""
    segment = active_in(directory, disk)
    for number in range(batches):
        append(segment, START_MS + number * 2, START_MS + number * 2 + 1)
    return segment


def sealed_in(directory: Path, limit: int, disk: Disk | None = None) -> SealedSegment:
    size = (directory / f"{BASE:020d}.log").stat().st_size
    return SealedSegment(disk or Disk(), directory, BASE, size, limit, LogConfig(**SMALL), OpenSegments(10))


def located(segment: Segment, offset: int) -> int | None:
    header = segment.locate(offset)
    return None if header is None else header.base_offset


class TestActive:
    def test_every_offset_is_found_while_the_segment_grows(self, tmp_path: Path) -> None:
        segment = active_in(tmp_path)
        assert segment.locate(BASE) is None
        for number in range(12):
            append(segment, START_MS, START_MS)
            for offset in range(BASE, BASE + number * 2 + 2):
                assert located(segment, offset) == offset // 2 * 2
            assert segment.locate(BASE + number * 2 + 2) is None
        assert segment.offset_index.count > 5
        assert repr(segment) == f"ActiveSegment(base_offset=1000, size={segment.size})"

    def test_offset_before_the_base_is_found_at_the_first_batch(self, tmp_path: Path) -> None:
        assert located(filled(tmp_path), 5) == BASE

    @pytest.mark.parametrize("written", [0, 1, 70])
    def test_failed_append_leaves_the_segment_unchanged(self, tmp_path: Path, written: int) -> None:
        disk = ShortWrites()
        segment = filled(tmp_path, 3, disk)
        before = (segment.size, segment.next_offset, segment.offset_index.count, segment.max_timestamp)
        disk.written = written
        with pytest.raises(OSError, match="No space"):
            append(segment, START_MS + 100)
        disk.written = None
        assert (segment.size, segment.next_offset, segment.offset_index.count, segment.max_timestamp) == before
        assert segment.path(".log").stat().st_size == segment.size
        append(segment, START_MS + 200)
        assert located(segment, BASE + 6) == BASE + 6

    def test_adopted_segment_knows_its_end_and_its_timestamps(self, tmp_path: Path) -> None:
        segment = filled(tmp_path)
        segment.finish()
        again = active_in(tmp_path, keep=True)
        assert again.adopt()
        assert (again.next_offset, again.size, again.max_timestamp) == (BASE + 16, segment.size, START_MS + 15)
        append(again, START_MS)
        assert located(again, BASE + 16) == BASE + 16

    def test_indexes_that_do_not_fit_are_not_adopted(self, tmp_path: Path) -> None:
        filled(tmp_path).finish()
        flip(tmp_path / f"{BASE:020d}.index", 7, 1)
        flip(tmp_path / f"{BASE:020d}.index", 15, 1)
        flip(tmp_path / f"{BASE:020d}.index", -1, 1)
        assert not active_in(tmp_path, keep=True).adopt()

    @pytest.mark.parametrize("trusted", range(0, 18, 3))
    def test_recovered_segment_is_the_same_for_any_trusted_offset(self, tmp_path: Path, trusted: int) -> None:
        segment = filled(tmp_path)
        segment.index.sync()
        again = active_in(tmp_path, keep=True)
        start = again.recover(BASE + trusted, 2**63 - 1)
        assert 0 <= start <= max(0, segment.size * trusted // 16)
        assert (again.next_offset, again.size, again.max_timestamp) == (BASE + 16, segment.size, START_MS + 15)
        entries = [segment.offset_index.entry(slot) for slot in range(segment.offset_index.count)]
        assert [again.offset_index.entry(slot) for slot in range(again.offset_index.count)] == entries

    def test_corrupt_batch_ends_the_recovery_and_the_tail_can_be_truncated(self, tmp_path: Path) -> None:
        segment = filled(tmp_path)
        third = segment.locate(BASE + 6)
        assert third is not None
        flip(segment.path(".log"), third.position + 70)
        again = active_in(tmp_path, keep=True)
        with pytest.raises(CorruptBatchError) as caught:
            again.recover(0, 2**63 - 1)
        assert caught.value.position == again.size == third.position
        assert again.cut_tail() == segment.size - third.position
        assert (again.next_offset, again.path(".log").stat().st_size) == (BASE + 6, third.position)

    def test_empty_segment_never_rolls(self, tmp_path: Path) -> None:
        segment = active_in(tmp_path, segment_bytes=256, segment_ms=1)
        assert not segment.must_roll_before(10**6, BASE + 2**40, 2**60, ManualClock(2**60))

    def test_failed_sync_writes_the_pages_again_before_the_next(self, tmp_path: Path) -> None:
        disk = SyncFailsOnce()
        segment = filled(tmp_path, 3, disk)
        disk.fails = True
        with pytest.raises(OSError, match="Input/output"):
            segment.flush()
        disk.writes.clear()
        segment.flush()
        assert disk.writes == [(0, segment.size)]
        disk.writes.clear()
        segment.flush()
        assert disk.writes == []


class TestSealed:
    def test_files_are_opened_by_the_first_read(self, tmp_path: Path) -> None:
        filled(tmp_path).finish()
        disk = CountsOpens()
        segment = sealed_in(tmp_path, BASE + 16, disk)
        assert (segment.size > 0, segment.limit, disk.opens) == (True, BASE + 16, 0)
        assert located(segment, BASE + 5) == BASE + 4
        assert disk.opens == 2
        assert located(segment, BASE + 7) == BASE + 6
        assert disk.opens == 2
        segment.release()
        assert located(segment, BASE + 7) == BASE + 6
        assert disk.opens == 4

    def test_slice_keeps_its_file_when_the_segment_is_released(self, tmp_path: Path) -> None:
        filled(tmp_path).finish()
        segment = sealed_in(tmp_path, BASE + 16)
        file_slice = FileSlice(segment.file, 0, 100)
        segment.release()
        content = segment.path(".log").read_bytes()
        segment.path(".log").unlink()
        assert file_slice.read() == os.pread(file_slice.fileno(), 100, 0) == content[:100]

    def test_largest_timestamp_is_found_without_an_index_and_in_a_corrupt_log(self, tmp_path: Path) -> None:
        filled(tmp_path).finish()
        (tmp_path / f"{BASE:020d}.timeindex").unlink()
        assert sealed_in(tmp_path, BASE + 16).max_timestamp == START_MS + 15
        flip(tmp_path / f"{BASE:020d}.log", 16)
        (tmp_path / f"{BASE:020d}.timeindex").write_bytes(b"")
        assert sealed_in(tmp_path, BASE + 16).max_timestamp == -1

    def test_valid_range_is_checked_once_and_corrupt_batch_is_named_each_time(self, tmp_path: Path) -> None:
        filled(tmp_path).finish()
        segment = sealed_in(tmp_path, BASE + 16)
        damaged = segment.locate(BASE + 8)
        assert damaged is not None
        flip(segment.path(".log"), damaged.position + 70)
        segment.ensure_checked(0, damaged.position)
        assert segment.sound_from(0) == damaged.position
        for _ in range(2):
            with pytest.raises(CorruptBatchError) as caught:
                segment.ensure_checked(0, segment.size)
            assert caught.value.position == damaged.position
        behind = damaged.position + damaged.size
        segment.ensure_checked(behind, segment.size)
        assert segment.sound_from(behind) == segment.size

    def test_last_batch_that_was_cut_off_is_corrupt_for_each_read_past_it(self, tmp_path: Path) -> None:
        filled(tmp_path).finish()
        path = tmp_path / f"{BASE:020d}.log"
        os.truncate(path, path.stat().st_size - 1)
        segment = sealed_in(tmp_path, BASE + 16)
        with pytest.raises(CorruptBatchError, match="the last batch goes 1 bytes past the end"):
            segment.locate(BASE + 16)

    def test_offsets_at_the_limit_are_not_in_the_segment(self, tmp_path: Path) -> None:
        filled(tmp_path).finish()
        segment = sealed_in(tmp_path, BASE + 15)
        with pytest.raises(CorruptBatchError, match="are not between"):
            segment.ensure_checked(0, segment.size)

    def test_reader_keeps_the_old_indexes_during_a_rebuild(self, tmp_path: Path) -> None:
        filled(tmp_path).finish()
        segment = sealed_in(tmp_path, BASE + 16)
        old, entries = segment.offset_index, segment.offset_index.count
        before = segment.path(".index").read_bytes()
        segment.rebuild_indexes()
        assert segment.offset_index is not old
        assert old.floor(BASE + 9) is not None
        assert (segment.path(".index").read_bytes(), segment.offset_index.count) == (before, entries)
        assert sorted(path.suffix for path in tmp_path.iterdir()) == [".index", ".log", ".timeindex"]


class TestOpenSegments:
    def test_oldest_segment_is_released_above_the_limit(self) -> None:
        released: list[str] = []

        class Open:
            def __init__(self, name: str) -> None:
                self.name = name

            def release(self) -> None:
                released.append(self.name)

        table, segments = OpenSegments(2), [Open(name) for name in "abcd"]
        table.opened(segments[0])
        table.opened(segments[1])
        assert released == []
        table.opened(segments[2])
        assert released == ["a"]
        table.forget(segments[1])
        table.opened(segments[3])
        assert released == ["a"]


class TestLogFile:
    def test_descriptor_is_closed_with_the_last_reference(self, tmp_path: Path) -> None:
        file = LogFile(Disk(), write_segment(tmp_path, 0, b"content"))
        fd, file_slice = file.fileno(), FileSlice(file, 1, 3)
        del file
        assert file_slice.read() == b"ont"
        del file_slice
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)

    def test_missing_file_is_an_error_and_leaks_nothing(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            LogFile(Disk(), tmp_path / "none.log")

    def test_short_file_is_an_error(self, tmp_path: Path) -> None:
        file = LogFile(Disk(), write_segment(tmp_path, 0, b"content"))
        with pytest.raises(StorageError, match="10 bytes were expected at position 5, 2 are there"):
            FileSlice(file, 5, 10).read()


class ShortWrites(Disk):
    """Writes this many bytes of a log and then raises ENOSPC. With None, it writes all."""

    written: int | None = None

    def write(self, fd: int, data: Any, position: int) -> None:
        if self.written is None:
            return super().write(fd, data, position)
        super().write(fd, bytes(data)[: self.written], position)
        raise OSError(errno.ENOSPC, "No space left on device")


class SyncFailsOnce(Disk):
    def __init__(self) -> None:
        self.fails = False
        self.writes: list[tuple[int, int]] = []

    def sync(self, fd: int) -> None:
        if self.fails:
            self.fails = False
            raise OSError(errno.EIO, "Input/output error")
        super().sync(fd)

    def write(self, fd: int, data: Any, position: int) -> None:
        self.writes.append((position, position + len(data)))
        super().write(fd, data, position)


class CountsOpens(Disk):
    opens = 0

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        self.opens += 1
        return super().open(path, create=create, writable=writable)

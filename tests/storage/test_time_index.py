from __future__ import annotations

import json
from pathlib import Path

import pytest

from stratalog.records._framing import parse_headers
from stratalog.storage.disk import Disk
from stratalog.storage.index_writer import IndexWriter
from stratalog.storage.offset_index import OffsetIndex
from stratalog.storage.time_index import TimeEntry, TimeIndex
from tests.storage.hand_made import GOLDEN, batch_of

GOLDEN_INDEXES = sorted(path for path in GOLDEN.glob("*/*.timeindex") if path.stat().st_size)


def open_to_grow(path: Path, base: int = 0, room: int = 120, *, keep: bool = True) -> TimeIndex:
    index = TimeIndex.open_to_grow(Disk(), path, base, room, keep=keep)
    index.reserve(0)
    return index


def entries_of(index: TimeIndex) -> list[TimeEntry]:
    return [index.entry(slot) for slot in range(index.count)]


def writer_in(directory: Path, base: int = 0, interval: int = 0, room: int = 1024) -> IndexWriter:
    return IndexWriter(
        OffsetIndex.open_to_grow(Disk(), directory / "index", base, room, keep=False),
        TimeIndex.open_to_grow(Disk(), directory / "timeindex", base, room, keep=False),
        interval,
    )


def add(writer: IndexWriter, *batches: bytearray) -> None:
    data = b"".join(batches)
    headers, _, _ = parse_headers(data)
    writer.reserve(len(headers))
    writer.add(headers, 0)


@pytest.mark.parametrize("path", GOLDEN_INDEXES, ids=lambda path: f"{path.parent.name}-{path.stem.lstrip('0')}")
def test_kafkas_time_index_is_read_and_written_again(tmp_path: Path, path: Path) -> None:
    base = int(path.stem)
    kafkas = TimeIndex.open_sealed(Disk(), path, base)
    expected = json.loads((path.parent / "expected.json").read_text())["timeindex"][path.name]
    assert entries_of(kafkas) == [TimeEntry(timestamp, offset) for timestamp, offset in expected]
    ours = open_to_grow(tmp_path / path.name, base, 1024)
    for entry in entries_of(kafkas):
        ours.append(*entry)
    ours.trim()
    assert (tmp_path / path.name).read_bytes() == path.read_bytes()


def test_floor_is_the_last_entry_not_newer(tmp_path: Path) -> None:
    index = open_to_grow(tmp_path / "timeindex", base=100)
    assert (index.floor(2**62), index.last) == (None, None)
    for timestamp, offset in ((1000, 104), (2000, 109), (3000, 110)):
        index.append(timestamp, offset)
    assert index.floor(999) is None
    assert index.floor(1000) == TimeEntry(1000, 104)
    assert index.floor(2999) == TimeEntry(2000, 109)
    assert index.floor(2**62) == index.last == TimeEntry(3000, 110)


@pytest.mark.parametrize(("offset", "left"), [(0, 0), (104, 0), (105, 1), (109, 1), (110, 2)])
def test_truncation_drops_entries_from_the_offset_on(tmp_path: Path, offset: int, left: int) -> None:
    index = open_to_grow(tmp_path / "timeindex", base=100)
    index.append(1000, 104)
    index.append(2000, 109)
    index.truncate(offset)
    assert index.count == left


def test_reopened_index_stops_at_the_zeros(tmp_path: Path) -> None:
    path = tmp_path / "timeindex"
    open_to_grow(path, base=100, room=125).append(1000, 104)
    assert path.stat().st_size == 120
    assert entries_of(open_to_grow(path, base=100)) == [TimeEntry(1000, 104)]


class TestRuleOfEntries:
    """When IndexWriter adds an entry, and which one."""

    def test_first_batch_has_no_entry_however_large(self, tmp_path: Path) -> None:
        writer = writer_in(tmp_path)
        add(writer, batch_of(5, size=9000))
        assert (writer.offsets.count, writer.times.count, writer.max_timestamp) == (0, 0, 5)

    @pytest.mark.parametrize(("interval_less", "entries"), [(0, 0), (1, 1)])
    def test_interval_must_be_exceeded(self, tmp_path: Path, interval_less: int, entries: int) -> None:
        first, second = batch_of(5), batch_of(6, base_offset=1)
        writer = writer_in(tmp_path, interval=len(first) - interval_less)
        add(writer, first, second)
        assert writer.offsets.count == entries

    def test_entry_has_the_last_offset_and_the_position_of_its_batch(self, tmp_path: Path) -> None:
        first, second = batch_of(5, 6), batch_of(7, 8, 9, base_offset=2)
        writer = writer_in(tmp_path)
        add(writer, first, second)
        assert writer.offsets.last == (4, len(first))
        assert writer.times.last == (9, 4)

    def test_time_entry_is_of_the_batch_with_the_largest_timestamp(self, tmp_path: Path) -> None:
        writer = writer_in(tmp_path)
        add(writer, batch_of(5), batch_of(9, base_offset=1), batch_of(9, base_offset=2), batch_of(3, base_offset=3))
        assert writer.offsets.count == 3
        assert entries_of(writer.times) == [(9, 1)]

    def test_time_entry_is_of_the_first_batch_with_an_equal_timestamp(self, tmp_path: Path) -> None:
        writer = writer_in(tmp_path, interval=len(batch_of(9)))
        add(writer, batch_of(9), batch_of(9, base_offset=1), batch_of(9, base_offset=2))
        assert writer.offsets.last == (2, len(batch_of(9)) * 2)
        assert entries_of(writer.times) == [(9, 0)]

    def test_records_without_timestamps_get_offset_entries_only(self, tmp_path: Path) -> None:
        writer = writer_in(tmp_path)
        add(writer, *(batch_of(-1, base_offset=number) for number in range(4)))
        writer.note_max_timestamp()
        assert (writer.offsets.count, writer.times.count, writer.max_timestamp) == (3, 0, -1)

    def test_sealing_adds_the_maximum_once(self, tmp_path: Path) -> None:
        writer = writer_in(tmp_path, interval=4096)
        add(writer, batch_of(5), batch_of(4, base_offset=1))
        writer.note_max_timestamp()
        writer.note_max_timestamp()
        assert entries_of(writer.times) == [(5, 0)]

    def test_full_indexes_accept_only_the_last_entry(self, tmp_path: Path) -> None:
        writer = writer_in(tmp_path, room=64)
        add(writer, *(batch_of(number + 1, base_offset=number) for number in range(20)))
        assert writer.is_full
        assert (writer.offsets.count, writer.times.count) == (4, 4)  # the time index has fewer slots: 64 // 12 - 1
        writer.note_max_timestamp()
        assert writer.times.last == (20, 19)

    def test_truncated_writer_forgets_the_maximum_too(self, tmp_path: Path) -> None:
        writer = writer_in(tmp_path)
        add(writer, batch_of(5), batch_of(6, base_offset=1), batch_of(9, base_offset=2))
        writer.truncate(2)
        assert (writer.max_timestamp, writer.max_timestamp_offset) == (6, 1)
        writer.clear()
        assert (writer.max_timestamp, writer.offsets.count, writer.times.count) == (-1, 0, 0)

    def test_batch_too_far_from_the_base_gets_no_entry(self, tmp_path: Path) -> None:
        """An entry has 31 bits for the distance. A lookup walks to later batches instead."""
        writer = writer_in(tmp_path)
        add(writer, batch_of(5), batch_of(6, base_offset=2**31 - 1), batch_of(7, base_offset=2**31))
        add(writer, batch_of(8, base_offset=2**40))
        writer.note_max_timestamp()
        assert entries_of(writer.times) == [(6, 2**31 - 1)]
        assert writer.offsets.last == (2**31 - 1, len(batch_of(5)))

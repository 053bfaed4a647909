from __future__ import annotations

import json
from pathlib import Path

import pytest

from stratalog.inspect.page_cache import residency
from stratalog.storage.disk import Disk
from stratalog.storage.offset_index import OffsetEntry, OffsetIndex
from tests.storage.hand_made import GOLDEN

GOLDEN_INDEXES = sorted(path for path in GOLDEN.glob("*/*.index") if path.stat().st_size)


def open_to_grow(path: Path, base: int = 0, room: int = 80, *, keep: bool = True) -> OffsetIndex:
    index = OffsetIndex.open_to_grow(Disk(), path, base, room, keep=keep)
    index.reserve(0)
    return index


def entries_of(index: OffsetIndex) -> list[OffsetEntry]:
    return [index.entry(slot) for slot in range(index.count)]


@pytest.mark.parametrize("path", GOLDEN_INDEXES, ids=lambda path: f"{path.parent.name}-{path.stem.lstrip('0')}")
def test_kafkas_index_is_read_and_written_again(tmp_path: Path, path: Path) -> None:
    base = int(path.stem)
    kafkas = OffsetIndex.open_sealed(Disk(), path, base)
    expected = json.loads((path.parent / "expected.json").read_text())["index"][path.name]
    assert entries_of(kafkas) == [OffsetEntry(offset, position) for offset, position in expected]
    ours = open_to_grow(tmp_path / path.name, base, 1024)
    for entry in entries_of(kafkas):
        ours.append(*entry)
    ours.trim()
    assert (tmp_path / path.name).read_bytes() == path.read_bytes()


def test_growing_index_is_preallocated_in_complete_entries_and_trimmed_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000100.index"
    index = open_to_grow(path, base=100, room=83)
    assert path.stat().st_size == 80
    index.append(105, 4096)
    index.append(110, 9000)
    assert index.size == 16
    index.trim()
    assert path.read_bytes() == bytes.fromhex("00000005 00001000 0000000a 00002328")
    assert index.floor(107) == OffsetEntry(105, 4096)  # a reader may still use the old mapping


def test_unused_room_takes_no_memory(tmp_path: Path) -> None:
    """Otherwise the kernel's read-ahead would fill the page cache with the zeros of every index."""
    path = tmp_path / "index"
    index = open_to_grow(path, room=1024 * 1024)
    index.reserve(1)
    index.append(5, 4096)
    assert residency(path).resident_pages <= 1
    index.sync()
    index.trim()
    again = open_to_grow(path, room=1024 * 1024)
    again.append(10, 9000)
    assert entries_of(again) == [OffsetEntry(5, 4096), OffsetEntry(10, 9000)]
    assert residency(path).resident_pages <= 1


def test_floor_is_the_last_entry_not_above(tmp_path: Path) -> None:
    index = open_to_grow(tmp_path / "index", base=100)
    assert (index.floor(99), index.floor(10**12), index.last) == (None, None, None)
    for offset, position in ((105, 10), (110, 20), (115, 30)):
        index.append(offset, position)
    assert index.floor(104) is None
    assert index.floor(105) == OffsetEntry(105, 10)
    assert index.floor(114) == OffsetEntry(110, 20)
    assert index.floor(10**12) == index.last == OffsetEntry(115, 30)


@pytest.mark.parametrize(("offset", "left"), [(0, 0), (105, 0), (106, 1), (110, 1), (111, 2), (10**12, 2)])
def test_truncation_drops_offset_entries_from_the_offset_on(tmp_path: Path, offset: int, left: int) -> None:
    index = open_to_grow(tmp_path / "index", base=100)
    index.append(105, 10)
    index.append(110, 20)
    index.truncate(offset)
    assert index.count == left


def test_reopened_index_keeps_its_entries_and_stops_at_the_zeros(tmp_path: Path) -> None:
    path = tmp_path / "index"
    index = open_to_grow(path, base=100)
    index.append(105, 10)
    index.append(110, 20)
    index.sync()
    again = open_to_grow(path, base=100)  # not trimmed, as after a crash
    assert entries_of(again) == [OffsetEntry(105, 10), OffsetEntry(110, 20)]


def test_index_opened_without_keep_has_no_entries(tmp_path: Path) -> None:
    path = tmp_path / "index"
    index = open_to_grow(path)
    index.append(5, 10)
    again = open_to_grow(path, keep=False)
    assert again.count == 0
    assert path.read_bytes() == bytes(80)


def test_incomplete_entry_at_the_end_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "index"
    path.write_bytes(bytes.fromhex("00000005 00001000 00000007 00"))
    assert entries_of(OffsetIndex.open_sealed(Disk(), path, 0)) == [OffsetEntry(5, 4096)]
    assert entries_of(open_to_grow(path)) == [OffsetEntry(5, 4096)]


def test_index_with_more_entries_than_its_room_keeps_the_first(tmp_path: Path) -> None:
    path = tmp_path / "index"
    index = open_to_grow(path, room=80)
    for number in range(1, 10):
        index.append(number, number * 10)
    smaller = open_to_grow(path, room=24)
    assert smaller.count == 3
    assert smaller.is_full


def test_full_index_has_one_free_slot(tmp_path: Path) -> None:
    index = open_to_grow(tmp_path / "index", room=24)
    index.append(1, 1)
    assert not index.is_full
    index.append(2, 2)
    assert index.is_full


def test_empty_sealed_index_has_no_floor(tmp_path: Path) -> None:
    (tmp_path / "index").write_bytes(b"")
    index = OffsetIndex.open_sealed(Disk(), tmp_path / "index", 7)
    assert (index.count, index.last, index.floor(100)) == (0, None, None)
    index.sync()


def test_missing_sealed_index_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        OffsetIndex.open_sealed(Disk(), tmp_path / "none.index", 0)


def test_blocks_are_allocated_before_stores(tmp_path: Path) -> None:
    path = tmp_path / "index"
    index = OffsetIndex.open_to_grow(Disk(), path, 0, 1024 * 1024, keep=True)
    assert not path.exists()
    assert index.reserve(10) >= 10
    assert path.stat().st_blocks * 512 >= 80
    assert path.stat().st_size == 1024 * 1024

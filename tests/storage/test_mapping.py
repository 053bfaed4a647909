from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.storage._mapping import Mapping, start_writeback


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, 96)
    yield fd
    os.close(fd)


def mapping_of(path: Path, content: bytes) -> Mapping:
    path.write_bytes(content)
    fd = os.open(path, os.O_RDONLY)
    try:
        return Mapping(fd, len(content), False)
    finally:
        os.close(fd)


def offset_entries(*entries: tuple[int, int]) -> bytes:
    return b"".join(struct.pack(">ii", *entry) for entry in entries)


def time_entries(*entries: tuple[int, int]) -> bytes:
    return b"".join(struct.pack(">qi", *entry) for entry in entries)


def test_stores_reach_the_file_big_endian(file: int) -> None:
    mapping = Mapping(file, 96, True)
    mapping.store_offset_entry(1, 7, 4097)
    mapping.store_time_entry(7, 1_700_000_000_000, 9)
    mapping.sync()
    assert os.pread(file, 8, 8) == struct.pack(">ii", 7, 4097)
    assert os.pread(file, 12, 84) == struct.pack(">qi", 1_700_000_000_000, 9)
    assert (mapping.offset_entry(1), mapping.time_entry(7)) == ((7, 4097), (1_700_000_000_000, 9))


def test_mapping_outlives_its_descriptor(tmp_path: Path) -> None:
    mapping = mapping_of(tmp_path / "index", offset_entries((3, 5)))
    assert mapping.offset_entry(0) == (3, 5)
    assert bytes(memoryview(mapping)) == offset_entries((3, 5))
    assert len(mapping) == 8


def test_read_only_mapping_exports_no_writable_buffer(tmp_path: Path) -> None:
    view = memoryview(mapping_of(tmp_path / "index", bytes(8)))
    assert view.readonly
    with pytest.raises(TypeError):
        view[0] = 1


def test_store_into_a_read_only_mapping_is_refused(tmp_path: Path) -> None:
    mapping = mapping_of(tmp_path / "index", bytes(24))
    for store in (mapping.store_offset_entry, mapping.store_time_entry):
        with pytest.raises(ValueError, match="read-only"):
            store(0, 1, 1)
    assert bytes(memoryview(mapping)) == bytes(24)


def test_buffer_keeps_the_mapping_alive(tmp_path: Path) -> None:
    view = memoryview(mapping_of(tmp_path / "index", b"still here"))
    assert bytes(view) == b"still here"


@pytest.mark.parametrize("slot", [-1, 12, 2**60, 2**61, 2**62])
def test_slot_outside_the_mapping_is_refused(file: int, slot: int) -> None:
    mapping = Mapping(file, 96, True)
    calls: list[Callable[[], object]] = [
        lambda: mapping.store_offset_entry(slot, 1, 1),
        lambda: mapping.offset_entry(slot),
        lambda: mapping.store_time_entry(slot, 1, 1),
        lambda: mapping.time_entry(slot),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="outside the mapping of 96 bytes"):
            call()


@pytest.mark.parametrize("count", [-1, 13, 2**60, 2**61, 2**62])
def test_search_beyond_the_mapping_is_refused(file: int, count: int) -> None:
    mapping = Mapping(file, 96, True)
    calls: list[Callable[[], object]] = [
        lambda: mapping.floor_offset(count, 1),
        lambda: mapping.floor_time(count, 1),
        lambda: mapping.rising_offset_entries(count),
        lambda: mapping.rising_time_entries(count),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="outside the mapping of 96 bytes"):
            call()


@pytest.mark.parametrize("length", [0, -1])
def test_empty_mapping_is_refused(file: int, length: int) -> None:
    with pytest.raises(ValueError, match=f"not {length}"):
        Mapping(file, length, True)


def test_error_of_the_system_call_is_raised(tmp_path: Path) -> None:
    read_only = os.open(tmp_path / "read-only", os.O_RDONLY | os.O_CREAT)
    try:
        with pytest.raises(PermissionError):
            Mapping(read_only, 8, True)
    finally:
        os.close(read_only)
    with pytest.raises(OSError, match="Bad file descriptor"):
        start_writeback(-1, 0, 1)


rising = st.lists(st.integers(0, 2**31 - 1), unique=True, max_size=40).map(sorted)


@given(offsets=rising, target=st.integers(-(2**40), 2**40))
def test_floor_of_an_offset_is_the_last_not_above_it(
    tmp_path_factory: pytest.TempPathFactory, offsets: list[int], target: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "offsets.index"
    mapping = mapping_of(path, offset_entries(*((offset, slot) for slot, offset in enumerate(offsets))) + bytes(8))
    expected = max((slot for slot, offset in enumerate(offsets) if offset <= target), default=-1)
    assert mapping.floor_offset(len(offsets), target) == expected


@given(timestamps=rising, target=st.integers(-(2**40), 2**40))
def test_floor_of_a_time_is_the_last_not_above_it(
    tmp_path_factory: pytest.TempPathFactory, timestamps: list[int], target: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "times.timeindex"
    mapping = mapping_of(path, time_entries(*((time, slot) for slot, time in enumerate(timestamps))) + bytes(12))
    expected = max((slot for slot, time in enumerate(timestamps) if time <= target), default=-1)
    assert mapping.floor_time(len(timestamps), target) == expected


@pytest.mark.parametrize(
    ("entries", "rising"),
    [
        ([(0, 0)], 1),
        ([(1, 0), (2, 8), (0, 0)], 2),
        ([(1, 9), (2, 9)], 1),
        ([(5, 9), (5, 10)], 1),
        ([(5, 9), (4, 10), (6, 11)], 1),
        ([(-1, 0)], 0),
        ([(3, -1)], 0),
        ([(2**31 - 1, 2**31 - 1)], 1),
    ],
)
def test_offset_entries_are_counted_while_they_rise(
    tmp_path: Path, entries: list[tuple[int, int]], rising: int
) -> None:
    assert mapping_of(tmp_path / "index", offset_entries(*entries)).rising_offset_entries(len(entries)) == rising


@pytest.mark.parametrize(
    ("entries", "rising"),
    [
        ([(0, 0)], 1),
        ([(100, 3), (200, 7), (0, 0)], 2),
        ([(100, 3), (100, 7)], 1),
        ([(100, 3), (200, 2)], 1),
        ([(-1, 0)], 0),
        ([(2**62, 2**31 - 1)], 1),
    ],
)
def test_time_entries_are_counted_while_they_rise(tmp_path: Path, entries: list[tuple[int, int]], rising: int) -> None:
    assert mapping_of(tmp_path / "timeindex", time_entries(*entries)).rising_time_entries(len(entries)) == rising

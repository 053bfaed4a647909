from __future__ import annotations

import struct
from pathlib import Path

import pytest

from stratalog.errors import StorageError
from stratalog.inspect.index_file import LARGEST_INDEX, IndexEntry, IndexFile

NAME = "00000000000000000100"


def index_of(path: Path, content: bytes) -> IndexFile:
    path.write_bytes(content)
    return IndexFile(path)


def offsets(*entries: tuple[int, int]) -> bytes:
    return b"".join(struct.pack(">ii", *entry) for entry in entries)


def test_offsets_are_absolute(tmp_path: Path) -> None:
    index = index_of(tmp_path / f"{NAME}.index", offsets((5, 70), (9, 140)))
    assert list(index) == [IndexEntry(0, 105, 70), IndexEntry(1, 109, 140)]
    assert index.entry(1) == IndexEntry(1, 109, 140)
    index.close()


def test_zeros_of_a_preallocated_index_are_not_entries(tmp_path: Path) -> None:
    index = index_of(tmp_path / f"{NAME}.index", offsets((5, 0x100)) + bytes(200_000))
    assert (index.count, index.is_preallocated) == (1, True)
    index.close()


def test_zero_entry_in_the_middle_counts(tmp_path: Path) -> None:
    index = index_of(tmp_path / f"{NAME}.index", offsets((5, 70), (0, 0), (9, 140)))
    assert index.count == 3
    index.close()


def test_time_index_with_timestamp_zero_has_its_entry(tmp_path: Path) -> None:
    index = index_of(tmp_path / f"{NAME}.timeindex", bytes(12))
    assert list(index) == [IndexEntry(0, 0, 100)]
    index.close()


def test_bytes_after_the_last_complete_entry_are_left_over(tmp_path: Path) -> None:
    index = index_of(tmp_path / f"{NAME}.timeindex", struct.pack(">qi", 77, 3) + b"\x01\x02")
    assert (index.count, index.left_over) == (1, 2)
    index.close()


def test_base_offset_of_a_deleted_index_is_known(tmp_path: Path) -> None:
    index = index_of(tmp_path / f"{NAME}.timeindex.deleted", struct.pack(">qi", 77, 3))
    assert list(index) == [IndexEntry(0, 77, 103)]
    index.close()


def test_file_larger_than_any_index_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / f"{NAME}.index"
    with path.open("wb") as file:
        file.truncate(LARGEST_INDEX + 1)
    with pytest.raises(StorageError, match="more than the limit of an index"):
        IndexFile(path)

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import CorruptBatchError
from stratalog.storage.disk import Disk
from stratalog.storage.file_slice import LogFile
from stratalog.storage.scan import check, scan
from tests.storage.hand_made import batch_of, flip, write_segment

NO_LIMIT = 2**63 - 1


def log_of(directory: Path, *batches: bytes | bytearray) -> LogFile:
    return LogFile(Disk(), write_segment(directory, 0, *batches))


def chain(count: int, size: int = 8) -> list[bytearray]:
    return [batch_of(number, number, base_offset=number * 2, size=size) for number in range(count)]


def scanned(file: LogFile, position: int = 0, chunk_size: int = 10**6) -> list[tuple[int, int]]:
    """Return the base offset and the position in the file of every batch."""
    end = file.path.stat().st_size
    return [
        (header.base_offset, chunk.origin + header.position)
        for chunk in scan(file, position, end, chunk_size)
        for header in chunk.headers
    ]


def checked(file: LogFile, previous: int = -1, limit: int = NO_LIMIT, **options: Any) -> tuple[list[int], str, int]:
    """Return the base offsets of the valid batches, and the error after them with its position."""
    good: list[int] = []
    try:
        for chunk in check(file, 0, file.path.stat().st_size, previous=previous, limit=limit, **options):
            good += [header.base_offset for header in chunk.headers]
    except CorruptBatchError as error:
        assert error.file == str(file.path)
        return good, error.reason, error.position or 0
    return good, "", -1


@given(sizes=st.lists(st.integers(0, 400), min_size=1, max_size=8), chunk_size=st.integers(61, 1500))
def test_all_batches_are_scanned_with_any_chunk_size(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], chunk_size: int
) -> None:
    batches = [batch_of(1, base_offset=number, size=size) for number, size in enumerate(sizes)]
    file = log_of(tmp_path_factory.getbasetemp() / "scan", *batches)
    expected = [(number, sum(map(len, batches[:number]))) for number in range(len(batches))]
    assert scanned(file, 0, chunk_size) == expected
    assert scanned(file, len(batches[0]), chunk_size) == expected[1:]


def test_chunks_have_complete_batches_and_their_end(tmp_path: Path) -> None:
    batches = chain(5)
    file = log_of(tmp_path, *batches)
    chunks = list(scan(file, 0, file.path.stat().st_size, len(batches[0]) * 2 + 5))
    assert [len(chunk.headers) for chunk in chunks] == [2, 2, 1]
    assert [chunk.end for chunk in chunks] == [len(batches[0]) * count for count in (2, 4, 5)]


@pytest.mark.parametrize("chunk_size", [61, 200, 10**6])
@pytest.mark.parametrize(
    ("tail", "complaint"),
    [
        (b"\0" * 5, "5 bytes at the end are less than a batch header"),
        (b"\0" * 80, "batch length is 0"),
        (bytes(batch_of(1, base_offset=6))[:60], "60 bytes at the end are less than a batch header"),
        (bytes(batch_of(1, base_offset=6))[:-1], "batch at offset 6 claims"),
        (struct.pack(">qi", 6, 2**31 - 1) + bytes(batch_of(1))[12:], "claims 2147483659 bytes"),
        (bytes(16) + b"\x07" + bytes(60), "batch length is 0"),
        (struct.pack(">qi", 6, 90) + b"\0" * 4 + b"\x07" + bytes(85), "magic is 7"),
    ],
)
def test_incomplete_batch_is_an_error_after_all_complete_ones(
    tmp_path: Path, tail: bytes, complaint: str, chunk_size: int
) -> None:
    good = chain(3)
    file = log_of(tmp_path, *good, tail)
    seen: list[int] = []
    with pytest.raises(CorruptBatchError, match=complaint) as caught:
        for chunk in scan(file, 0, file.path.stat().st_size, chunk_size):
            seen += [header.base_offset for header in chunk.headers]
    assert seen == [0, 2, 4]
    assert (caught.value.file, caught.value.position) == (str(file.path), sum(map(len, good)))


def test_valid_file_has_no_error(tmp_path: Path) -> None:
    assert checked(log_of(tmp_path, *chain(4))) == ([0, 2, 4, 6], "", -1)
    assert checked(log_of(tmp_path, *chain(4)), chunk_size=100) == ([0, 2, 4, 6], "", -1)


def test_wrong_checksum_is_found_unless_checksums_are_off(tmp_path: Path) -> None:
    file = log_of(tmp_path, *chain(4))
    size = len(chain(1)[0])
    flip(file.path, size * 2 + 70)
    good, complaint, position = checked(file)
    assert (good, position) == ([0, 2], size * 2)
    assert "checksum of the batch at offset 4" in complaint
    assert checked(file, checksums=False)[0] == [0, 2, 4, 6]


@pytest.mark.parametrize(
    ("offsets", "previous", "limit", "good"),
    [
        ([0, 2, 4], -1, 6, [0, 2, 4]),
        ([0, 2, 4], -1, 5, [0, 2]),
        ([0, 2, 4], 0, NO_LIMIT, []),
        ([0, 2, 3], -1, NO_LIMIT, [0, 2]),
        ([0, 2, 2], -1, NO_LIMIT, [0, 2]),
        ([0, 10, 20], -1, NO_LIMIT, [0, 10, 20]),
        ([5, 7, 9], 4, 11, [5, 7, 9]),
        ([0, 50, 4, 6], -1, NO_LIMIT, [0]),  # the batch that leaves the gap is the corrupt one
    ],
)
def test_offsets_must_rise_within_their_limits(
    tmp_path: Path, offsets: list[int], previous: int, limit: int, good: list[int]
) -> None:
    file = log_of(tmp_path, *(batch_of(1, 2, base_offset=offset) for offset in offsets))
    for chunk_size in (100, 10**6):
        valid, complaint, _ = checked(file, previous, limit, chunk_size=chunk_size)
        assert valid == good
        assert bool(complaint) == (good != offsets)


def test_empty_range_has_no_batches(tmp_path: Path) -> None:
    assert list(scan(log_of(tmp_path), 0, 0)) == []

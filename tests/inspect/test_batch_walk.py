from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from stratalog.errors import DecompressedTooLargeError
from stratalog.inspect import batch_walk
from stratalog.inspect.batch_walk import BatchWalk
from stratalog.inspect.read_only_file import ReadOnlyFile
from stratalog.records.builder import build_batch
from stratalog.records.format import BATCH_LENGTH_POSITION
from tests.inspect.written_logs import record


def file_of(path: Path, *parts: bytes | bytearray) -> Path:
    path.write_bytes(b"".join(parts))
    return path


def batch(base: int, count: int = 3, size: int = 40) -> bytearray:
    return build_batch([record(base + at, size=size) for at in range(count)], base_offset=base)


def test_walk_yields_all_batches_to_the_end(tmp_path: Path) -> None:
    with ReadOnlyFile(file_of(tmp_path / "a", batch(0), batch(3), batch(6))) as file:
        walk = BatchWalk(file)
        assert [on_disk.header.base_offset for on_disk in walk] == [0, 3, 6]
        assert walk.damage is None
        assert walk.position == file.size


@pytest.mark.parametrize("chunk_size", [61, 100, 1000])
def test_batches_larger_than_the_chunk_are_read_completely(tmp_path: Path, chunk_size: int) -> None:
    with ReadOnlyFile(file_of(tmp_path / "a", batch(0), batch(3, 20), batch(23))) as file:
        walk = BatchWalk(file, chunk_size=chunk_size)
        walked = [(on_disk.header.base_offset, on_disk.crc_matches(), len(on_disk.records())) for on_disk in walk]
    assert walked == [(0, True, 3), (3, True, 20), (23, True, 3)]


@pytest.mark.parametrize("kept", [1, 11, 12, 16, 17, 60, 61, 62])
def test_torn_last_batch_is_distinguished_from_garbage(tmp_path: Path, kept: int) -> None:
    whole, torn = batch(0), batch(3)[:kept]
    with ReadOnlyFile(file_of(tmp_path / "a", whole, torn)) as file:
        walk = BatchWalk(file)
        assert len(list(walk)) == 1
    assert walk.damage is not None
    assert (walk.damage.position, walk.damage.bytes_left, walk.damage.is_torn) == (len(whole), kept, True)


@pytest.mark.parametrize("garbage", [bytes(100), b"\xff" * 100, b"\x00" * 8 + b"\x00\x00\x00\x50" + b"\x09" * 88])
def test_garbage_after_a_batch_is_damage_and_not_torn(tmp_path: Path, garbage: bytes) -> None:
    whole = batch(0)
    with ReadOnlyFile(file_of(tmp_path / "a", whole, garbage)) as file:
        walk = BatchWalk(file)
        assert len(list(walk)) == 1
    assert walk.damage is not None
    assert (walk.damage.position, walk.damage.bytes_left, walk.damage.is_torn) == (len(whole), 100, False)


def test_wrong_checksum_does_not_end_the_walk(tmp_path: Path) -> None:
    spoiled = batch(0)
    spoiled[-1] ^= 1
    with ReadOnlyFile(file_of(tmp_path / "a", spoiled, batch(3))) as file:
        assert [on_disk.crc_matches() for on_disk in BatchWalk(file)] == [False, True]


def test_length_of_two_gigabytes_costs_no_memory(tmp_path: Path) -> None:
    header = batch(0)
    header[BATCH_LENGTH_POSITION : BATCH_LENGTH_POSITION + 4] = (2**31 - 1).to_bytes(4, "big")
    path = file_of(tmp_path / "a", header)
    with path.open("r+b") as file:
        file.truncate(2**31 + 11 if path.stat().st_size else 0)  # sparse: the file is that long
    tracemalloc.start()
    try:
        with ReadOnlyFile(path) as file_read:
            (on_disk,) = BatchWalk(file_read)
            with pytest.raises(DecompressedTooLargeError, match="2147483659 bytes"):
                on_disk.records()
        assert tracemalloc.get_traced_memory()[1] < 4 * batch_walk.CHUNK
    finally:
        tracemalloc.stop()


def test_checksum_of_a_huge_batch_is_computed_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_walk, "LARGEST_HELD", 1000)
    monkeypatch.setattr(batch_walk, "CHUNK", 500)
    spoiled = batch(3, size=4000)
    spoiled[-1] ^= 1
    with ReadOnlyFile(file_of(tmp_path / "a", batch(0, size=4000), spoiled)) as file:
        assert [on_disk.crc_matches() for on_disk in BatchWalk(file, chunk_size=500)] == [True, False]

from __future__ import annotations

import pytest

from stratalog.errors import CorruptBatchError, DecompressedTooLargeError, UnsupportedMagicError
from stratalog.records.batch import Batch, batches
from stratalog.records.builder import build_batch
from stratalog.records.format import Codec
from stratalog.records.legacy import build_message_set
from stratalog.records.reader import records_of
from tests.records.strategies import numbered, record


def test_batches_are_views_not_copies() -> None:
    data = build_batch(numbered(2)) + build_batch(numbered(3))
    first, second = batches(data)
    data[0:8] = (77).to_bytes(8, "big")
    assert bytes(first.data[:8]) == (77).to_bytes(8, "big")
    assert first.data.nbytes + second.data.nbytes == len(data)
    assert second.header.position == first.header.size


def test_batch_that_is_cut_off_is_left_out() -> None:
    data = build_batch(numbered(2)) + build_batch(numbered(3))
    for length in range(len(data) - 1, len(build_batch(numbered(2))) - 1, -7):
        assert [batch.header.record_count for batch in batches(data[:length])] == [2]
    assert list(batches(b"")) == []


def test_bytes_that_are_not_a_batch_raise_after_the_batches_before_them() -> None:
    good = build_batch(numbered(2))
    walk = batches(good + bytes(70))
    assert next(walk).header.record_count == 2
    with pytest.raises(CorruptBatchError) as caught:
        next(walk)
    assert caught.value.position == len(good)
    good[16] = 9
    with pytest.raises(UnsupportedMagicError):
        next(batches(good))


@pytest.mark.parametrize("codec", list(Codec))
def test_payload_is_the_same_for_every_codec(codec: Codec) -> None:
    plain = next(batches(build_batch(numbered(4))))
    packed = next(batches(build_batch(numbered(4), codec=codec)))
    assert bytes(memoryview(packed.payload())) == bytes(memoryview(plain.payload()))


def test_decompressed_size_is_limited() -> None:
    batch = next(batches(build_batch([record(bytes(100_000))], codec=Codec.ZSTD)))
    with pytest.raises(DecompressedTooLargeError):
        batch.payload(max_decompressed=50_000)


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_checksum_is_checked_for_every_magic(magic: int) -> None:
    data = build_batch([record()]) if magic == 2 else build_message_set([record()], magic=magic)
    batch = next(batches(data))
    assert batch.crc_matches()
    batch.check_crc()
    data[-1] ^= 1
    assert not batch.crc_matches()
    with pytest.raises(CorruptBatchError, match=f"batch at offset 0 .* {batch.header.crc:#010x}"):
        batch.check_crc()


def test_batch_in_the_middle_of_a_buffer_reads_its_own_records() -> None:
    first, second = build_batch(numbered(2)), build_batch([record(b"second")], base_offset=9)
    _, batch, _ = batches(first + second + first)
    assert [(each.offset, each.value) for each in records_of(batch)] == [(9, b"second")]
    assert repr(batch).startswith("Batch(BatchHeader(position=")
    assert isinstance(batch, Batch)

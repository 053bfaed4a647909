"""Reading buffers of several batches, of any magic, with all kinds of damage."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c

from stratalog.errors import (
    CorruptBatchError,
    DecompressedTooLargeError,
    UnsupportedCodecError,
    UnsupportedMagicError,
)
from stratalog.records import format
from stratalog.records._records import Record
from stratalog.records.batch import batches
from stratalog.records.builder import BatchBuilder, build_batch, build_control_batch
from stratalog.records.format import Codec, ControlType, TimestampType
from stratalog.records.legacy import build_message_set
from stratalog.records.reader import find_timestamp, iter_records, read_control, read_records, records_of
from tests.records.strategies import numbered


def with_field(batch: bytearray, position: int, layout: str, value: int) -> bytearray:
    """Return the batch with one header field changed and the right checksum."""
    struct.pack_into(layout, batch, position, value)
    checksum = crc32c(memoryview(batch)[format.ATTRIBUTES_POSITION :])
    struct.pack_into(">I", batch, format.CRC_POSITION, checksum)
    return batch


def plain(count: int, first: int, timestamp_type: int = 0) -> list[Record]:
    """Return records that every magic supports."""
    return [
        Record(offset=offset, timestamp=1000 + offset, key=b"k", value=b"%d" % offset)
        for offset in range(first, first + count)
    ]


def test_consecutive_batches_of_all_codecs_are_read_in_order() -> None:
    expected = numbered(60)
    buffer = bytearray()
    for i, codec in enumerate([*Codec, Codec.NONE]):
        buffer += build_batch(expected[i * 10 : i * 10 + 10], base_offset=i * 10, codec=codec)
    assert read_records(buffer) == expected
    assert list(iter_records(memoryview(buffer))) == expected


def test_all_magics_in_one_buffer_are_read() -> None:
    buffer = build_message_set(plain(2, 0), magic=1) + build_message_set(plain(2, 2), magic=1, codec=Codec.GZIP)
    buffer += build_batch(plain(2, 4), base_offset=4)
    assert read_records(buffer) == plain(6, 0)


def test_a_batch_cut_off_at_the_end_is_left_out() -> None:
    whole = build_batch(numbered(3))
    for end in range(len(whole)):
        assert read_records(whole + whole[:end]) == numbered(3)


def test_no_bytes_give_no_records() -> None:
    assert read_records(b"") == []


def test_wrong_checksum_is_corrupt_with_its_position() -> None:
    first, second = build_batch(numbered(2)), build_batch(numbered(2, 2), base_offset=2)
    second[-1] ^= 1
    with pytest.raises(CorruptBatchError, match=f"batch at offset 2 .* at position {len(first)}"):
        read_records(first + second)


def test_checksums_are_ignored_without_check_crc() -> None:
    batch = build_batch(numbered(2))
    batch[format.CRC_POSITION] ^= 1
    assert read_records(batch, check_crc=False) == numbered(2)


@pytest.mark.parametrize("count", [-5, 1, 3, 2**31 - 1])
def test_wrong_record_count_is_corrupt(count: int) -> None:
    batch = with_field(build_batch(numbered(2)), format.RECORD_COUNT_POSITION, ">i", count)
    with pytest.raises(CorruptBatchError, match=r"batch at offset 0: .*record"):
        read_records(batch)


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_refused(codec: int) -> None:
    batch = with_field(build_batch(numbered(2)), format.ATTRIBUTES_POSITION, ">h", codec)
    with pytest.raises(UnsupportedCodecError, match=f"codec is {codec}"):
        read_records(batch)


def test_an_unknown_magic_is_refused() -> None:
    batch = build_batch(numbered(2))
    batch[format.MAGIC_POSITION] = 3
    with pytest.raises(UnsupportedMagicError, match="magic is 3"):
        read_records(batch)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_batch_that_decompresses_past_the_limit_is_refused(codec: Codec) -> None:
    batch = build_batch([(None, bytes(100_000))], codec=codec)
    with pytest.raises(DecompressedTooLargeError, match="limit of 50000 bytes"):
        read_records(batch, max_decompressed=50_000)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_records_with_another_codec_than_stated_are_corrupt(codec: Codec) -> None:
    batch = with_field(build_batch([(b"k", b"v" * 40)]), format.ATTRIBUTES_POSITION, ">h", codec)
    with pytest.raises(CorruptBatchError, match="batch at offset 0: "):
        read_records(batch)


def test_control_batches_are_left_out_unless_included() -> None:
    buffer = build_batch(numbered(2)) + build_control_batch(ControlType.COMMIT, 1, 0, 0, 1000, base_offset=2)
    assert read_records(buffer) == numbered(2)
    assert [record.offset for record in read_records(buffer, include_control=True)] == [0, 1, 2]
    assert [record.offset for record in iter_records(buffer, include_control=True)] == [0, 1, 2]


def control(key: bytes | None, value: bytes | None, count: int = 1) -> bytearray:
    builder = BatchBuilder(is_control=True, is_transactional=True, producer_id=1, producer_epoch=0)
    for _ in range(count):
        builder.append(value, key)
    return builder.build()


@pytest.mark.parametrize(
    ("batch", "problem"),
    [
        (control(b"\x00\x00\x00", b"\x00\x00\x00\x00\x00\x07"), "key of the control record has 3 bytes"),
        (control(None, b"\x00\x00\x00\x00\x00\x07"), "key of the control record has 0 bytes"),
        (control(b"\x00\x00\x00\x01", b"\x00\x00\x00"), "value of the end marker has 3 bytes"),
        (control(b"\x00\x00\x00\x63", b"\x00\x00\x00\x00\x00\x07"), "version 0 and type 99"),
        (control(b"\xff\xff\x00\x01", b"\x00\x00\x00\x00\x00\x07"), "version -1 and type 1"),
        (control(b"\x00\x00\x00\x01", b"\x00\x00\x00\x00\x00\x07", 2), "has 2 records, not one"),
        (build_batch(numbered(1)), "is not a control batch"),
    ],
)
def test_a_malformed_control_batch_is_corrupt(batch: bytearray, problem: str) -> None:
    (only,) = batches(batch)
    with pytest.raises(CorruptBatchError, match=problem):
        read_control(only)


def test_other_control_types_have_no_coordinator_epoch() -> None:
    (batch,) = batches(control(b"\x00\x00\x00\x02", b"anything"))
    assert read_control(batch) == (ControlType.LEADER_CHANGE, -1)


def test_records_of_one_batch_need_no_checksum() -> None:
    data = build_batch(numbered(3))
    data[format.CRC_POSITION] ^= 1
    (batch,) = batches(data)
    assert records_of(batch) == numbered(3)


@pytest.mark.parametrize(
    ("timestamp", "start", "expected"), [(40, 0, (0, 50)), (50, 2, (2, 50)), (51, 0, None), (40, 3, None)]
)
def test_log_append_time_is_the_timestamp_of_every_record(
    timestamp: int, start: int, expected: tuple[int, int] | None
) -> None:
    records = [Record(value=b"v", timestamp=time) for time in (10, 20, 30)]
    [batch] = batches(build_batch(records, timestamp_type=TimestampType.LOG_APPEND_TIME, append_time=50))
    assert find_timestamp(batch, timestamp, start) == expected


@pytest.mark.parametrize(
    ("timestamp", "start", "expected"), [(15, 0, (1, 20)), (15, 2, (2, 30)), (31, 0, None), (5, 3, None)]
)
def test_first_record_at_a_timestamp_and_offset_is_found_or_none(
    timestamp: int, start: int, expected: tuple[int, int] | None
) -> None:
    records = [Record(value=b"v", timestamp=time) for time in (10, 20, 30)]
    [batch] = batches(build_batch(records))
    assert find_timestamp(batch, timestamp, start) == expected

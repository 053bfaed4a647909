"""Messages of magic 0 and 1: reading, writing, and converting them to magic 2 batches without loss."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import (
    CorruptBatchError,
    DecompressedTooLargeError,
    InvalidRecordError,
    UnsupportedCodecError,
    UnsupportedMagicError,
)
from stratalog.records import compression, format
from stratalog.records._records import Record
from stratalog.records.batch import batches
from stratalog.records.builder import build_batch
from stratalog.records.format import Codec, TimestampType
from stratalog.records.legacy import build_message_set, up_convert
from stratalog.records.reader import read_records
from tests.records.strategies import record, record_lists

LEGACY_CODECS = [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4]


def as_magic(records: list[Record], magic: int) -> list[Record]:
    """Return the records as a magic stores them: magic 0 has no timestamps."""
    if magic:
        return records
    return [Record(offset=r.offset, timestamp_type=-1, key=r.key, value=r.value) for r in records]


def with_checksum(message: bytearray) -> bytearray:
    struct.pack_into(">I", message, format.LEGACY_CRC_POSITION, zlib.crc32(message[format.MAGIC_POSITION :]))
    return message


def wrapper(magic: int, codec: int, inner: bytes | bytearray, offset: int) -> bytearray:
    """Return a wrapper with any bytes as its content."""
    value = bytes(compression.compress(codec, inner))
    message = build_message_set([record(value, offset=offset)], magic=magic)
    message[format.LEGACY_ATTRIBUTES_POSITION] = codec
    return with_checksum(message)


@pytest.mark.parametrize("magic", [0, 1])
@given(records=record_lists(with_headers=False), codec=st.sampled_from(LEGACY_CODECS))
def test_written_messages_read_back_equal(magic: int, records: list[Record], codec: Codec) -> None:
    message_set = build_message_set(records, magic=magic, codec=codec)
    assert read_records(message_set) == as_magic(records, magic)


@pytest.mark.parametrize("magic", [0, 1])
@given(records=record_lists(with_headers=False), codec=st.sampled_from(LEGACY_CODECS))
def test_up_converting_keeps_offsets_timestamps_keys_values_and_codec(
    magic: int, records: list[Record], codec: Codec
) -> None:
    converted = up_convert(build_message_set(records, magic=magic, codec=codec))
    kept = [(r.offset, r.timestamp, r.key, r.value) for r in as_magic(records, magic)]
    assert [(r.offset, r.timestamp, r.key, r.value) for r in read_records(converted)] == kept
    assert {(batch.header.magic, batch.header.codec) for batch in batches(converted)} == {(2, codec)}


def test_consecutive_messages_share_batches_up_to_the_limit() -> None:
    records = [record(bytes(100), offset=offset) for offset in range(10)]
    message_set = build_message_set(records, magic=1)
    assert len(list(batches(message_set))) == 10
    assert len(list(batches(up_convert(message_set)))) == 1
    assert len(list(batches(up_convert(message_set, max_batch_bytes=300)))) == 4


def test_up_converting_copies_magic_2_and_keeps_the_order() -> None:
    old = [record(b"old", offset=0), record(b"old", offset=1)]
    new = build_batch([(None, b"new")], base_offset=2, codec=Codec.ZSTD)
    last = [record(b"last", offset=3)]
    buffer = build_message_set(old, magic=1) + new + build_message_set(last, magic=1, codec=Codec.GZIP)
    converted = up_convert(buffer)
    assert [r.offset for r in read_records(converted)] == [0, 1, 2, 3]
    assert bytes(new) in bytes(converted)


def test_up_converting_keeps_offsets_that_jump_or_repeat() -> None:
    offsets = [0, 5, 5, 2**33, 3]
    converted = up_convert(build_message_set([record(offset=o) for o in offsets], magic=1))
    assert [r.offset for r in read_records(converted)] == offsets


def test_different_log_append_times_of_messages_are_kept() -> None:
    records = [record(offset=i, timestamp=timestamp) for i, timestamp in enumerate([5, 5, 9])]
    message_set = build_message_set(records, magic=1, timestamp_type=TimestampType.LOG_APPEND_TIME)
    converted = up_convert(message_set)
    assert len(list(batches(converted))) == 2
    assert [(r.timestamp, r.timestamp_type) for r in read_records(converted)] == [(5, 1), (5, 1), (9, 1)]


def test_log_append_time_of_a_wrapper_applies_to_all_messages() -> None:
    records = [record(offset=i, timestamp=timestamp) for i, timestamp in enumerate([5, 9, 7])]
    message_set = build_message_set(records, magic=1, codec=Codec.GZIP, timestamp_type=TimestampType.LOG_APPEND_TIME)
    expected = [(0, 9, 1), (1, 9, 1), (2, 9, 1)]
    assert [(r.offset, r.timestamp, r.timestamp_type) for r in read_records(message_set)] == expected
    converted = up_convert(message_set)
    assert [(r.offset, r.timestamp, r.timestamp_type) for r in read_records(converted)] == expected


def test_gaps_inside_a_wrapper_are_kept() -> None:
    records = [record(offset=offset) for offset in (100, 103, 104, 120)]
    for magic in (0, 1):
        message_set = build_message_set(records, magic=magic, codec=Codec.SNAPPY)
        assert [r.offset for r in read_records(message_set)] == [100, 103, 104, 120]
        assert [r.offset for r in read_records(up_convert(message_set))] == [100, 103, 104, 120]


def test_a_wrapper_with_offset_0_of_old_librdkafka_has_offsets_from_0() -> None:
    inner = build_message_set([record(offset=i) for i in range(3)], magic=1)
    assert [r.offset for r in read_records(wrapper(1, Codec.GZIP, inner, 0))] == [0, 1, 2]


def test_magic_0_lz4_has_the_header_checksum_of_old_brokers() -> None:
    message = build_message_set([record()], magic=0, codec=Codec.LZ4)
    frame = message[26:]
    assert frame == compression.with_legacy_lz4_checksum(frame)
    assert read_records(message)[0].value == b"value"


@pytest.mark.parametrize("magic", [0, 1])
def test_a_wrapper_inside_a_wrapper_is_refused(magic: int) -> None:
    inner = build_message_set([record()], magic=magic, codec=Codec.GZIP)
    with pytest.raises(CorruptBatchError, match="a message inside is a wrapper too"):
        read_records(wrapper(magic, Codec.GZIP, inner, 5))


@pytest.mark.parametrize(
    ("inner", "problem"),
    [
        (build_message_set([record()], magic=0), "a message inside has magic 0, the wrapper 1"),
        (bytes(build_batch([(None, b"v")])), "a message inside has magic 2, the wrapper 1"),
        (b"", "0 of 0 bytes inside are not a message"),
        (build_message_set([record()], magic=1) + b"\x00" * 5, "5 of 44 bytes inside are not a message"),
        (b"\x00" * 40, "wrapper at offset 9: batch length is 0"),
    ],
)
def test_wrapper_with_wrong_content_is_corrupt(inner: bytes, problem: str) -> None:
    with pytest.raises(CorruptBatchError, match=problem):
        read_records(wrapper(1, Codec.GZIP, inner, 9))


def test_a_wrapper_without_a_value_is_corrupt() -> None:
    message = build_message_set([record(None)], magic=1)
    message[format.LEGACY_ATTRIBUTES_POSITION] = Codec.GZIP
    with pytest.raises(CorruptBatchError, match="a wrapper has no value"):
        read_records(with_checksum(message))


def test_offsets_inside_a_wrapper_that_overflow_are_corrupt() -> None:
    inner = build_message_set([record(offset=2**63 - 1), record(offset=0)], magic=1)
    with pytest.raises(CorruptBatchError, match="which makes"):
        read_records(wrapper(1, Codec.GZIP, inner, 9))


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
def test_wrapper_that_decompresses_past_the_limit_is_refused(codec: Codec) -> None:
    message_set = build_message_set([record(bytes(100_000))], magic=1, codec=codec)
    with pytest.raises(DecompressedTooLargeError, match="limit of 5000 bytes"):
        read_records(message_set, max_decompressed=5000)
    with pytest.raises(DecompressedTooLargeError, match="limit of 5000 bytes"):
        up_convert(message_set, max_decompressed=5000)


@pytest.mark.parametrize(
    ("position", "length", "problem"),
    [
        (26, 100, "key length is 100, 12 bytes are left"),
        (26, -2, "key length is -2"),
        (26, 2**31 - 1, "key length is 2147483647"),
        (26, 10, "value length goes past the end of the message"),
        (33, 6, "value length is 6, 5 bytes are left"),
        (33, -2, "value length is -2"),
        (33, 3, "2 bytes are left over after the value"),
    ],
)
def test_lengths_that_do_not_fit_a_message_are_corrupt(position: int, length: int, problem: str) -> None:
    message = build_message_set([record(b"value", key=b"key")], magic=1)
    struct.pack_into(">i", message, position, length)
    with pytest.raises(CorruptBatchError, match=problem):
        read_records(with_checksum(message))


def test_a_wrong_checksum_is_corrupt() -> None:
    message = build_message_set([record()], magic=1)
    message[-1] ^= 1
    for read in (read_records, up_convert):
        with pytest.raises(CorruptBatchError, match="checksum of the batch at offset 0"):
            read(message)
    assert read_records(message, check_crc=False)[0].value == b"valud"


def test_features_missing_in_magic_0_and_1_are_refused() -> None:
    with pytest.raises(InvalidRecordError, match="record at offset 4 has headers; magic 1 has none"):
        build_message_set([Record(offset=4, headers=[("h", b"")])], magic=1)
    with pytest.raises(UnsupportedCodecError, match="codec is 4; magic 0 and 1 have 0 to 3"):
        build_message_set([record()], magic=1, codec=Codec.ZSTD)
    with pytest.raises(UnsupportedMagicError, match="magic is 2"):
        build_message_set([record()], magic=2)
    message = build_message_set([record()], magic=1)
    message[format.LEGACY_ATTRIBUTES_POSITION] = Codec.ZSTD
    with pytest.raises(UnsupportedCodecError, match="codec is 4"):
        read_records(with_checksum(message))


def test_no_records_give_no_messages() -> None:
    assert build_message_set([], magic=1, codec=Codec.GZIP) == b""
    assert up_convert(b"") == b""

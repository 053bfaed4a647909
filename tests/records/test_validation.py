"""The rules for entering a log: each broken on its own, and then random damage."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import (
    CorruptBatchError,
    DecompressedTooLargeError,
    InvalidRecordError,
    InvalidTimestampError,
    MessageTooLargeError,
    StratalogError,
    UnsupportedCodecError,
    UnsupportedMagicError,
)
from stratalog.records import compression
from stratalog.records._framing import BatchHeader, crc_matches, parse_header
from stratalog.records._records import Record
from stratalog.records.batch import Batch
from stratalog.records.builder import build_batch, build_control_batch
from stratalog.records.format import Codec, ControlType
from stratalog.records.legacy import build_message_set
from stratalog.records.reader import read_records
from stratalog.records.validation import (
    MAX_HELD_DECOMPRESSED,
    check_contents,
    check_header,
    check_records,
    find_refused,
    parse_for_append,
)
from tests.records.strategies import codecs, numbered, record, record_lists

MAX = 10**6
ATTRIBUTES, DELTA, BASE_TIMESTAMP, MAX_TIMESTAMP, PRODUCER, EPOCH, SEQUENCE, COUNT = 21, 23, 27, 35, 43, 51, 53, 57


def edited(data: bytearray, position: int, kind: str, value: int) -> bytearray:
    """Return the batch with one header field changed and the right checksum."""
    struct.pack_into(f">{kind}", data, position, value)
    return sealed(data)


def sealed(data: bytearray) -> bytearray:
    struct.pack_into(">I", data, 17, crc32c(bytes(data[ATTRIBUTES:])))
    return data


def with_payload(payload: bytes, count: int, codec: int = 0) -> bytearray:
    """Return a batch with `count` records in its header and any bytes as its records."""
    data = build_batch(numbered(1))[:61] + bytearray(compression.compress(codec, payload) if codec else payload)
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">h", data, ATTRIBUTES, codec)
    struct.pack_into(">i", data, DELTA, count - 1)
    struct.pack_into(">i", data, COUNT, count)
    return sealed(data)


def header_of(data: bytearray) -> BatchHeader:
    header = parse_header(data)
    assert header is not None
    return header


def validate(data: bytearray, max_decompressed: int = MAX) -> int:
    return check_contents(data, parse_for_append(data, MAX), max_decompressed)


@given(records=record_lists(), codec=codecs)
def test_built_batches_pass_unchanged(records: list[Record], codec: int) -> None:
    data = build_batch(records, codec=codec)
    before = bytes(data)
    assert validate(data) == sum(record.key is None for record in records)
    assert data == before


def test_all_batches_are_checked() -> None:
    data = build_batch(numbered(3)) + build_batch(numbered(2), codec=Codec.ZSTD)
    assert [header.record_count for header in parse_for_append(data, MAX)] == [3, 2]
    second = build_batch(numbered(2))
    second[-1] ^= 1
    with pytest.raises(CorruptBatchError, match="checksum") as caught:
        parse_for_append(data + second, MAX)
    assert caught.value.position == len(data)


@pytest.mark.parametrize(
    ("break_it", "error", "complaint"),
    [
        (lambda d: edited(d, COUNT, "i", 0), InvalidRecordError, "record count is 0 and last offset delta 2"),
        (lambda d: edited(d, COUNT, "i", -1), InvalidRecordError, "record count is -1"),
        (lambda d: edited(d, COUNT, "i", 4), InvalidRecordError, "record count is 4 and last offset delta 2"),
        (lambda d: edited(d, DELTA, "i", 3), InvalidRecordError, "record count is 3 and last offset delta 3"),
        (lambda d: edited(d, DELTA, "i", -1), InvalidRecordError, "last offset delta -1"),
        (lambda d: edited(d, ATTRIBUTES, "h", 5), UnsupportedCodecError, "codec is 5"),
        (lambda d: edited(d, ATTRIBUTES, "h", 7), UnsupportedCodecError, "codec is 7"),
        (
            lambda d: edited(d, PRODUCER, "q", 5),
            InvalidRecordError,
            "producer id is 5, with producer epoch -1 and base sequence -1",
        ),
        (lambda d: edited(d, ATTRIBUTES, "h", 0x10), InvalidRecordError, "producer id is -1 in a transactional batch"),
    ],
)
def test_broken_header_rule_is_refused_with_field_and_value(
    break_it: Callable[[bytearray], bytearray], error: type[StratalogError], complaint: str
) -> None:
    with pytest.raises(error, match=complaint):
        parse_for_append(break_it(build_batch(numbered(3))), MAX)


def test_extreme_count_and_delta_do_not_agree_by_overflow() -> None:
    data = build_batch(numbered(1))
    struct.pack_into(">i", data, DELTA, 2**31 - 1)
    with pytest.raises(InvalidRecordError, match="record count is -2147483648"):
        check_header(header_of(edited(data, COUNT, "i", -(2**31))))


@pytest.mark.parametrize("magic", [0, 1])
def test_old_messages_are_refused_with_advice(magic: int) -> None:
    with pytest.raises(UnsupportedMagicError, match=f"magic is {magic}; .*up_convert") as caught:
        parse_for_append(build_message_set([record()], magic=magic), MAX)
    assert caught.value.code == 43


def test_size_limit_is_for_each_batch_and_inclusive() -> None:
    data = build_batch(numbered(3))
    size = len(data)
    assert len(parse_for_append(data + data, size)) == 2
    with pytest.raises(MessageTooLargeError, match=rf"batch has {size} bytes, max\.message\.bytes is {size - 1}"):
        parse_for_append(data, size - 1)


@pytest.mark.parametrize("bit", range(8))
def test_any_flipped_bit_after_the_checksum_is_refused(bit: int) -> None:
    good = build_batch(numbered(2))
    for position in range(17, len(good)):
        data = bytearray(good)
        data[position] ^= 1 << bit
        with pytest.raises(StratalogError):
            parse_for_append(data, MAX)


@pytest.mark.parametrize("data", [b"", b"x", bytes(60), bytes(61)])
def test_bytes_that_are_not_a_batch_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptBatchError):
        parse_for_append(data, MAX)


def test_cut_off_or_trailing_bytes_are_refused() -> None:
    data = build_batch(numbered(2))
    for wrong in (data[:-1], data + b"\0" * 11, data + data[:70]):
        with pytest.raises(CorruptBatchError, match="are not a complete record batch"):
            parse_for_append(wrong, MAX)


def test_control_batch_of_a_client_is_refused() -> None:
    data = build_control_batch(ControlType.COMMIT, 1, 0, 0, 1000)
    headers = parse_for_append(data, MAX)
    with pytest.raises(InvalidRecordError, match="control bit is set"):
        check_contents(data, headers)


RECORD = bytes(build_batch([record(b"v", b"k")])[61:])  # length, attributes, timestamp delta, offset delta, ...


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize(
    ("payload", "count", "complaint"),
    [
        (RECORD, 2, "record 1 of 2"),
        (RECORD + RECORD, 1, "record 1 of 1: bytes are left over after the last record"),
        (RECORD + RECORD, 2, "record 1 of 2: offset delta is not its index in the batch"),
        (b"", 1, "record 0 of 1"),
        (b"\x00", 1, "record 0 of 1"),
        (b"\x7e" + RECORD[1:], 1, "record 0 of 1"),
        (b"\x01" + RECORD[1:], 1, "record 0 of 1"),
        (b"\xff" * 12, 1, "record 0 of 1"),
        (RECORD[:3] + b"\x02" + RECORD[4:], 1, "offset delta"),
        (RECORD[:4] + b"\x40" + RECORD[5:], 1, "key"),
        (RECORD[:4] + b"\x03" + RECORD[5:], 1, "key"),
        (RECORD[:6] + b"\x40" + RECORD[7:], 1, "value"),
        (RECORD[:-1] + b"\x02", 1, "header"),
        (RECORD[:-1] + b"\x01", 1, "header"),
        (bytes([RECORD[0] + 2]) + RECORD[1:] + b"\x00", 1, "bytes over"),
    ],
)
def test_broken_record_is_refused_with_its_number(payload: bytes, count: int, complaint: str, codec: int) -> None:
    with pytest.raises(InvalidRecordError, match=complaint):
        validate(with_payload(payload, count, codec))


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_garbage_instead_of_compressed_records_is_refused(codec: int) -> None:
    data = with_payload(b"garbage that no codec ever wrote", 1)
    with pytest.raises(CorruptBatchError):
        validate(edited(data, ATTRIBUTES, "h", codec))


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_bomb_is_refused_before_it_is_decompressed(codec: int) -> None:
    with pytest.raises(DecompressedTooLargeError):
        validate(with_payload(bytes(MAX * 4), 1, codec), max_decompressed=MAX)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize("wrong", [-1, 0, 2**62])
def test_wrong_max_timestamp_is_corrected_with_its_checksum(codec: int, wrong: int) -> None:
    good = build_batch(numbered(5), codec=codec)
    data = edited(bytearray(good), MAX_TIMESTAMP, "q", wrong)
    validate(data)
    assert data == good


def test_log_append_time_of_a_client_is_refused() -> None:
    """Otherwise a client could choose a timestamp that keeps a segment from ever being deleted."""
    data = edited(build_batch(numbered(5)), ATTRIBUTES, "h", 0x08)
    edited(data, MAX_TIMESTAMP, "q", 2**63 - 1)
    with pytest.raises(InvalidTimestampError, match="LogAppendTime"):
        validate(data)


@pytest.mark.parametrize(("base", "delta", "largest"), [(2**63 - 1, -(2**63), -1), (1000, -1000, 0)])
def test_max_timestamp_is_right_at_the_ends_of_the_range(base: int, delta: int, largest: int) -> None:
    data = build_batch([Record(value=b"v", timestamp=0)])
    payload = bytearray(data[61:])
    zigzag = (delta << 1) ^ (delta >> 63)
    varint = bytearray()
    while zigzag >= 0x80:
        varint.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    varint.append(zigzag)
    record = payload[1:2] + varint + payload[3:]
    batch = bytearray(data[:61]) + bytes([len(record) << 1]) + record
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    edited(batch, BASE_TIMESTAMP, "q", base)
    validate(batch)
    assert header_of(batch).max_timestamp == largest


def test_null_keys_are_counted_over_all_batches() -> None:
    data = build_batch([(None, b"v"), (b"k", b"v")]) + build_batch([(None, None)], codec=Codec.SNAPPY)
    assert validate(data) == 2


@pytest.mark.parametrize(("start", "end"), [(-1, 5), (5, 4), (0, 10**6)])
def test_range_outside_the_payload_is_refused(start: int, end: int) -> None:
    with pytest.raises(ValueError, match="outside the buffer"):
        check_records(RECORD, header_of(build_batch(numbered(1))), start, end)


@given(payload=st.binary(max_size=120), count=st.integers(1, 5))
def test_no_payload_crashes_the_check(payload: bytes, count: int) -> None:
    data = with_payload(payload, count)
    try:
        validate(data)
    except InvalidRecordError:
        return
    assert len(read_records(data)) == count


@pytest.mark.parametrize("codec", list(Codec))
def test_mutated_records_are_refused_or_readable(codec: int) -> None:
    """Records that pass can be read: as many as the header says, with their offsets."""
    generator = random.Random(int(codec))
    outcomes = {True: 0, False: 0}
    source = build_batch([record(b"value-%d" % i, b"key", timestamp=1000 + i) for i in range(6)], codec=codec)
    for _ in range(800):
        data = mutated(source, generator)
        try:
            validate(data)
        except StratalogError:
            outcomes[False] += 1
            continue
        outcomes[True] += 1
        header = header_of(data)
        assert crc_matches(data, header)
        records = read_records(data)
        first = header.base_offset
        assert [record.offset for record in records] == list(range(first, first + header.record_count))
        if header.timestamp_type == 0:
            assert header.max_timestamp == max(record.timestamp for record in records)
    assert outcomes[False] > 100


def mutated(source: bytearray, generator: random.Random) -> bytearray:
    data = bytearray(source)
    for _ in range(generator.randint(1, 3)):
        position = generator.randrange(ATTRIBUTES, len(data))
        data[position] = generator.choice((0, 1, 0x7F, 0x80, 0xFF, data[position] ^ 1 << generator.randrange(8)))
    return sealed(data)


def test_batch_view_survives_the_same_mutations() -> None:
    generator = random.Random(9)
    for _ in range(500):
        data = mutated(build_batch(numbered(3), codec=generator.randrange(5)), generator)
        batch = Batch(data, header_of(data))
        outcome: Any = None
        try:
            outcome = batch.payload(MAX)
        except StratalogError as error:
            outcome = error
        assert outcome is not None


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_record_before_the_earliest_timestamp_is_refused(codec: int) -> None:
    data = build_batch([record(timestamp=time) for time in (500, 1000, 300, 900)], codec=codec)
    headers = parse_for_append(data, MAX)
    check_contents(data, headers, earliest=300)
    with pytest.raises(InvalidTimestampError, match=r"a record's timestamp is 300; the earliest .* is 301"):
        check_contents(data, headers, earliest=301)


def test_record_without_a_timestamp_is_never_too_early() -> None:
    for times in ((-1, -1), (400, -1, 500)):
        data = build_batch([record(timestamp=time) for time in times])
        check_contents(data, parse_for_append(data, MAX), earliest=400)
    with pytest.raises(InvalidTimestampError, match="timestamp is 400"):
        check_contents(data, parse_for_append(data, MAX), earliest=401)


def test_record_without_a_timestamp_is_never_too_early_in_a_batch_that_is_checked_in_pieces() -> None:
    records = [record(bytes(MAX_HELD_DECOMPRESSED // 2), timestamp=time) for time in (400, -1, 500)]
    data = build_batch(records, codec=Codec.ZSTD)
    check_contents(data, parse_for_append(data, MAX), earliest=400)
    with pytest.raises(InvalidTimestampError, match="timestamp is 400"):
        check_contents(data, parse_for_append(data, MAX), earliest=401)


def test_earliest_holds_where_the_sum_of_base_and_delta_overflows() -> None:
    data = edited(build_batch([record(timestamp=time) for time in (1000, 0)]), BASE_TIMESTAMP, "q", -(2**63) + 10)
    with pytest.raises(InvalidTimestampError, match=rf"timestamp is {-(2**63) + 10 - 1000};"):
        check_contents(data, parse_for_append(data, MAX), earliest=0)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_decompressed_records_are_collected_on_request(codec: int) -> None:
    plain = build_batch(numbered(9))
    data = build_batch(numbered(9), codec=codec) + build_batch(numbered(9), codec=codec)
    payloads: list[Any] = []
    check_contents(data, parse_for_append(data, MAX), payloads=payloads)
    assert [bytes(payload) for payload in payloads] == [bytes(plain[61:])] * 2


@pytest.mark.parametrize("producer_id", [0, 1])
def test_transactional_batch_of_a_client_without_a_sequence_is_refused(producer_id: int) -> None:
    data = build_batch(numbered(2), producer_id=producer_id, producer_epoch=0, is_transactional=True)
    with pytest.raises(InvalidRecordError, match=f"producer id is {producer_id}, .* base sequence -1"):
        validate(data)


def test_each_record_that_is_refused_is_named_with_its_reason() -> None:
    records = [
        record(key=b"k", timestamp=100),
        record(key=None, timestamp=100),
        record(key=b"k", timestamp=201),
        record(key=b"k", timestamp=99),
        record(key=b"k", timestamp=-1),
        record(key=None, timestamp=200),
    ]
    data = build_batch(records)
    headers = parse_for_append(data, MAX)
    assert find_refused(data, headers, MAX, True, 100, 200, 10) == [
        (1, False, 100),
        (2, True, 201),
        (3, True, 99),
        (5, False, 200),
    ]
    assert find_refused(data, headers, MAX, False, 100, 200, 1) == [(2, True, 201)]

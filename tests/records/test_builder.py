"""Building batches: every header field, predicted sizes, gaps and control batches."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import ConfigError, InvalidRecordError, UnsupportedCodecError
from stratalog.records import format
from stratalog.records._framing import parse_header
from stratalog.records._records import Record
from stratalog.records.batch import batches
from stratalog.records.builder import BatchBuilder, build_batch, build_control_batch
from stratalog.records.format import Codec, ControlType, TimestampType
from stratalog.records.reader import read_control, read_records
from stratalog.records.validation import check_contents, parse_for_append
from tests.records.strategies import codecs, numbered, record_lists


@given(records=record_lists(), codec=codecs)
def test_built_records_read_back_equal(records: list[Record], codec: int) -> None:
    batch = build_batch(records, base_offset=records[0].offset, codec=codec)
    assert read_records(batch) == records


@given(records=record_lists(), codec=codecs)
def test_built_batch_passes_validation(records: list[Record], codec: int) -> None:
    batch = build_batch(records, codec=codec)
    before = bytes(batch)
    headers = parse_for_append(batch, len(batch))
    assert check_contents(batch, headers) == sum(record.key is None for record in records)
    assert bytes(batch) == before, "validation corrected something"


def test_every_header_field_is_set() -> None:
    batch = build_batch(
        numbered(3),
        base_offset=40,
        codec=Codec.ZSTD,
        compression_level=5,
        producer_id=7,
        producer_epoch=8,
        base_sequence=9,
        is_transactional=True,
        leader_epoch=10,
        last_offset_delta=12,
    )
    header = parse_header(batch)
    assert header is not None
    assert (header.base_offset, header.last_offset, header.record_count) == (40, 52, 3)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 8, 9)
    assert (header.leader_epoch, header.codec, header.magic) == (10, Codec.ZSTD, 2)
    assert header.is_transactional
    assert not header.is_control
    assert not header.has_delete_horizon
    assert header.size == len(batch)


def test_small_batch_has_the_expected_bytes() -> None:
    batch = build_batch([Record(key=b"k", value=b"v", timestamp=5)], base_offset=3)
    assert batch[:8] == (3).to_bytes(8, "big")
    assert batch[8:12] == (len(batch) - 12).to_bytes(4, "big")
    assert batch[12:17] == b"\xff\xff\xff\xff\x02"
    assert batch[21:61] == struct.pack(">hiqqqhii", 0, 0, 5, 5, -1, -1, -1, 1)
    assert batch[61:] == b"\x10\x00\x00\x00\x02k\x02v\x00"


def test_log_append_time_is_the_timestamp_of_batch_and_records() -> None:
    batch = build_batch(numbered(4), timestamp_type=TimestampType.LOG_APPEND_TIME, append_time=77)
    header = parse_header(batch)
    assert header is not None
    assert (header.timestamp_type, header.max_timestamp) == (1, 77)
    assert {(r.timestamp, r.timestamp_type) for r in read_records(batch)} == {(77, 1)}


def test_delete_horizon_is_the_base_timestamp_and_keeps_the_records_timestamps() -> None:
    batch = build_batch(numbered(4), delete_horizon=1_700_000_000_000)
    header = parse_header(batch)
    assert header is not None
    assert header.has_delete_horizon
    assert header.base_timestamp == 1_700_000_000_000
    assert read_records(batch) == numbered(4)


def test_gaps_between_offsets_are_written_and_read() -> None:
    kept = [record for record in numbered(10) if record.offset in (2, 3, 7)]
    batch = build_batch(kept, base_offset=0, offset_deltas=[2, 3, 7], last_offset_delta=9)
    header = parse_header(batch)
    assert header is not None
    assert (header.base_offset, header.last_offset, header.record_count) == (0, 9, 3)
    assert read_records(batch) == kept


def test_batch_may_be_empty() -> None:
    batch = build_batch([], base_offset=5, last_offset_delta=3, producer_id=1, producer_epoch=0, base_sequence=0)
    header = parse_header(batch)
    assert header is not None
    assert (header.record_count, header.last_offset, len(batch)) == (0, 8, format.HEADER_SIZE)
    assert read_records(batch) == []


@given(deltas=st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=20, unique=True).map(sorted))
def test_any_rising_offset_deltas_read_back_equal(deltas: list[int]) -> None:
    batch = build_batch([(None, b"v")] * len(deltas), base_offset=10, offset_deltas=deltas)
    assert [record.offset for record in read_records(batch)] == [10 + delta for delta in deltas]


@pytest.mark.parametrize("deltas", [[0], [0, 0], [1, 0], [0, 1, 2], [-1, 0]])
def test_offset_deltas_that_do_not_rise_or_fit_are_refused(deltas: list[int]) -> None:
    with pytest.raises(InvalidRecordError, match=r"offset.delta"):
        build_batch([(None, b"a"), (None, b"b")], offset_deltas=deltas)


def test_a_last_offset_delta_before_a_record_is_refused() -> None:
    with pytest.raises(InvalidRecordError, match="last offset delta is 1; a record's delta is 2"):
        build_batch(numbered(3), last_offset_delta=1)


def test_size_equals_the_batch_and_size_with_is_an_upper_bound() -> None:
    builder = BatchBuilder()
    assert builder.size == len(builder.build()) == format.HEADER_SIZE
    for record in numbered(50):
        bound = builder.size_with(record.value, record.key, record.headers)
        builder.append(record.value, record.key, record.headers, record.timestamp)
        assert builder.size == len(builder.build())
        assert builder.size <= bound
    assert builder.record_count == 50


def test_building_twice_gives_the_same_and_more_records_may_follow() -> None:
    builder = BatchBuilder(codec=Codec.GZIP)
    assert builder.append(b"one") == 0
    assert builder.build() == builder.build()
    assert builder.append(b"two") == 1
    assert [record.value for record in read_records(builder.build(5))] == [b"one", b"two"]


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"codec": 5}, UnsupportedCodecError, "codec is 5"),
        ({"codec": Codec.GZIP, "compression_level": 10}, ConfigError, "gzip has levels 1 to 9"),
        ({"producer_id": 2**63}, InvalidRecordError, "out of range"),
        ({"producer_epoch": 40_000}, InvalidRecordError, "out of range"),
        ({"base_sequence": 2**31}, InvalidRecordError, "out of range"),
        ({"leader_epoch": 2**31}, InvalidRecordError, "out of range"),
    ],
)
def test_header_fields_out_of_range_are_refused(fields: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        build_batch([(None, b"v")], **fields)


@pytest.mark.parametrize("control_type", [ControlType.ABORT, ControlType.COMMIT])
def test_marker_has_the_control_type_and_coordinator_epoch(control_type: ControlType) -> None:
    data = build_control_batch(control_type, 5, 6, 7, 1000, base_offset=30, leader_epoch=2)
    (batch,) = batches(data)
    header = batch.header
    assert header.is_control
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 6, -1)
    assert (header.base_offset, header.leader_epoch, header.max_timestamp) == (30, 2, 1000)
    assert read_control(batch) == (control_type, 7)
    parse_for_append(data, len(data))


def test_marker_with_another_control_type_is_refused() -> None:
    with pytest.raises(InvalidRecordError, match="ends with ABORT or COMMIT"):
        build_control_batch(ControlType.LEADER_CHANGE, 5, 6, 7, 1000)

"""Batches to columns and back, compared with the records read as objects; ranges, single columns and batch sizes."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import CorruptBatchError, DecompressedTooLargeError, InvalidRecordError, UnsupportedCodecError
from stratalog.records import format
from stratalog.records._column_decoder import ColumnDecoder, utf8_is_valid
from stratalog.records._column_encoder import BinaryColumn, ColumnEncoder
from stratalog.records._records import Record
from stratalog.records.arrow import BITS, HEADER, SCHEMA, from_arrow, to_arrow
from stratalog.records.batch import batches
from stratalog.records.builder import build_batch, build_control_batch
from stratalog.records.format import Codec, ControlType, TimestampType
from stratalog.records.legacy import build_message_set
from stratalog.records.reader import read_records
from stratalog.records.validation import check_contents, parse_for_append
from tests.records.strategies import codecs, numbered, record_lists


def as_records(batch: pa.RecordBatch) -> list[Record]:
    """Return the rows as Record objects, after Arrow validated the arrays."""
    batch.validate(full=True)
    columns = {name: batch.column(name) for name in batch.schema.names}
    columns["timestamp"] = columns["timestamp"].cast(pa.int64())
    return [
        Record(
            offset=row["offset"],
            timestamp=row["timestamp"],
            timestamp_type=row["timestamp_type"],
            key=row["key"],
            value=row["value"],
            headers=[(header["key"], header["value"]) for header in row["headers"]],
        )
        for row in pa.table(columns).to_pylist()
    ]


def as_table(records: list[Record]) -> pa.Table:
    return pa.table(
        {
            "key": pa.array([r.key for r in records], pa.binary()),
            "value": pa.array([r.value for r in records], pa.binary()),
            "headers": pa.array([[{"key": k, "value": v} for k, v in r.headers] for r in records], pa.list_(HEADER)),
            "timestamp": pa.array([r.timestamp for r in records], pa.int64()),
        }
    )


@given(lists=st.lists(st.tuples(record_lists(max_size=8), codecs), max_size=4))
def test_columns_equal_the_records_read_as_objects(lists: list[tuple[list[Record], int]]) -> None:
    buffer = b"".join(build_batch(records, base_offset=records[0].offset, codec=codec) for records, codec in lists)
    columns = to_arrow(buffer)
    assert columns.schema.equals(SCHEMA)
    assert as_records(columns) == read_records(buffer)
    assert to_arrow(list(batches(buffer))).equals(columns)


@given(records=record_lists(), codec=codecs, max_bytes=st.integers(1, 2000))
def test_rows_written_as_batches_read_back_equal(records: list[Record], codec: int, max_bytes: int) -> None:
    built = from_arrow(as_table(records), codec=codec, max_batch_bytes=max_bytes, base_offset=records[0].offset)
    assert read_records(b"".join(built)) == records
    for batch in built:
        check_contents(batch, parse_for_append(batch, len(batch)))


@given(records=record_lists())
def test_columns_and_objects_are_written_as_the_same_bytes(records: list[Record]) -> None:
    assert from_arrow(as_table(records)) == [build_batch(records)]


def test_many_batches_become_one_record_batch() -> None:
    buffer = bytearray()
    for first in range(0, 1000, 50):
        buffer += build_batch(numbered(50, first), base_offset=first, codec=list(Codec)[first // 50 % 5])
    assert as_records(to_arrow(buffer)) == numbered(1000)


def test_no_batches_give_no_rows() -> None:
    for columns in (None, ["headers"], ["offset", "key"]):
        assert to_arrow(b"", columns=columns).num_rows == 0
        assert to_arrow([], columns=columns).validate(full=True) is None
    assert from_arrow(as_table([])) == []
    assert from_arrow(SCHEMA.empty_table()) == []


@pytest.mark.parametrize("name", SCHEMA.names)
def test_single_column_equals_that_column_of_all(name: str) -> None:
    buffer = build_batch(numbered(100))
    alone = to_arrow(buffer, columns=[name])
    alone.validate(full=True)
    assert alone.schema.names == [name]
    assert alone.column(0).equals(to_arrow(buffer).column(name))


def test_columns_have_the_requested_order() -> None:
    chosen = to_arrow(build_batch(numbered(3)), columns=["offset", "value"])
    assert chosen.to_pydict() == {"offset": [0, 1, 2], "value": [r.value for r in numbered(3)]}


@pytest.mark.parametrize(
    ("columns", "message"), [(["vlaue"], "column 'vlaue' does not exist"), (["key", "key"], "columns has a name twice")]
)
def test_missing_or_repeated_columns_are_refused(columns: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        to_arrow(b"", columns=columns)


@pytest.mark.parametrize(("start", "end"), [(None, 7), (13, None), (5, 17), (9, 10), (30, None), (None, 0), (8, 8)])
def test_records_outside_the_offset_range_are_left_out(start: int | None, end: int | None) -> None:
    buffer = build_batch(numbered(10)) + build_batch(numbered(10, 10), base_offset=10, codec=Codec.LZ4)
    buffer += build_message_set([Record(offset=o, timestamp=5) for o in range(20, 25)], magic=1, codec=Codec.GZIP)
    everything = read_records(buffer)
    expected = [r for r in everything if (start is None or r.offset >= start) and (end is None or r.offset < end)]
    assert as_records(to_arrow(buffer, start_offset=start, end_offset=end)) == expected


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.SNAPPY])
def test_legacy_messages_are_read_as_columns(magic: int, codec: Codec) -> None:
    records = [Record(offset=o, timestamp=5, key=None if o % 2 else b"k", value=b"v" * o) for o in range(9)]
    buffer = build_message_set(records, magic=magic, codec=codec) + build_batch(numbered(3, 9), base_offset=9)
    assert as_records(to_arrow(buffer)) == read_records(buffer)


def test_control_batches_are_left_out_unless_included() -> None:
    buffer = build_batch(numbered(2)) + build_control_batch(ControlType.ABORT, 1, 0, 0, 1000, base_offset=2)
    assert to_arrow(buffer).num_rows == 2
    assert to_arrow(buffer, include_control=True).column("offset").to_pylist() == [0, 1, 2]


def test_log_append_time_is_in_both_columns() -> None:
    batch = build_batch(numbered(3), timestamp_type=TimestampType.LOG_APPEND_TIME, append_time=77)
    columns = to_arrow(batch)
    assert columns.column("timestamp").cast(pa.int64()).to_pylist() == [77] * 3
    assert columns.column("timestamp_type").to_pylist() == [1] * 3


def test_wrong_checksum_is_corrupt_unless_unchecked() -> None:
    batch = build_batch(numbered(2))
    batch[format.CRC_POSITION] ^= 1
    with pytest.raises(CorruptBatchError, match="checksum"):
        to_arrow(batch)
    assert to_arrow(batch, check_crc=False).num_rows == 2


def test_malformed_records_are_corrupt_and_named() -> None:
    batch = build_batch([(b"key", b"value"), (b"key", b"value")])
    batch[-7] = 0x7F  # the value length of the last record
    with pytest.raises(CorruptBatchError, match="batch at offset 0: record 1 of 2: value length goes past"):
        to_arrow(batch, check_crc=False)


def test_header_key_that_is_not_utf8_is_corrupt_without_the_headers_column() -> None:
    batch = build_batch([Record(headers=[("ab", b"")])])
    batch[batch.index(b"ab")] = 0xFF
    for columns in (None, ["value"]):
        with pytest.raises(CorruptBatchError, match="record 0 of 1: header key is not UTF-8"):
            to_arrow(batch, check_crc=False, columns=columns)


def test_utf8_check_agrees_with_python() -> None:
    seeded = random.Random(3)
    leads = [0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xEC, 0xED]
    alphabet = [*leads, 0xEE, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF]
    for _ in range(30_000):
        text = bytes(seeded.choices(alphabet, k=seeded.randint(0, 6)))
        try:
            text.decode()
            expected = True
        except UnicodeDecodeError:
            expected = False
        assert utf8_is_valid(text) is expected, text


def test_batch_that_decompresses_past_the_limit_is_refused() -> None:
    batch = build_batch([(None, bytes(100_000))], codec=Codec.ZSTD)
    with pytest.raises(DecompressedTooLargeError, match="limit of 5000 bytes"):
        to_arrow(batch, max_decompressed=5000)


def test_column_past_its_limit_is_an_error_with_advice() -> None:
    decoder = ColumnDecoder(BITS["value"], column_limit=1000)
    payload = memoryview(build_batch([(None, bytes(300))]))[format.HEADER_SIZE :]
    for _ in range(3):
        decoder.add_batch(payload, 1, 0, 0, 0, -1, 0, 100)
    with pytest.raises(OverflowError, match=r"more than 1000 bytes.*read fewer batches at a time"):
        decoder.add_batch(payload, 1, 0, 0, 0, -1, 0, 100)


VALUES = [b"one", None, b"", b"four" * 50]


@pytest.mark.parametrize(
    "kind", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string(), pa.binary_view(), pa.string_view()]
)
def test_keys_and_values_of_every_binary_type_are_written(kind: pa.DataType) -> None:
    array = pa.array([None if v is None else v.decode() for v in VALUES], pa.string()).cast(kind)
    built = from_arrow(pa.table({"key": array, "value": array}))
    assert [(r.key, r.value) for r in read_records(b"".join(built))] == [(v, v) for v in VALUES]


def test_slices_of_every_column_are_written() -> None:
    table = as_table(numbered(40)).combine_chunks()
    for start, length in [(0, 40), (3, 20), (9, 17), (39, 1), (40, 0)]:
        built = from_arrow(table.slice(start, length).to_batches()[0] if length else table.slice(start, length))
        expected = [(r.key, r.value, r.headers, r.timestamp) for r in numbered(40)[start : start + length]]
        written = [(r.key, r.value, r.headers, r.timestamp) for r in read_records(b"".join(built))]
        assert written == expected


def test_offsets_continue_from_chunk_to_chunk() -> None:
    chunks = [as_table(numbered(7, first)) for first in (0, 7, 14)]
    built = from_arrow(pa.concat_tables(chunks), base_offset=0, producer_id=1, producer_epoch=0, base_sequence=5)
    assert read_records(b"".join(built)) == numbered(21)
    assert [batch.header.base_sequence for data in built for batch in batches(data)] == [5, 12, 19]


def test_sequence_numbers_wrap() -> None:
    table = pa.table({"value": [b"a", b"b"]})
    built = from_arrow(
        table, max_batch_bytes=1, producer_id=1, producer_epoch=0, base_sequence=2**31 - 1, is_transactional=True
    )
    headers = [batch.header for data in built for batch in batches(data)]
    assert [header.base_sequence for header in headers] == [2**31 - 1, 0]
    assert all(header.is_transactional for header in headers)


def test_batches_fill_the_limit_and_never_exceed_it() -> None:
    table = pa.table({"value": [bytes(100)] * 1000})
    built = from_arrow(table, max_batch_bytes=5000)
    assert max(len(batch) for batch in built) <= 5000
    assert min(len(batch) for batch in built[:-1]) > 5000 - 110
    assert sum(to_arrow(batch).num_rows for batch in built) == 1000


def test_a_record_larger_than_the_limit_has_a_batch_of_its_own() -> None:
    built = from_arrow(pa.table({"value": [b"a", bytes(5000), b"b"]}), max_batch_bytes=200)
    assert [to_arrow(batch).num_rows for batch in built] == [1, 1, 1]
    assert len(built[1]) > 5000


@pytest.mark.parametrize(
    ("kind", "value", "milliseconds"),
    [
        (pa.timestamp("s"), 5, 5000),
        (pa.timestamp("ms", tz="UTC"), 5, 5),
        (pa.timestamp("us", tz="Europe/Vienna"), 5999, 5),
        (pa.timestamp("ns"), 5_999_999, 5),
        (pa.int64(), 5, 5),
        (pa.int32(), 5, 5),
        (pa.uint64(), 5, 5),
        (pa.date32(), 1, 86_400_000),
    ],
)
def test_timestamps_of_every_unit_are_milliseconds(kind: pa.DataType, value: int, milliseconds: int) -> None:
    integers = pa.array([value, None], pa.int32() if kind == pa.date32() else pa.int64())
    array = integers.cast(kind)
    built = from_arrow(pa.table({"value": [b"a", b"b"], "timestamp": array}))
    assert [r.timestamp for r in read_records(b"".join(built))] == [milliseconds, -1]


def test_headers_may_be_a_map_or_null() -> None:
    maps = pa.array([[("a", b"1"), ("b", None)], None, []], pa.map_(pa.string(), pa.binary()))
    built = from_arrow(pa.table({"value": [b"x"] * 3, "headers": maps}))
    assert [r.headers for r in read_records(b"".join(built))] == [(("a", b"1"), ("b", None)), (), ()]
    nothing = pa.nulls(2)
    built = from_arrow(pa.table({"key": nothing, "value": nothing, "headers": nothing, "timestamp": nothing}))
    assert [(r.key, r.value, r.headers, r.timestamp) for r in read_records(built[0])] == [(None, None, (), -1)] * 2


@pytest.mark.parametrize(
    ("columns", "error", "message"),
    [
        ({"key": [b"k"]}, ValueError, "column 'value' is missing; the columns are key"),
        ({"value": [1.5]}, TypeError, "column 'value' is double"),
        ({"value": [b"v"], "timestamp": ["now"]}, TypeError, "column 'timestamp' is string"),
        ({"value": [b"v"], "timestamp": [-2]}, InvalidRecordError, "row 0: timestamp is negative"),
        ({"value": [b"v"], "headers": [5]}, TypeError, "column 'headers' is int64"),
        (
            {"value": [b"v"], "headers": pa.array([[{"key": None, "value": b""}]], pa.list_(HEADER))},
            InvalidRecordError,
            "a header has no key",
        ),
    ],
)
def test_table_with_wrong_columns_is_refused(columns: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        from_arrow(pa.table(columns))


def test_unknown_codec_or_wrong_table_type_is_refused() -> None:
    with pytest.raises(UnsupportedCodecError, match="codec is 8"):
        from_arrow(pa.table({"value": [b"v"]}), codec=8)
    with pytest.raises(TypeError, match="the table is list; pass a pyarrow Table or RecordBatch"):
        from_arrow([b"v"])


def test_offsets_outside_their_column_are_refused() -> None:
    def column(*offsets: int) -> BinaryColumn:
        data = b"".join(offset.to_bytes(4, "little", signed=True) for offset in offsets)
        return BinaryColumn(None, data, b"data", 0, len(offsets) - 1, False)

    for wrong in (column(0, 5), column(-1, 3), column(3, 1)):
        with pytest.raises(InvalidRecordError, match="row 0: value goes past the end of its column"):
            ColumnEncoder(1, None, wrong).encode(0, 1000)
    with pytest.raises(ValueError, match="too few for rows"):
        BinaryColumn(None, b"\x00" * 8, b"data", 0, 2, False)
    with pytest.raises(ValueError, match="row 1 doesn't exist; there are 1 rows"):
        ColumnEncoder(1, None, column(0, 4)).encode(1, 1000)

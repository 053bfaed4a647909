"""Batches as Spark's rows: the records of the object reader, without those that the request excludes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import CorruptBatchError
from stratalog.records import format
from stratalog.records._crc32c import crc32c
from stratalog.records._records import Record
from stratalog.records.builder import BatchBuilder, build_batch, build_control_batch
from stratalog.records.format import ControlType
from stratalog.records.legacy import build_message_set
from stratalog.records.reader import read_records
from stratalog.spark.decoding import Aborted, Decoder
from stratalog.spark.predicate import EVERYTHING, Predicate
from stratalog.spark.scan_request import READ_COMMITTED
from stratalog.spark.schema import ALL_COLUMNS as ALL
from tests.records.strategies import codecs, numbered
from tests.spark.rows import Row, matches, row_of, rows_in


def rows_of(decoder: Decoder, *pieces: Any, aborted: Any = ()) -> list[Row]:
    """Return all rows. Checks that the batches are valid and not empty."""
    actual: list[Row] = []
    for piece in pieces:
        for batch in decoder.decode(piece, aborted):
            actual += checked(batch, decoder)
    for batch in decoder.finish():
        actual += checked(batch, decoder)
    return actual


def checked(batch: pa.RecordBatch, decoder: Decoder) -> list[Row]:
    assert batch.schema.equals(decoder.schema)
    return rows_in(batch)


present_keys = st.sampled_from([b"", b"a", b"b", b"key-12345678", b"key-12345679", b"x" * 70])
keys = st.none() | present_keys
small_headers = st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2)


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    """Draw some batches of any magic and codec, with gaps, control batches and unsorted timestamps."""
    offset = draw(st.integers(0, 50))
    log = bytearray()
    for _ in range(draw(st.integers(1, 5))):
        magic = draw(st.sampled_from([2, 2, 2, 2, 1, 0]))
        if magic == 2 and draw(st.integers(0, 6)) == 0:
            log += marker(ControlType.COMMIT, 1, offset)
            offset += 1
            continue
        records = []
        for _ in range(draw(st.integers(1, 6))):
            record = Record(
                offset=offset,
                timestamp=-1 if magic == 0 else draw(st.integers(-1, 12)),
                key=draw(keys),
                value=draw(st.none() | st.binary(max_size=20)),
                headers=draw(small_headers) if magic == 2 else (),
            )
            records.append(record)
            offset += draw(st.sampled_from([1, 1, 1, 3]))
        codec = draw(codecs if magic == 2 else st.integers(0, 3))
        if magic == 2:
            builder = BatchBuilder(codec=codec)
            if draw(st.booleans()):
                builder.timestamp_type, builder.append_time = 1, draw(st.integers(0, 12))
            builder.extend(records, [record.offset - records[0].offset for record in records])
            log += builder.build(records[0].offset)
        else:
            log += build_message_set(records, magic=magic, codec=codec)
    return bytes(log)


@st.composite
def predicates(draw: st.DrawFn) -> Predicate:
    low, high = st.just(-(2**63)) | st.integers(-2, 13), st.just(2**63 - 1) | st.integers(-2, 13)
    return Predicate(
        from_offset=draw(st.just(-(2**63)) | st.integers(0, 70)),
        until_offset=draw(st.just(2**63 - 1) | st.integers(0, 70)),
        from_timestamp=draw(low),
        until_timestamp=draw(high),
        keys=draw(st.none() | st.frozensets(present_keys, max_size=4)),
    )


@given(
    log=logs(),
    predicate=predicates(),
    start=st.integers(0, 60),
    length=st.integers(0, 60),
    columns=st.lists(st.sampled_from(ALL), unique=True, min_size=1),
    rows_per_batch=st.integers(1, 9),
    bytes_per_batch=st.integers(1, 200),
)
def test_rows_are_the_matching_records_of_the_object_reader(
    log: bytes,
    predicate: Predicate,
    start: int,
    length: int,
    columns: list[str],
    rows_per_batch: int,
    bytes_per_batch: int,
) -> None:
    end = start + length
    decoder = Decoder(
        "orders",
        3,
        columns,
        predicate,
        start,
        end,
        rows_per_batch=rows_per_batch,
        bytes_per_batch=bytes_per_batch,
    )
    expected = [record for record in read_records(log) if start <= record.offset < end and matches(predicate, record)]
    assert rows_of(decoder, log) == [row_of(record, tuple(columns)) for record in expected]


@given(codec=codecs, cut=st.integers(0, 400))
def test_incomplete_batch_is_decoded_with_the_next_bytes(codec: int, cut: int) -> None:
    first, second = numbered(10), numbered(10, first=10)
    log = build_batch(first, codec=codec) + build_batch(second, base_offset=10, codec=codec)
    decoder = Decoder("orders", 3, ALL)
    cut = min(cut, len(log))
    rows = []
    for batch in decoder.decode(log[:cut]):
        rows += checked(batch, decoder)
    rows += rows_of(decoder, log[decoder.position :])
    assert rows == [row_of(record) for record in first + second]
    assert decoder.next_offset == 20


def test_types_are_those_that_spark_accepts() -> None:
    decoder = Decoder("orders", 3, ALL)
    assert [str(kind) for kind in decoder.schema.types] == [
        "binary",
        "binary",
        "string",
        "int32",
        "int64",
        "timestamp[us, tz=UTC]",
        "int32",
        "list<item: struct<key: string, value: binary>>",
    ]


def test_timestamps_are_the_same_instants() -> None:
    log = build_batch([Record(timestamp=1_767_225_600_123, value=b"v")])
    decoder = Decoder("orders", 3, ["timestamp"])
    (batch,) = [*decoder.decode(log), *decoder.finish()]
    assert batch.column(0)[0].as_py() == datetime(2026, 1, 1, 0, 0, 0, 123000, tzinfo=UTC)


def test_arrow_batches_have_the_requested_size() -> None:
    records = [Record(offset=offset, value=b"x" * 100) for offset in range(1000)]
    log = build_batch(records, codec=format.Codec.ZSTD)
    decoder = Decoder("orders", 3, ["offset"], rows_per_batch=300)
    sizes = [batch.num_rows for batch in [*decoder.decode(log), *decoder.finish()]]
    assert sizes == [300, 300, 300, 100]
    decoder = Decoder("orders", 3, ["value"], bytes_per_batch=10_000)
    sizes = [batch.num_rows for batch in [*decoder.decode(log), *decoder.finish()]]
    assert sum(sizes) == 1000
    assert max(sizes) <= 100
    assert len(sizes) < 20


def test_small_fetches_are_collected_into_one_batch() -> None:
    decoder = Decoder("orders", 3, ALL)
    records = numbered(40)
    for start in range(0, 40, 10):
        piece = build_batch(records[start : start + 10], base_offset=start)
        assert list(decoder.decode(piece)) == []
    (batch,) = decoder.finish()
    assert checked(batch, decoder) == [row_of(record) for record in records]
    assert list(decoder.finish()) == []


def test_record_of_ten_megabytes_is_a_batch_of_its_own() -> None:
    large = Record(offset=1, key=b"k", value=b"z" * 10_000_000)
    records = [Record(offset=0, value=b"a"), large, Record(offset=2, value=b"b")]
    decoder = Decoder("orders", 3, ["value"], bytes_per_batch=1000)
    batches = [*decoder.decode(build_batch(records)), *decoder.finish()]
    assert [len(value) for batch in batches for value in batch.column(0).to_pylist()] == [1, 10_000_000, 1]
    assert [batch.num_rows for batch in batches] == [2, 1]


def test_columns_that_are_not_requested_are_not_copied() -> None:
    log = build_batch([Record(offset=offset, value=b"v" * 10_000) for offset in range(100)])
    decoder = Decoder("orders", 3, ["offset"], bytes_per_batch=1000)
    (batch,) = [*decoder.decode(log), *decoder.finish()]  # with values, there would be ten
    assert batch.num_rows == 100
    assert batch.get_total_buffer_size() == 800


def test_only_topic_and_partition_are_requested() -> None:
    decoder = Decoder("orders", 3, ["partition", "topic"])
    assert rows_of(decoder, build_batch(numbered(3))) == [{"partition": 3, "topic": "orders"}] * 3


def test_empty_input_yields_no_batch() -> None:
    decoder = Decoder("orders", 3, ALL)
    assert rows_of(decoder, b"") == []
    assert rows_of(Decoder("orders", 3, ALL, start=5, end=5), build_batch(numbered(9))) == []
    assert rows_of(Decoder("orders", 3, ALL, Predicate(partitions=frozenset([4]))), build_batch(numbered(9))) == []


def test_decoder_is_done_at_the_end_of_a_range_that_ends_in_a_gap() -> None:
    decoder = Decoder("orders", 3, ["offset"], end=7)
    list(decoder.decode(build_batch(numbered(5))))
    assert not decoder.is_done
    assert decoder.next_offset == 5
    assert finished(decoder, build_batch(numbered(3, first=20), base_offset=20)) == (True, 7)


def finished(decoder: Decoder, data: bytearray) -> tuple[bool, int]:
    list(decoder.decode(data))
    return decoder.is_done, decoder.next_offset


def transaction(producer_id: int, first: int, count: int = 2) -> bytearray:
    return build_batch(
        numbered(count, first=first),
        base_offset=first,
        producer_id=producer_id,
        producer_epoch=0,
        is_transactional=True,
    )


def marker(kind: ControlType, producer_id: int, offset: int) -> bytearray:
    return build_control_batch(kind, producer_id, 0, 0, 1000, base_offset=offset)


@pytest.mark.parametrize(
    "aborted",
    [[(7, 0), (7, 10)], [Aborted(7, 0, 6), Aborted(7, 10, 12)]],
    ids=["as a fetch lists them", "as the index lists them"],
)
def test_aborted_transactions_are_left_out(aborted: list[Any]) -> None:
    log = (
        transaction(7, 0)  # aborted
        + transaction(8, 2)  # committed, in between
        + transaction(7, 4)
        + marker(ControlType.ABORT, 7, 6)
        + transaction(7, 7)  # the same producer, committed
        + marker(ControlType.COMMIT, 8, 9)
        + transaction(7, 10)  # aborted again
        + marker(ControlType.ABORT, 7, 12)
    )
    read = rows_of(Decoder("orders", 3, ["offset"], isolation=READ_COMMITTED), log, aborted=aborted)
    assert [row["offset"] for row in read] == [2, 3, 7, 8]
    read = rows_of(Decoder("orders", 3, ["offset"]), log, aborted=aborted)
    assert [row["offset"] for row in read] == [0, 1, 2, 3, 4, 5, 7, 8, 10, 11]


def test_header_key_that_is_not_utf_8_is_read_as_in_java() -> None:
    log = build_batch([Record(value=b"v", headers=[("k\N{LATIN SMALL LETTER E WITH ACUTE}", b"1")])])
    log = log.replace("\N{LATIN SMALL LETTER E WITH ACUTE}".encode(), b"\xc3\x28")
    log = bytearray(log)
    log[17:21] = format_crc(log)
    decoder = Decoder("orders", 3, ["headers"])
    assert rows_of(decoder, log) == [{"headers": [{"key": "k\ufffd(", "value": b"1"}]}]
    assert rows_of(Decoder("orders", 3, ["value"]), log) == [{"value": b"v"}]


def format_crc(batch: bytearray) -> bytes:
    return crc32c(batch[21:]).to_bytes(4, "big")


def test_corrupt_batch_is_reported_with_topic_partition_and_offset() -> None:
    log = build_batch(numbered(5)) + build_batch(numbered(5, first=5), base_offset=5)
    log[-3] ^= 1
    decoder = Decoder("orders", 3, ALL)
    with pytest.raises(CorruptBatchError, match=r"orders-3, offset 5: checksum .* startingOffsets"):
        rows_of(decoder, log)


def test_corrupt_batch_outside_the_time_range_is_an_error() -> None:
    log = build_batch(numbered(5))
    log[-3] ^= 1
    with pytest.raises(CorruptBatchError, match="checksum"):
        rows_of(Decoder("orders", 3, ALL, Predicate(from_timestamp=2**60)), log)


@pytest.mark.parametrize("where", [0, 4, 6, 12])  # the lengths of record, key and value, and the number of headers
def test_record_with_a_wrong_length_is_an_error(where: int) -> None:
    log = build_batch([Record(key=b"k", value=b"value")])
    log[format.HEADER_SIZE + where] = 0x7E
    log[17:21] = format_crc(log)
    with pytest.raises(CorruptBatchError, match="orders-3, offset 0: record 0 of 1"):
        rows_of(Decoder("orders", 3, ALL), log)


def test_bytes_that_are_passed_twice_yield_rows_once() -> None:
    decoder = Decoder("orders", 3, ["offset"])
    pieces = [numbered(10), numbered(5, first=5), numbered(10, first=8)]
    logs = [build_batch(records, base_offset=records[0].offset) for records in pieces]
    assert [row["offset"] for row in rows_of(decoder, *logs)] == list(range(18))


@pytest.mark.parametrize("wrong", [2, 100])  # 100 is after the range, and would end the scan
def test_an_offset_that_does_not_fit_between_its_neighbours_is_an_error(wrong: int) -> None:
    log = build_batch(numbered(5)) + build_batch(numbered(5, first=5), base_offset=wrong)
    log += build_batch(numbered(5, first=10), base_offset=10)
    with pytest.raises(CorruptBatchError, match=rf"orders-3, offset {wrong}: .* follow"):
        rows_of(Decoder("orders", 3, ALL, end=15), log)


def test_bytes_that_are_not_a_batch_are_an_error() -> None:
    with pytest.raises(CorruptBatchError, match="orders-3, offset 0: batch length is 0"):
        rows_of(Decoder("orders", 3, ALL), bytes(100))


def test_decompression_bomb_is_an_error() -> None:
    log = build_batch([Record(value=b"\0" * 1_000_000)], codec=format.Codec.GZIP)
    with pytest.raises(CorruptBatchError, match=r"orders-3, offset 0: .*more than the limit of 1000 bytes"):
        rows_of(Decoder("orders", 3, ALL, max_decompressed=1000), log)


def test_timestamp_out_of_range_is_an_error_if_it_is_requested() -> None:
    log = build_batch([Record(timestamp=2**62, value=b"v")])
    with pytest.raises(CorruptBatchError, match="does not fit 64 bits as microseconds"):
        rows_of(Decoder("orders", 3, ALL), log)
    assert rows_of(Decoder("orders", 3, ["value"]), log) == [{"value": b"v"}]


def test_reader_that_stops_early_releases_the_bytes() -> None:
    log = bytearray(build_batch(numbered(50)))
    decoder = Decoder("orders", 3, ["offset"], rows_per_batch=10)
    walk = decoder.decode(log)
    next(walk)
    walk.close()  # type: ignore[attr-defined]
    log.clear()  # fails if the buffer is still exported
    assert list(decoder.decode(build_batch(numbered(5, first=50), base_offset=50))) == []


@pytest.mark.parametrize("columns", [["nope"], ["key", "key"]])
def test_unknown_or_repeated_columns_are_refused(columns: list[str]) -> None:
    with pytest.raises(ValueError, match="column"):
        Decoder("orders", 3, columns)


def test_isolation_has_two_levels() -> None:
    with pytest.raises(ValueError, match="snapshot"):
        Decoder("orders", 3, ALL, EVERYTHING, isolation="snapshot")

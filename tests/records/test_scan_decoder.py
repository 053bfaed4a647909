"""The rules of the kernel. tests/spark/test_decoding.py compares its records with those read as objects."""

from __future__ import annotations

from typing import Any

import pytest

from stratalog.records import _column_decoder
from stratalog.records._records import Record
from stratalog.records._scan_decoder import ScanDecoder
from stratalog.records.builder import build_batch, build_control_batch
from stratalog.records.format import Codec, ControlType, TimestampType
from stratalog.records.legacy import build_message_set
from tests.records.strategies import numbered

KEY, VALUE, OFFSET = _column_decoder.KEY, _column_decoder.VALUE, _column_decoder.OFFSET


def batch(count: int, first: int = 0) -> bytearray:
    return build_batch(numbered(count, first), base_offset=first)


def offsets(decoder: ScanDecoder) -> list[int]:
    rows, columns = decoder.take()
    column = columns[OFFSET]
    assert not isinstance(column, tuple)
    values = memoryview(column).cast("q").tolist()
    assert len(values) == rows
    return values


def test_portion_is_full_only_when_another_row_follows() -> None:
    decoder = ScanDecoder(OFFSET, most_rows=5)
    decoder.feed(batch(10))
    assert decoder.run()
    assert decoder.rows == 5
    assert offsets(decoder) == [0, 1, 2, 3, 4]
    assert not decoder.run()
    assert offsets(decoder) == [5, 6, 7, 8, 9]
    assert decoder.rows == 0


@pytest.mark.parametrize("magic", [1, 2])
def test_portion_is_full_at_the_limit_of_bytes(magic: int) -> None:
    records = [Record(key=b"k", value=bytes(999), timestamp=1, offset=offset) for offset in range(10)]
    data = build_batch(records) if magic == 2 else build_message_set(records, magic=magic, codec=Codec.GZIP)
    decoder = ScanDecoder(KEY | VALUE | OFFSET, most_bytes=3_000)
    decoder.feed(data)
    portions = []
    while decoder.run():
        portions.append(offsets(decoder))
    portions.append(offsets(decoder))
    assert portions == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]


def test_transaction_ends_at_its_abort_marker_if_its_end_is_not_known() -> None:
    fields: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "is_transactional": True}
    aborted = build_batch(numbered(2), base_sequence=0, **fields)
    marker = build_control_batch(
        ControlType.ABORT, base_offset=2, timestamp=0, producer_id=7, producer_epoch=0, coordinator_epoch=0
    )
    committed = build_batch(numbered(2), base_offset=3, base_sequence=2, **fields)
    decoder = ScanDecoder(OFFSET, read_committed=True)
    decoder.feed(aborted + marker + committed, [(7, 0, 2**63 - 1)])
    assert not decoder.run()
    assert offsets(decoder) == [3, 4]


def test_scan_ends_at_the_first_batch_after_its_range_when_the_range_is_compacted_away() -> None:
    decoder = ScanDecoder(OFFSET, end=3)
    decoder.feed(batch(3, first=3))
    assert not decoder.run()
    assert (decoder.is_done, decoder.position, offsets(decoder)) == (True, 0, [])


@pytest.mark.parametrize(
    ("timestamp_type", "expected"), [(TimestampType.CREATE_TIME, [10, 20]), (TimestampType.LOG_APPEND_TIME, [50, 50])]
)
def test_log_append_time_replaces_the_timestamps_of_the_records(timestamp_type: int, expected: list[int]) -> None:
    records = [Record(value=b"v", timestamp=timestamp) for timestamp in (10, 20)]
    decoder = ScanDecoder(_column_decoder.TIMESTAMP)
    decoder.feed(build_batch(records, timestamp_type=timestamp_type, append_time=50))
    assert not decoder.run()
    _, columns = decoder.take()
    microseconds = memoryview(columns[_column_decoder.TIMESTAMP]).cast("q").tolist()  # type: ignore[arg-type]
    assert microseconds == [timestamp * 1000 for timestamp in expected]


def test_an_empty_portion_can_be_taken() -> None:
    decoder = ScanDecoder(OFFSET | KEY)
    rows, columns = decoder.take()
    assert rows == 0
    assert len(memoryview(columns[OFFSET])) == 0  # type: ignore[arg-type]


def test_feeding_before_all_bytes_are_used_is_refused() -> None:
    decoder = ScanDecoder(OFFSET, most_rows=5)
    decoder.feed(batch(10))
    assert decoder.run()
    with pytest.raises(ValueError, match="not used up"):
        decoder.feed(batch(1, first=10))
    decoder.release()
    decoder.take()
    decoder.feed(batch(1, first=10))
    assert not decoder.run()
    assert offsets(decoder) == [10]


def test_position_is_after_the_last_complete_batch() -> None:
    first, second = batch(3), batch(3, first=3)
    decoder = ScanDecoder(OFFSET)
    decoder.feed(first + second[:-1])
    assert not decoder.run()
    assert (decoder.position, decoder.next_offset, decoder.last_fed) == (len(first), 3, 2)
    decoder.feed(second, continues=True)
    assert not decoder.run()
    assert (decoder.position, decoder.next_offset) == (len(second), 6)


def test_offsets_must_keep_rising_in_continued_bytes() -> None:
    decoder = ScanDecoder(OFFSET)
    decoder.feed(batch(10))
    decoder.run()
    decoder.feed(batch(10, first=5))  # other bytes, partly read
    assert not decoder.run()
    decoder.feed(batch(10, first=8), continues=True)
    with pytest.raises(Exception, match=r"offsets 8\.\.17 follow offset 14"):
        decoder.run()


@pytest.mark.parametrize("count", [0, 1, 2, 7, 8, 9, 64, 65, 1000])
def test_keys_of_any_number_and_length_are_distinguished(count: int) -> None:
    keys = [b"k" * (number % 70) + b"%d" % number for number in range(count)]
    strangers = [key + b"x" for key in keys] + [key[:-1] for key in keys if key[:-1] not in keys] + [b"", b"k" * 40]
    records = [key for pair in zip(keys, strangers, strict=False) for key in pair] + [b"stranger", None]
    decoder = ScanDecoder(OFFSET, keys=keys)
    decoder.feed(build_batch([(key, b"v") for key in records]))
    assert not decoder.run()
    known = set(keys)
    assert offsets(decoder) == [offset for offset, key in enumerate(records) if key in known]


@pytest.mark.parametrize(("rows", "size"), [(0, 1), (1, 0)])
def test_portion_without_rows_or_bytes_is_refused(rows: int, size: int) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        ScanDecoder(OFFSET, most_rows=rows, most_bytes=size)


def test_key_that_is_not_bytes_is_refused() -> None:
    with pytest.raises(TypeError):
        ScanDecoder(OFFSET, keys=["text"])  # type: ignore[list-item]

"""Checking the framing piece by piece gives the same result as checking all of it, for any pieces."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import InvalidRecordError
from stratalog.records._framing import parse_header
from stratalog.records._record_stream import RecordStream
from stratalog.records._records import Record
from stratalog.records.builder import build_batch
from stratalog.records.format import HEADER_SIZE
from stratalog.records.validation import check_records
from tests.records.strategies import numbered, record_lists

ABSENT = -(2**60)


def cut(payload: bytes, cuts: Iterable[int]) -> list[bytes]:
    edges = [0, *sorted(position % (len(payload) + 1) for position in cuts), len(payload)]
    return [payload[start:end] for start, end in itertools.pairwise(edges)]


def streamed(pieces: list[bytes], count: int) -> RecordStream:
    stream = RecordStream(count, ABSENT)
    for piece in pieces:
        stream.feed(piece)
    stream.finish()
    return stream


@given(records=record_lists(), cuts=st.lists(st.integers(0, 10**6), max_size=20))
def test_valid_records_are_valid_for_any_pieces(records: list[Record], cuts: list[int]) -> None:
    batch = build_batch(records)
    header = parse_header(batch)
    assert header is not None
    payload = bytes(batch[HEADER_SIZE:])
    stream = streamed(cut(payload, cuts), len(records))
    largest, null_keys = check_records(payload, header)
    assert (header.base_timestamp + stream.max_timestamp_delta, stream.null_keys) == (largest, null_keys)


@given(
    records=record_lists(),
    cuts=st.lists(st.integers(0, 10**6), max_size=10),
    damage=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=3),
    more=st.integers(-2, 2),
)
def test_damage_is_reported_as_for_the_whole_payload(
    records: list[Record], cuts: list[int], damage: list[tuple[int, int]], more: int
) -> None:
    batch = build_batch(records)
    header = parse_header(batch)
    assert header is not None
    payload = bytearray(batch[HEADER_SIZE:])
    for position, value in damage:
        payload[position % len(payload)] = value
    del payload[len(payload) + min(more, 0) :]
    payload += bytes(max(more, 0))
    try:
        check_records(payload, header)
    except InvalidRecordError:
        with pytest.raises(InvalidRecordError, match=r"record \d+ of \d+: "):
            streamed(cut(bytes(payload), cuts), len(records))
    else:
        streamed(cut(bytes(payload), cuts), len(records))


def test_record_without_a_timestamp_is_not_the_oldest() -> None:
    batch = build_batch(numbered(3))
    stream = RecordStream(3, 0)
    stream.feed(batch[HEADER_SIZE:])
    assert stream.min_timestamp_delta > 0

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from typing_extensions import Buffer

from stratalog.errors import MessageTooLargeError
from stratalog.records._framing import BatchHeader
from stratalog.records.batch import batches
from stratalog.records.builder import build_batch
from stratalog.records.format import Codec
from stratalog.records.reader import read_records
from stratalog.records.recompress import recompress
from stratalog.records.validation import check_contents, parse_for_append
from tests.records.strategies import codecs, numbered, record, record_lists

ANY_SIZE = 2**31 - 1


def changed(
    data: bytearray, codec: int, level: int | None = None, max_batch_bytes: int = ANY_SIZE
) -> tuple[bytearray, list[BatchHeader]]:
    headers = parse_for_append(data, ANY_SIZE)
    payloads: list[Buffer] = []
    check_contents(data, headers, payloads=payloads)
    return recompress(data, headers, payloads, codec, level, max_batch_bytes)


def identity(header: BatchHeader) -> tuple[int, ...]:
    """Return the header fields except codec, size and checksum."""
    return (
        header.attributes & ~7,
        header.base_offset,
        header.last_offset_delta,
        header.record_count,
        header.base_timestamp,
        header.max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.leader_epoch,
    )


@given(record_lists(), codecs, codecs, st.booleans())
def test_recompressed_batch_has_the_same_records(
    records: list[object], source: int, target: int, transactional: bool
) -> None:
    producer = {"producer_id": 7, "producer_epoch": 3, "base_sequence": 11} if transactional else {}
    data = build_batch(records, codec=source, is_transactional=transactional, **producer)  # type: ignore[arg-type]
    before = parse_for_append(bytes(data), ANY_SIZE)[0]
    assume(before.max_timestamp - before.base_timestamp < 2**63)  # a larger delta does not fit the format
    result, headers = changed(data, target)
    assert [header.codec for header in headers] == [target]
    assert identity(headers[0]) == identity(before)
    assert list(read_records(result)) == list(read_records(data))
    assert parse_for_append(result, ANY_SIZE)[0].size == len(result)  # with its checksum


def test_batches_with_the_codec_are_unchanged_and_the_others_are_recompressed() -> None:
    parts = [build_batch(numbered(20), codec=codec) for codec in (Codec.GZIP, Codec.ZSTD, Codec.NONE)]
    result, headers = changed(bytearray().join(parts), Codec.ZSTD)
    assert [header.codec for header in headers] == [Codec.ZSTD] * 3
    assert bytes(list(batches(result))[1].data) == parts[1]
    assert [header.position for header in headers] == [0, headers[0].size, headers[0].size + headers[1].size]


def test_level_is_used() -> None:
    data = build_batch([record(b"%d" % (number * 7919)) for number in range(3000)])
    fast, _ = changed(data, Codec.ZSTD, -50)
    thorough, _ = changed(data, Codec.ZSTD, 19)
    assert len(thorough) < len(fast)


def test_batch_that_grows_past_the_limit_is_refused() -> None:
    data = build_batch([record(b"a" * 100_000)], codec=Codec.ZSTD)
    with pytest.raises(MessageTooLargeError, match=r"compressing it again .* max\.message\.bytes is 5000") as caught:
        changed(data, Codec.NONE, max_batch_bytes=5000)
    assert caught.value.code == 10

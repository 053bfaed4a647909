"""The kernels of compaction for many batches: the same results as one by one, and no surviving record is skipped."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.records._compaction import copy_plain, filter_batch, reseal
from stratalog.records._framing import parse_header, parse_headers
from stratalog.records._key_map import KeyMap
from stratalog.records._records import Record
from stratalog.records.batch import batches as batches_in
from stratalog.records.builder import build_batch
from stratalog.records.reader import records_of
from tests.records.keyed_batches import HEADER, KEYS, SEED, add, encode, kept_of, keyed_batches, record


@given(keyed_batches(), st.integers(0, 5), st.floats(0, 1))
def test_skipped_batches_have_no_surviving_record(batches: list[list[Record]], first: int, listed: float) -> None:
    keys = KeyMap(512, 0.9, SEED)
    for records in batches[:-1]:
        add(keys, records)
    start = batches[0][0].offset
    headers = [encode(records)[1] for records in batches]
    assert keys.skip_dead(headers, min(first, len(headers))) == min(first, len(headers)), "nothing is listed"
    keys.list_last(start + round(listed * (batches[-1][-1].offset - start)), 10**6)
    index = 0
    while (live := keys.skip_dead(headers, index)) < len(headers):
        assert all(kept_of(records, keys, False)[1].count == 0 for records in batches[index:live])
        index = live + 1
    assert index == len(headers), "the last batch is not in the map, and was skipped"


def test_batches_of_producers_and_markers_are_never_skipped() -> None:
    keys = KeyMap(64, 0.9, SEED)
    keys.put(b"k", 100)
    keys.list_last(0, 100)
    for fields, skipped in [({}, 1), ({"producer_id": 5}, 0), ({"is_control": True}, 0), ({"codec": "gzip"}, 1)]:
        header = parse_header(build_batch([record(0)], **fields))  # type: ignore[arg-type]
        assert header is not None
        assert keys.skip_dead([header], 0) == skipped, fields


def test_list_that_takes_too_much_memory_is_not_created() -> None:
    keys = KeyMap(64, 0.9, SEED)
    keys.put(b"k", 10_000)
    header = encode([record(5, key=b"other")])[1]
    keys.list_last(0, 1250)
    assert keys.skip_dead([header], 0) == 0
    keys.list_last(0, 1251)
    assert keys.skip_dead([header], 0) == 1
    keys.put(b"k", 10_001)
    assert keys.skip_dead([header], 0) == 0, "the list is older than the map"


@given(keyed_batches(), st.integers(0, 600), st.sampled_from([3, 512]))
def test_adding_batches_at_once_equals_adding_them_one_by_one(
    batches: list[list[Record]], skipped: int, slots: int
) -> None:
    from_offset = batches[0][0].offset + skipped
    buffer = bytearray()
    for number, records in enumerate(batches):
        base = records[0].offset
        deltas = [record.offset - base for record in records]
        buffer += build_batch(records, base_offset=base, offset_deltas=deltas, codec=number % 4 == 3)
    headers, _, error = parse_headers(buffer)
    assert error is None
    at_once, one_by_one = KeyMap(slots, 0.9, SEED), KeyMap(slots, 0.9, SEED)
    count = at_once.add_batches(buffer, headers, 0, from_offset)
    for number, records in enumerate(batches):
        if number == 3 or not add(one_by_one, records, from_offset):
            assert count == number
            break
    else:
        assert count == len(batches)
    keys = [key for key in KEYS if key is not None]
    assert [at_once.get(key) for key in keys] == [one_by_one.get(key) for key in keys]
    assert at_once.latest == one_by_one.latest


@given(keyed_batches(), st.booleans(), st.floats(0, 1), st.booleans())
def test_copying_batches_at_once_equals_filtering_them_one_by_one(
    batches: list[list[Record]], listed: bool, mapped: float, has_horizon: bool
) -> None:
    buffer = bytearray()
    for number, records in enumerate(batches):
        base = records[0].offset
        fields = {"codec": number % 5 == 4, "delete_horizon": 1000 if has_horizon else None}
        deltas = [record.offset - base for record in records]
        buffer += build_batch(records, base_offset=base, offset_deltas=deltas, **fields)  # type: ignore[arg-type]
    headers, _, _ = parse_headers(buffer)
    keys = KeyMap(512, 0.9, SEED)
    for records in batches[: round(mapped * len(batches))]:
        add(keys, records)
    if listed:
        keys.list_last(batches[0][0].offset, 10**6)
    out, kept_headers = bytearray(b"before"), [headers[0]]
    index, changed = copy_plain(keys, buffer, headers, 0, 1000, out, kept_headers)
    expected, removed = bytearray(b"before"), 0
    for at, header in enumerate(headers):
        start, end = header.position, header.position + header.size
        if header.codec:
            assert index == at
            break
        kept = filter_batch(buffer, header, keys, has_horizon, start + HEADER, end)
        if kept.tombstones and not has_horizon:
            assert index == at
            break
        removed += kept.removed
        if kept.payload is None:
            expected += buffer[start:end]
        elif kept.count:
            reseal(kept.payload, buffer, header, kept.count, kept.max_timestamp)
            expected += kept.payload
    else:
        assert index == len(headers)
    assert out == expected
    assert changed == bool(removed)
    again, _, error = parse_headers(out[6:])
    assert error is None
    for new, parsed in zip(kept_headers[1:], again, strict=True):
        assert (new.base_offset, new.size, new.max_timestamp) == (
            parsed.base_offset,
            parsed.size,
            parsed.max_timestamp,
        )


def test_batch_with_a_wrong_checksum_is_not_copied() -> None:
    batch, header = encode([record(0)])
    batch[-1] ^= 1
    out = bytearray()
    assert copy_plain(KeyMap(16, 0.9, SEED), batch, [header], 0, 0, out, []) == (0, False)
    assert out == b""


@given(keyed_batches(most=1), st.integers(0, 1))
def test_resealed_batch_keeps_the_other_header_fields(batches: list[list[Record]], time_type: int) -> None:
    [records] = batches
    base = records[0].offset
    deltas = [record.offset - base for record in records]
    fields = {"timestamp_type": time_type, "append_time": 5, "producer_id": 7, "leader_epoch": 3}
    before = build_batch(records, base_offset=base, offset_deltas=deltas, **fields)  # type: ignore[arg-type]
    batch = b"junk" + before
    header = parse_header(batch, 4)
    assert header is not None
    keys = KeyMap(512, 0.9, SEED)
    keys.add(batch, header, 0, 4 + HEADER, len(batch))
    kept = filter_batch(batch, header, keys, False, 4 + HEADER, len(batch))
    if kept.payload is None or not kept.count:
        return
    reseal(kept.payload, batch, header, kept.count, kept.max_timestamp)
    [resealed] = list(batches_in(kept.payload))
    assert resealed.crc_matches()
    last = {record.key: record.offset for record in records}
    survivors = [record for record in records if record.key is not None and record.offset == last[record.key]]
    assert [record.offset for record in records_of(resealed)] == [record.offset for record in survivors]
    assert resealed.header.max_timestamp == (5 if time_type else max(record.timestamp for record in survivors))
    assert (resealed.header.producer_id, resealed.header.leader_epoch) == (7, 3)
    assert resealed.header.last_offset == header.last_offset


@pytest.mark.parametrize("left", [0, 1, 60])
def test_header_past_the_buffer_is_not_copied(left: int) -> None:
    data = bytes(build_batch([(b"a", b"1")]) + build_batch([(b"b", b"2")], base_offset=1))
    _, second = parse_headers(data)[0]
    with pytest.raises(ValueError, match="have none at"):
        reseal(bytearray(100), data[: second.position + left], second, 1, 0)

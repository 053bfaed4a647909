"""The kernels of compaction against a dict: which offset a key was last written at, and which records of a batch stay.

Bytes that are no records give CorruptBatchError, whatever they are.
"""

from __future__ import annotations

import contextlib
import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.errors import CorruptBatchError
from stratalog.records import format
from stratalog.records._compaction import SLOT_SIZE, Kept, KeyMap, filter_batch, rebase_timestamps, reseal
from stratalog.records._framing import BatchHeader, parse_header, parse_headers
from stratalog.records._records import Record, decode_records
from stratalog.records.batch import batches as batches_in
from stratalog.records.builder import build_batch
from stratalog.records.reader import records_of

SEED = bytes(range(16))
HEADER = format.HEADER_SIZE
KEYS = [None, b"", b"a", b"b", b"c", b"k" * 40]


@st.composite
def keyed_batches(draw: st.DrawFn, most: int = 6) -> list[list[Record]]:
    """Batches with gaps between and inside them, as compaction leaves them."""
    rng = random.Random(draw(st.integers(0, 2**32)))  # a draw for each field would take most of the time
    offset, batches = rng.choice([0, 5, 2**40]), []
    for _ in range(draw(st.integers(1, most))):
        records = []
        for _ in range(draw(st.sampled_from([1, 2, 7, 40]))):  # more than the kernel looks ahead, too
            records.append(
                Record(
                    offset=offset,
                    timestamp=rng.choice([-1, 0, 2**40, rng.randrange(2**41)]),
                    key=rng.choice(KEYS),
                    value=rng.choice([None, b"", rng.randbytes(rng.randrange(12))]),
                    headers=[("name", None), ("", b"value")] if rng.random() < 0.2 else (),
                )
            )
            offset += rng.choice([1, 1, 1, 2, 300])
        batches.append(records)
    return batches


def record(offset: int, timestamp: int = 0, key: bytes = b"k", value: bytes | None = b"v") -> Record:
    return Record(offset=offset, timestamp=timestamp, key=key, value=value)


def encode(records: list[Record]) -> tuple[bytearray, BatchHeader]:
    base = records[0].offset
    batch = build_batch(records, base_offset=base, offset_deltas=[record.offset - base for record in records])
    header = parse_header(batch)
    assert header is not None
    return batch, header


def add(keys: KeyMap, records: list[Record], from_offset: int = 0) -> bool:
    batch, header = encode(records)
    return keys.add(batch, header, from_offset, HEADER, len(batch))


def decoded(payload: bytes | bytearray | memoryview, header: BatchHeader, count: int) -> list[Record]:
    return decode_records(
        payload, count, header.base_offset, header.base_timestamp, header.timestamp_type, header.max_timestamp
    )


def kept_of(records: list[Record], keys: KeyMap, drop_tombstones: bool) -> tuple[list[Record], Kept]:
    batch, header = encode(records)
    kept = filter_batch(batch, header, keys, drop_tombstones, HEADER, len(batch))
    if kept.payload is None:
        return records, kept
    return decoded(memoryview(kept.payload)[HEADER:], header, kept.count), kept


@given(keyed_batches(), st.integers(0, 600))
def test_map_knows_the_last_offset_of_each_key(batches: list[list[Record]], skipped: int) -> None:
    from_offset = batches[0][0].offset + skipped
    keys = KeyMap(512, 0.9, SEED)
    assert all(add(keys, records, from_offset) for records in batches)
    everything = [record for records in batches for record in records]
    last = {one.key: one.offset for one in everything if one.key is not None and one.offset >= from_offset}
    assert {key: keys.get(key) for key in last} == last
    assert keys.get(b"never written") == -1
    assert len(keys) == len(last)
    assert keys.latest >= max((one.offset for one in everything if one.offset >= from_offset), default=-1)


@given(keyed_batches(), st.booleans(), st.floats(0, 1), st.none() | st.floats(-0.1, 1))
def test_records_that_stay_are_those_that_a_dict_would_keep(
    batches: list[list[Record]], drop_tombstones: bool, mapped: float, listed: float | None
) -> None:
    """With a map of some of the batches only: what lies past it stays as it is. With a list of last offsets, or not."""
    keys = KeyMap(512, 0.9, SEED)
    known = batches[: round(mapped * len(batches))]
    for records in known:
        add(keys, records)
    if listed is not None:
        first = batches[0][0].offset
        keys.list_last(first + round(listed * (batches[-1][-1].offset - first)), 10**6)
    last = {record.key: record.offset for records in known for record in records}
    for records in batches:
        expected = [
            record
            for record in records
            if record.offset > keys.latest
            or (
                record.key is not None
                and record.offset >= last.get(record.key, -1)
                and not (record.value is None and drop_tombstones)
            )
        ]
        stays, kept = kept_of(records, keys, drop_tombstones)
        assert (kept.count, kept.removed) == (len(expected), len(records) - len(expected))
        if kept.count:
            assert stays == expected
            header = encode(records)[1]
            assert header.base_timestamp + kept.max_timestamp_delta == max(record.timestamp for record in expected)
        assert kept.tombstones == sum(record.value is None for record in expected)
        assert (kept.payload is None) == (stays == records and not kept.removed)


@given(keyed_batches(), st.integers(0, 5), st.floats(0, 1))
def test_batches_that_are_skipped_have_nothing_that_stays(
    batches: list[list[Record]], first: int, listed: float
) -> None:
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


def test_list_that_takes_too_much_memory_is_not_made() -> None:
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
def test_batches_added_at_once_are_the_same_as_one_by_one(
    batches: list[list[Record]], skipped: int, slots: int
) -> None:
    from_offset = batches[0][0].offset + skipped
    buffer = bytearray()
    for number, records in enumerate(batches):
        base = records[0].offset
        deltas = [one.offset - base for one in records]
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


@given(keyed_batches(most=1), st.integers(0, 1))
def test_resealed_batch_has_the_same_header_but_for_what_changed(batches: list[list[Record]], time_type: int) -> None:
    [records] = batches
    base = records[0].offset
    deltas = [one.offset - base for one in records]
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
    last = {one.key: one.offset for one in records}
    stays = [one for one in records if one.key is not None and one.offset == last[one.key]]
    assert [one.offset for one in records_of(resealed)] == [one.offset for one in stays]
    assert resealed.header.max_timestamp == (5 if time_type else max(one.timestamp for one in stays))
    assert (resealed.header.producer_id, resealed.header.leader_epoch) == (7, 3)
    assert resealed.header.last_offset == header.last_offset


@given(keyed_batches(most=1), st.integers(-(2**42), 2**42))
def test_rebased_records_have_the_same_times_from_another_base(batches: list[list[Record]], shift: int) -> None:
    [records] = batches
    batch, header = encode(records)
    rebased = rebase_timestamps(batch, header, len(records), shift, HEADER, len(batch))
    found = decode_records(
        memoryview(rebased)[HEADER:], len(records), header.base_offset, header.base_timestamp - shift, 0, 0
    )
    assert found == records


@pytest.mark.parametrize("shift", [2**63 - 1, -(2**63), 2**62, -1])
def test_times_that_overflow_wrap_around_and_back(shift: int) -> None:
    records = [record(0, 2**63 - 1), record(1, -1), record(2, 0, value=None)]
    batch, header = encode(records)
    there = rebase_timestamps(batch, header, 3, shift, HEADER, len(batch))
    back = rebase_timestamps(there, header, 3, -shift if shift > -(2**63) else shift, HEADER, len(there))
    assert back[HEADER:] == batch[HEADER:]


@given(keyed_batches(), st.integers(2, 6))
def test_full_map_takes_no_more_keys_and_says_how_far_it_went(batches: list[list[Record]], slots: int) -> None:
    keys = KeyMap(slots, 0.7, SEED)
    taken: dict[bytes, int] = {}
    for records in batches:
        if not add(keys, records):
            break
    everything = [record for records in batches for record in records]
    taken = {one.key: one.offset for one in everything if one.key is not None and one.offset <= keys.latest}
    assert {key: keys.get(key) for key in taken} == taken
    assert len(keys) == len(taken) <= keys.most < keys.slots
    following = next((one for one in everything if one.offset > keys.latest), None)
    assert following is None or (following.key not in taken and len(taken) == keys.most), "there was room for more"


def test_map_of_two_slots_finds_its_key_and_misses_others() -> None:
    """Each search must end, at the table's end too."""
    for number in range(64):
        keys = KeyMap(2, 0.9, number.to_bytes(16, "little"))
        assert keys.put(b"only", 5)
        assert not keys.put(b"other", 6)
        assert (keys.get(b"only"), keys.get(b"other"), keys.latest) == (5, -1, 5)
        assert keys.put(b"only", 9)
        assert keys.put(None, 11)
        assert (keys.get(b"only"), keys.latest, len(keys)) == (9, 11, 1)
        keys.clear()
        assert (keys.get(b"only"), keys.latest, len(keys)) == (-1, -1, 0)


def test_offset_zero_is_not_taken_for_a_free_slot() -> None:
    keys = KeyMap(16, 0.9, SEED)
    keys.put(b"first", 0)
    assert keys.get(b"first") == 0
    assert len(keys) == 1


def test_map_takes_no_more_memory_than_its_slots() -> None:
    assert SLOT_SIZE == 24


@pytest.mark.parametrize(("slots", "seed"), [(1, SEED), (0, SEED), (16, b"short"), (16, b"")])
def test_map_that_could_not_work_is_refused(slots: int, seed: bytes) -> None:
    with pytest.raises(ValueError, match="slots"):
        KeyMap(slots, 0.9, seed)


def test_map_that_memory_has_no_room_for_is_a_memory_error() -> None:
    with pytest.raises(MemoryError, match="dedupe"):
        KeyMap(2**58, 0.9, SEED)


@pytest.mark.parametrize(("start", "end"), [(-1, 10), (5, 4), (0, 10**9), (10**9, -1)])
def test_range_outside_the_buffer_is_refused(start: int, end: int) -> None:
    batch, header = encode([record(0)])
    keys = KeyMap(16, 0.9, SEED)
    with pytest.raises(ValueError, match="outside"):
        keys.add(batch, header, 0, start, end)
    with pytest.raises(ValueError, match="outside"):
        filter_batch(batch, header, keys, False, start, end)
    with pytest.raises(ValueError, match="outside"):
        rebase_timestamps(batch, header, 1, 0, start, max(end, 0))


@settings(max_examples=150)
@given(keyed_batches(most=1), st.data())
def test_damaged_records_are_an_error_and_no_crash(batches: list[list[Record]], data: st.DataObject) -> None:
    [records] = batches
    batch, _ = encode(records)
    for _ in range(data.draw(st.integers(0, 4))):
        batch[data.draw(st.integers(HEADER, len(batch) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(HEADER, len(batch)))
    count = data.draw(st.sampled_from([len(records), len(records) + 1, 0, 2**31 - 1, -1]))
    struct.pack_into(">i", batch, format.RECORD_COUNT_POSITION, count)
    with contextlib.suppress(CorruptBatchError):
        header = parse_header(batch)
        assert header is not None
        with contextlib.suppress(CorruptBatchError):
            KeyMap(64, 0.9, SEED).add(batch, header, 0, HEADER, end)
        with contextlib.suppress(CorruptBatchError):
            rebase_timestamps(batch, header, min(max(count, 0), len(records) + 1), 7, HEADER, end)
        kept = filter_batch(batch, header, KeyMap(64, 0.9, SEED), False, HEADER, end)
        assert kept.count + kept.removed == max(count, 0)


def test_damage_names_the_batch_and_its_place() -> None:
    batch, header = encode([record(77)])
    for call in (
        lambda: KeyMap(16, 0.9, SEED).add(batch, header, 0, HEADER, len(batch) - 1),
        lambda: filter_batch(batch, header, KeyMap(16, 0.9, SEED), False, HEADER, len(batch) - 1),
        lambda: rebase_timestamps(batch, header, 1, 5, HEADER, len(batch) - 1),
    ):
        with pytest.raises(CorruptBatchError, match="offset 77") as caught:
            call()
        assert caught.value.position == 0


def test_bytes_behind_the_last_record_are_damage() -> None:
    batch, header = encode([record(0)])
    batch += b"\0"
    with pytest.raises(CorruptBatchError, match="left over"):
        KeyMap(16, 0.9, SEED).add(batch, header, 0, HEADER, len(batch))
    with pytest.raises(CorruptBatchError, match="left over"):
        filter_batch(batch, header, KeyMap(16, 0.9, SEED), False, HEADER, len(batch))

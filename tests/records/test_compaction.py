"""The kernels of compaction compared with a dict: the last offset of each key, and the surviving records of a batch.

Any bytes that are not records give CorruptBatchError.
"""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.errors import CorruptBatchError
from stratalog.records import format
from stratalog.records._compaction import filter_batch, rebase_timestamps
from stratalog.records._framing import parse_header
from stratalog.records._key_map import SLOT_SIZE, KeyMap
from stratalog.records._records import Record, decode_records
from tests.records.keyed_batches import HEADER, SEED, add, encode, kept_of, keyed_batches, record


@given(keyed_batches(), st.integers(0, 600))
def test_map_has_the_last_offset_of_each_key(batches: list[list[Record]], skipped: int) -> None:
    from_offset = batches[0][0].offset + skipped
    keys = KeyMap(512, 0.9, SEED)
    assert all(add(keys, records, from_offset) for records in batches)
    everything = [record for records in batches for record in records]
    last = {
        record.key: record.offset for record in everything if record.key is not None and record.offset >= from_offset
    }
    assert {key: keys.get(key) for key in last} == last
    assert keys.get(b"never written") == -1
    assert len(keys) == len(last)
    assert keys.latest >= max((record.offset for record in everything if record.offset >= from_offset), default=-1)


@given(keyed_batches(), st.booleans(), st.floats(0, 1), st.none() | st.floats(-0.1, 1))
def test_surviving_records_equal_those_of_a_dict(
    batches: list[list[Record]], drop_tombstones: bool, mapped: float, listed: float | None
) -> None:
    """The map has only some of the batches, so all records after them survive. It may have a list of last offsets."""
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


@given(keyed_batches(most=1), st.integers(-(2**42), 2**42))
def test_rebased_records_keep_their_timestamps(batches: list[list[Record]], shift: int) -> None:
    [records] = batches
    batch, header = encode(records)
    rebased = rebase_timestamps(batch, header, len(records), shift, HEADER, len(batch))
    decoded_records = decode_records(
        memoryview(rebased)[HEADER:], len(records), header.base_offset, header.base_timestamp - shift, 0, 0
    )
    assert decoded_records == records


@pytest.mark.parametrize("shift", [2**63 - 1, -(2**63), 2**62, -1])
def test_overflowing_timestamps_wrap_around_and_back(shift: int) -> None:
    records = [record(0, 2**63 - 1), record(1, -1), record(2, 0, value=None)]
    batch, header = encode(records)
    there = rebase_timestamps(batch, header, 3, shift, HEADER, len(batch))
    back = rebase_timestamps(there, header, 3, -shift if shift > -(2**63) else shift, HEADER, len(there))
    assert back[HEADER:] == batch[HEADER:]


@given(keyed_batches(), st.integers(2, 6))
def test_full_map_refuses_keys_and_reports_its_last_offset(batches: list[list[Record]], slots: int) -> None:
    keys = KeyMap(slots, 0.7, SEED)
    taken: dict[bytes, int] = {}
    for records in batches:
        if not add(keys, records):
            break
    everything = [record for records in batches for record in records]
    taken = {
        record.key: record.offset for record in everything if record.key is not None and record.offset <= keys.latest
    }
    assert {key: keys.get(key) for key in taken} == taken
    assert len(keys) == len(taken) <= keys.most < keys.slots
    following = next((record for record in everything if record.offset > keys.latest), None)
    assert following is None or (following.key not in taken and len(taken) == keys.most), "there was room for more"


def test_map_of_two_slots_finds_its_key_and_misses_others() -> None:
    """Each lookup must end, also at the end of the table."""
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


def test_keys_that_differ_in_length_or_one_byte_never_collide() -> None:
    """Short keys are identified by their bytes and long keys by a hash: try the lengths around each change."""
    keys = KeyMap(4096, 0.9, SEED)
    expected: dict[bytes, int] = {}
    for length in range(40):
        for key in {
            bytes(length),
            b"\xff" * length,
            bytes(range(length)),
            *(bytes(i) + b"x" + bytes(length - 1 - i) for i in range(length)),
        }:
            expected[key] = len(expected)
            keys.put(key, expected[key])
    assert len(keys) == len(expected) > 700
    assert {key: keys.get(key) for key in expected} == expected


def test_offset_zero_is_not_mistaken_for_a_free_slot() -> None:
    keys = KeyMap(16, 0.9, SEED)
    keys.put(b"first", 0)
    assert keys.get(b"first") == 0
    assert len(keys) == 1


def test_map_takes_no_more_memory_than_its_slots() -> None:
    assert SLOT_SIZE == 24


@pytest.mark.parametrize(("slots", "seed"), [(1, SEED), (0, SEED), (16, b"short"), (16, b"")])
def test_map_with_too_few_slots_or_a_wrong_seed_is_refused(slots: int, seed: bytes) -> None:
    with pytest.raises(ValueError, match="slots"):
        KeyMap(slots, 0.9, seed)


def test_map_larger_than_memory_is_a_memory_error() -> None:
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


def test_damage_names_the_batch_and_its_position() -> None:
    batch, header = encode([record(77)])
    for call in (
        lambda: KeyMap(16, 0.9, SEED).add(batch, header, 0, HEADER, len(batch) - 1),
        lambda: filter_batch(batch, header, KeyMap(16, 0.9, SEED), False, HEADER, len(batch) - 1),
        lambda: rebase_timestamps(batch, header, 1, 5, HEADER, len(batch) - 1),
    ):
        with pytest.raises(CorruptBatchError, match="offset 77") as caught:
            call()
        assert caught.value.position == 0


@pytest.mark.parametrize("payload", [b"", b"\x80", b"\x00", b"\x01", b"\x7e" + bytes(10)])
def test_record_length_that_does_not_fit_is_damage(payload: bytes) -> None:
    batch, header = encode([record(0)])
    damaged = batch[:HEADER] + payload
    with pytest.raises(CorruptBatchError, match="length goes past the end of the batch"):
        KeyMap(16, 0.9, SEED).add(damaged, header, 0, HEADER, len(damaged))


def test_bytes_after_the_last_record_are_damage() -> None:
    batch, header = encode([record(0)])
    batch += b"\0"
    with pytest.raises(CorruptBatchError, match="left over"):
        KeyMap(16, 0.9, SEED).add(batch, header, 0, HEADER, len(batch))
    with pytest.raises(CorruptBatchError, match="left over"):
        filter_batch(batch, header, KeyMap(16, 0.9, SEED), False, HEADER, len(batch))

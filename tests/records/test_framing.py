"""Headers over raw bytes: their fields, where a walk stops, what stamping writes, and that no bytes crash it."""

from __future__ import annotations

import random
import struct
import zlib
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import CorruptBatchError, StratalogError, UnsupportedMagicError
from stratalog.records import format
from stratalog.records._framing import (
    BatchHeader,
    crc_matches,
    find_batch,
    parse_header,
    parse_headers,
    set_max_timestamp,
    stamp,
)
from stratalog.records._records import Record
from stratalog.records.builder import build_batch, build_control_batch
from stratalog.records.format import ControlType
from stratalog.records.legacy import build_message_set
from stratalog.records.reader import read_records
from tests.records.strategies import numbered, record


def batch(count: int = 1, base_offset: int = 0, **fields: Any) -> bytes:
    return bytes(build_batch(numbered(count), base_offset=base_offset, **fields))


def header_of(data: bytes | bytearray) -> BatchHeader:
    header = parse_header(data)
    assert header is not None
    return header


def plain(offset: int) -> Record:
    return record(b"value", b"key", offset=offset, timestamp=1_600_000_000_000)


def chain(count: int = 6) -> bytes:
    """Return batches of 1, 2, 3, ... records with offsets 0, 1..2, 3..5, ..."""
    return b"".join(batch(number + 1, base_offset=number * (number + 1) // 2) for number in range(count))


class TestHeader:
    def test_every_field_is_read_at_its_position(self) -> None:
        numbers = (101, 61 - 12 + 5, 7, 2, 0xFEDCBA98, 0x7F, 4, 1000, 2000, 55, 6, 77, 5)
        header = header_of(struct.pack(">qiibIhiqqqhii", *numbers) + bytes(5))
        assert (header.position, header.size) == (0, 66)
        read = (header.base_offset, header.leader_epoch, header.magic, header.crc, header.attributes)
        assert read == (101, 7, 2, 0xFEDCBA98, 0x7F)
        read = (
            header.last_offset_delta,
            header.base_timestamp,
            header.max_timestamp,
            header.producer_id,
            header.producer_epoch,
        )
        assert read == (4, 1000, 2000, 55, 6)
        assert (header.base_sequence, header.record_count) == (77, 5)
        assert (header.last_offset, header.next_offset, header.last_sequence) == (105, 106, 81)
        flags = (
            header.codec,
            header.timestamp_type,
            header.is_transactional,
            header.is_control,
            header.has_delete_horizon,
        )
        assert flags == (7, 1, True, True, True)

    def test_plain_batch_has_no_flag(self) -> None:
        header = header_of(batch())
        flags = (
            header.codec,
            header.timestamp_type,
            header.is_transactional,
            header.is_control,
            header.has_delete_horizon,
        )
        assert flags == (0, 0, False, False, False)
        assert (header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence) == (
            -1,
            -1,
            -1,
            -1,
        )

    @pytest.mark.parametrize(("magic", "timestamp", "kind"), [(0, -1, -1), (1, 1_600_000_000_000, 0)])
    def test_legacy_message_is_a_batch_of_one(self, magic: int, timestamp: int, kind: int) -> None:
        data = build_message_set([plain(9)], magic=magic)
        header = header_of(data)
        assert (header.magic, header.base_offset, header.last_offset, header.record_count) == (magic, 9, 9, 1)
        assert (header.max_timestamp, header.timestamp_type) == (timestamp, kind)
        assert (header.producer_id, header.leader_epoch, header.is_control) == (-1, -1, False)
        assert header.crc == zlib.crc32(data[16:])

    def test_sequence_wraps_after_the_largest(self) -> None:
        header = header_of(batch(4, producer_id=1, producer_epoch=0, base_sequence=2**31 - 2))
        assert header.last_sequence == 1

    def test_cut_off_header_is_none_at_every_length(self) -> None:
        for data in (
            batch(),
            bytes(build_message_set([plain(0)], magic=1)),
            bytes(build_message_set([plain(0)], magic=0)),
        ):
            whole = {2: 61, 1: 34, 0: 26}[data[16]]
            for length in range(len(data) + 1):
                assert (parse_header(data[:length]) is None) is (length < whole)

    @pytest.mark.parametrize("position", [-1, 10**6])
    def test_position_outside_is_refused(self, position: int) -> None:
        with pytest.raises(ValueError, match="outside the buffer"):
            parse_header(batch(), position)

    @pytest.mark.parametrize(("length", "magic"), [(-1, 2), (0, 2), (13, 0), (21, 1), (48, 2), (-(2**31), 1)])
    def test_length_too_small_for_its_magic_is_refused(self, length: int, magic: int) -> None:
        data = bytearray(batch())
        struct.pack_into(">i", data, 8, length)
        data[16] = magic
        with pytest.raises(CorruptBatchError, match=f"is {length}, less than") as caught:
            parse_header(data)
        assert caught.value.position == 0

    @pytest.mark.parametrize("magic", [3, 127, 0xFF, 0x80])
    def test_unknown_magic_is_refused(self, magic: int) -> None:
        data = bytearray(batch())
        data[16] = magic
        with pytest.raises(
            UnsupportedMagicError, match=f"magic is {struct.unpack('b', bytes([magic]))[0]} at position 0"
        ):
            parse_header(data)


class TestWalk:
    def test_complete_batches_are_listed_and_the_rest_is_left(self) -> None:
        data = chain(3)
        headers, end, error = parse_headers(data + data[:30])
        assert [(header.base_offset, header.last_offset) for header in headers] == [(0, 0), (1, 2), (3, 5)]
        assert (end, error) == (len(data), None)

    def test_walk_stays_in_its_range(self) -> None:
        first, second, third = batch(1), batch(2), batch(3)
        data = first + second + third
        headers, end, _ = parse_headers(data, len(first), len(first) + len(second) + 1)
        assert [header.record_count for header in headers] == [2]
        assert end == len(first) + len(second)

    def test_empty_range_has_no_batches(self) -> None:
        assert parse_headers(batch(), 0, 0) == ([], 0, None)

    @pytest.mark.parametrize(("start", "end"), [(-1, 5), (0, 10**6)])
    def test_range_outside_is_refused(self, start: int, end: int) -> None:
        with pytest.raises(ValueError, match="outside the buffer"):
            parse_headers(batch(), start, end)

    def test_walk_stops_before_bytes_that_are_not_a_batch(self) -> None:
        data = chain(2)
        headers, end, error = parse_headers(data + bytes(100))
        assert (len(headers), end) == (2, len(data))
        assert isinstance(error, CorruptBatchError)
        assert error.position == len(data)

    def test_target_is_found_in_the_batch_that_reaches_it(self) -> None:
        data = chain()
        headers, _, _ = parse_headers(data)
        for target in range(-1, 21):
            header, position, previous, stepped = find_batch(data, target, origin=1000)
            index = next(index for index, h in enumerate(headers) if h.last_offset >= target)
            assert header is not None
            assert header.base_offset == headers[index].base_offset
            assert position == header.position == 1000 + headers[index].position
            assert (previous, stepped) == (header.base_offset - 1, index)

    def test_walk_past_the_end_returns_where_to_continue(self) -> None:
        data = chain(3)
        assert find_batch(data, 6, origin=50) == (None, 50 + len(data), 5, 3)
        last = len(batch(3, base_offset=3))
        assert find_batch(data[: len(data) - last + 20], 6, origin=50) == (None, 50 + len(data) - last, 2, 2)

    def test_cut_off_records_do_not_matter(self) -> None:
        data = chain(3)
        header, *_ = find_batch(data[: len(data) - 1], 4)
        assert header is not None
        assert header.last_offset == 5

    def test_index_must_be_right_about_the_first_batch(self) -> None:
        data = chain(3)
        assert find_batch(data, 5, expected=0)[3] == 2
        with pytest.raises(LookupError, match="index has offset 1, but the batch there ends at 0"):
            find_batch(data, 5, expected=1)
        with pytest.raises(LookupError, match="index has offset 1 where there is no batch"):
            find_batch(data[5:], 5, expected=1)

    def test_offsets_that_do_not_rise_are_an_error_with_the_position_in_the_file(self) -> None:
        data = batch(3, base_offset=10) + batch(1, base_offset=12)
        with pytest.raises(CorruptBatchError, match=r"offsets 12\.\.12 follow offset 12") as caught:
            find_batch(data, 99, origin=4000)
        assert caught.value.position == 4000 + len(batch(3))

    def test_damage_is_an_error_with_only_the_position_in_the_file(self) -> None:
        data = chain(2) + bytes(100)
        with pytest.raises(CorruptBatchError) as caught:
            find_batch(data, 99, origin=4000)
        assert (
            str(caught.value) == f"batch length is 0, less than the smallest message at position {4000 + len(chain(2))}"
        )

    def test_offset_and_delta_that_overflow_are_an_error(self) -> None:
        data = bytearray(batch(base_offset=2**63 - 1))
        struct.pack_into(">i", data, 23, 2**31 - 1)
        with pytest.raises(CorruptBatchError, match="follow offset"):
            find_batch(data, 5)


class TestStamp:
    def test_offsets_follow_each_other_and_checksums_still_hold(self) -> None:
        data = bytearray(batch(2) + batch(3) + batch(1))
        headers, _, _ = parse_headers(data)
        assert stamp(data, headers, 100, 9) == 106
        assert [(h.base_offset, h.leader_epoch) for h in headers] == [(100, 9), (102, 9), (105, 9)]
        again, _, _ = parse_headers(data)
        assert [(h.base_offset, h.leader_epoch) for h in again] == [(100, 9), (102, 9), (105, 9)]
        assert all(crc_matches(data, header) for header in again)
        assert [record.offset for record in read_records(data)] == list(range(100, 106))

    def test_append_time_is_in_every_record_and_in_the_checksum(self) -> None:
        data = bytearray(batch(2) + batch(2, codec=format.Codec.GZIP))
        headers, _, _ = parse_headers(data)
        stamp(data, headers, 0, 0, 1_234_567)
        again, _, _ = parse_headers(data)
        assert [(h.max_timestamp, h.timestamp_type) for h in again] == [(1_234_567, 1)] * 2
        assert [h.crc for h in again] == [h.crc for h in headers]
        assert all(crc_matches(data, header) for header in again)
        assert {record.timestamp for record in read_records(data)} == {1_234_567}

    def test_max_timestamp_is_corrected_with_its_checksum(self) -> None:
        data = bytearray(batch(2) + batch(2))
        headers, _, _ = parse_headers(data)
        set_max_timestamp(data, headers[1], 42)
        again, _, _ = parse_headers(data)
        assert (again[1].max_timestamp, headers[1].max_timestamp) == (42, 42)
        assert again[0].max_timestamp != 42
        assert all(crc_matches(data, header) for header in again)
        assert again[1].crc == crc32c(bytes(data[headers[1].position + 21 :]))

    def test_read_only_bytes_are_refused(self) -> None:
        data = batch()
        with pytest.raises((BufferError, TypeError)):
            stamp(data, parse_headers(data)[0], 0, 0)
        with pytest.raises((BufferError, TypeError)):
            set_max_timestamp(data, header_of(data), 0)

    def test_legacy_message_can_not_be_stamped(self) -> None:
        data = build_message_set([plain(3)], magic=1)
        before = bytes(data)
        with pytest.raises(UnsupportedMagicError, match="magic is 1"):
            stamp(data, parse_headers(data)[0], 0, 0)
        assert data == before

    def test_header_of_a_longer_buffer_writes_nothing_past_the_end(self) -> None:
        headers, _, _ = parse_headers(chain(3))
        short = bytearray(chain(1))
        before = bytes(short)
        for call in (lambda: stamp(short, headers[2:], 0, 0), lambda: set_max_timestamp(short, headers[2], 0)):
            with pytest.raises((StratalogError, ValueError)):
                call()
        assert short == before


class TestAnyBytes:
    @given(data=st.binary(max_size=300), target=st.integers(-5, 2**63 - 1), expected=st.integers(-1, 5))
    def test_no_bytes_crash_the_walks(self, data: bytes, target: int, expected: int) -> None:
        self.walk(data, target, expected)

    def test_no_mutation_of_valid_bytes_crashes_the_walks(self) -> None:
        generator = random.Random(1)
        sources = [chain(4), bytes(build_control_batch(ControlType.ABORT, 1, 2, 3, 4)) * 2]
        sources += [bytes(build_message_set([plain(1), plain(2)], magic=magic)) for magic in (0, 1)]
        stopped = 0
        for _ in range(4000):
            data = bytearray(generator.choice(sources))
            for _ in range(generator.randint(1, 4)):
                position = generator.randrange(min(len(data), 100))
                data[position] = generator.choice((0, 1, 0x7F, 0x80, 0xFF, generator.randrange(256)))
            stopped += self.walk(bytes(data[: generator.randint(0, len(data))]), generator.randint(-1, 12), -1)
        assert stopped > 200  # the mutations have an effect

    def walk(self, data: bytes, target: int, expected: int) -> bool:
        headers, end, error = parse_headers(data)
        assert 0 <= end <= len(data)
        assert sum(header.size for header in headers) == end
        assert error is None or isinstance(error, StratalogError)
        for header in headers:
            assert crc_matches(data, header) in (True, False)
            assert repr(header).startswith("BatchHeader(")
        try:
            match, position, _, stepped = find_batch(data, target, 0, -1, expected)
        except (CorruptBatchError, LookupError):
            return True
        assert match is None or match.last_offset >= target
        assert position >= 0
        assert 0 <= stepped <= len(data) // 26
        return error is not None

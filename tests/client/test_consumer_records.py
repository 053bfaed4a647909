"""Fetched bytes -> records and columns: which records are returned, from which offset on, and what is an error."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.client._consumer_records import (
    ConsumerRecord,
    FetchedRecords,
    Interrupt,
    RecordIterator,
)
from stratalog.client._fetched_batches import Progress
from stratalog.client.consumer_arrow import ArrowColumns
from stratalog.client.metadata import TopicPartition
from stratalog.errors import CorruptBatchError, DecompressedTooLargeError, StratalogError
from stratalog.records import Codec, ControlType, Record, build_batch, build_control_batch, build_message_set

PLACE = TopicPartition("topic", 3)


def batch(first: int, count: int, **settings: Any) -> bytes:
    records = [Record(key=b"k", value=b"%d" % number, timestamp=number) for number in range(first, first + count)]
    return bytes(build_batch(records, base_offset=first, **settings))


def fetched(body: bytes, offset: int = 0, **settings: Any) -> FetchedRecords:
    return FetchedRecords(PLACE, Progress(offset), offset, body, 0, len(body), **settings)


def offsets(part: FetchedRecords) -> list[int]:
    return [record.offset for record in part.take(10_000)]


def column_offsets(part: FetchedRecords) -> list[int]:
    return taken(ArrowColumns(), part).column("offset").to_pylist()  # type: ignore[no-any-return]


def taken(columns: ArrowColumns, *parts: FetchedRecords, most: int = 10_000) -> pa.Table:
    columns.start()
    for part in parts:
        columns.add(part, most, 0)
    return columns.table()


both = pytest.mark.parametrize("read", [offsets, column_offsets], ids=["records", "columns"])


@both
def test_reading_begins_inside_a_batch_and_omits_an_incomplete_one(read: Any) -> None:
    body = batch(0, 5) + batch(5, 5) + batch(10, 5)[:-3]
    part = fetched(body, 3)
    assert (part.end_offset, part.is_well_formed) == (10, True)
    assert read(part) == [3, 4, 5, 6, 7, 8, 9]
    assert part.progress.offset == 10
    assert part.is_exhausted


def test_position_moves_with_each_record() -> None:
    part = fetched(batch(0, 3, leader_epoch=4))
    for expected in (1, 2, 3):
        part.take(1)
        assert (part.progress.offset, part.progress.leader_epoch) == (expected, 4)


@both
def test_a_compacted_batch_moves_the_position_to_its_end(read: Any) -> None:
    thin = bytearray(batch(0, 3))
    builder_end = (9).to_bytes(4, "big")
    thin[23:27] = builder_end  # the last offset delta; checksums are not checked below
    part = fetched(bytes(thin), check_crcs=False)
    assert read(part) == [0, 1, 2]
    assert part.progress.offset == 10


@both
@pytest.mark.parametrize("codec", list(Codec))
def test_every_codec(read: Any, codec: Codec) -> None:
    assert read(fetched(batch(0, 50, codec=codec) + batch(50, 50, codec=codec), 25)) == list(range(25, 100))


@both
@pytest.mark.parametrize("magic", [0, 1])
def test_message_sets_of_magic_0_and_1(read: Any, magic: int) -> None:
    old = build_message_set([Record(value=b"v", offset=n, timestamp=n if magic else -1) for n in range(5)], magic=magic)
    part = fetched(bytes(old) + batch(5, 2), 2)
    assert read(part) == [2, 3, 4, 5, 6]
    assert part.progress.offset == 7


def marker(control_type: ControlType, offset: int, producer_id: int) -> bytes:
    fields = {"producer_id": producer_id, "producer_epoch": 0, "coordinator_epoch": 0}
    return bytes(build_control_batch(control_type, base_offset=offset, timestamp=0, **fields))


def transactions() -> bytes:
    """Return batches of producers 1 and 2 in turn: aborted, then committed transactions."""
    return b"".join(
        [
            batch(0, 2, producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True),
            batch(2, 2, producer_id=2, producer_epoch=0, base_sequence=0, is_transactional=True),
            batch(4, 1),
            marker(ControlType.ABORT, 5, 1),
            batch(6, 2, producer_id=1, producer_epoch=0, base_sequence=2, is_transactional=True),
            marker(ControlType.COMMIT, 8, 2),
            marker(ControlType.COMMIT, 9, 1),
        ]
    )


@both
def test_aborted_records_are_returned_only_with_read_uncommitted(read: Any) -> None:
    assert read(fetched(transactions())) == [0, 1, 2, 3, 4, 6, 7]
    part = fetched(transactions(), read_committed=True, aborted=[(1, 0)])
    assert read(part) == [2, 3, 4, 6, 7]
    assert part.progress.offset == 10  # after the markers


@both
def test_decompression_bomb_is_an_error(read: Any) -> None:
    bomb = bytes(build_batch([Record(value=bytes(50_000_000))], codec=Codec.ZSTD))
    assert len(bomb) < 10_000
    part = fetched(bomb, max_decompressed=1_000_000)
    for _ in range(2):
        with pytest.raises(
            DecompressedTooLargeError, match=r"topic-3: the batch at offset 0.*1000000.*seek to a position after it"
        ):
            read(part)
    assert part.progress.offset == 0


@both
def test_an_error_after_valid_batches_is_raised_after_their_records(read: Any) -> None:
    damaged = bytearray(batch(3, 3))
    damaged[-1] ^= 1
    part = fetched(batch(0, 3) + bytes(damaged))
    assert read(part) == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(CorruptBatchError, match=r"topic-3: the batch at offset 3.*checksum"):
            read(part)
    assert part.progress.offset == 3
    unchecked = fetched(batch(0, 3) + bytes(damaged), check_crcs=False)
    assert len(read(unchecked)) >= 3


@both
def test_an_error_inside_a_batch_is_raised_after_the_records_before_it(read: Any) -> None:
    damaged = bytearray(batch(3, 3))
    damaged[61] = 2  # the first record's length
    part = fetched(batch(0, 3) + bytes(damaged), check_crcs=False)
    assert read(part) == [0, 1, 2]
    with pytest.raises(CorruptBatchError, match="length"):
        read(part)


def test_columns_have_no_rows_of_a_batch_that_is_corrupt_in_the_middle() -> None:
    good = [Record(key=None, value=b"x", headers=(("h", b"1"),)), Record(key=b"k", value=None)]
    body = bytes(build_batch(good)) + bytes(build_batch(good, base_offset=2))[:-1] + b"\x40"  # its last header count
    whole = fetched(bytes(build_batch(good)))
    part = fetched(body, check_crcs=False)
    columns = ArrowColumns()
    table = taken(columns, part, whole)
    table.validate(full=True)
    assert table.column("key").to_pylist() == [None, b"k"] * 2
    assert table.column("value").to_pylist() == [b"x", None] * 2
    assert table.column("headers").to_pylist() == [[{"key": "h", "value": b"1"}], []] * 2
    with pytest.raises(CorruptBatchError, match="the batch at offset 2"):
        taken(columns, part)


def test_rows_of_several_partitions_form_one_record_batch() -> None:
    def part(topic: str, partition: int, first: int, count: int) -> FetchedRecords:
        body = batch(first, count)
        return FetchedRecords(TopicPartition(topic, partition), Progress(first), first, body, 0, len(body))

    columns = ArrowColumns()
    for topics in (["a", "a", "b"], ["a", "a", "a"]):
        table = taken(columns, part(topics[0], 0, 0, 3), part(topics[1], 2, 7, 1), part(topics[2], 2, 5, 2))
        table.validate(full=True)
        assert len(table.to_batches()) == 1
        assert table.column("topic").to_pylist() == [topics[0]] * 3 + [topics[1]] + [topics[2]] * 2
        assert table.column("partition").to_pylist() == [0, 0, 0, 2, 2, 2]
        assert table.column("offset").to_pylist() == [0, 1, 2, 7, 5, 6]


def test_the_error_for_an_incomplete_batch_names_the_setting_to_raise() -> None:
    part = fetched(batch(0, 3)[:-1])
    assert not part.is_well_formed
    with pytest.raises(CorruptBatchError, match="max_partition_fetch_bytes"):
        part.take(1)


def test_taking_few_rows_at_a_time_returns_all_rows() -> None:
    body = batch(0, 7) + batch(7, 1) + batch(8, 9, codec=Codec.LZ4)
    part, columns, values = fetched(body), ArrowColumns(), []
    while not part.is_exhausted:
        rows = taken(columns, part, most=3)
        assert rows.num_rows <= 3
        values += rows.column("value").to_pylist()
    assert values == [b"%d" % number for number in range(17)]


def test_taking_records_and_columns_may_alternate() -> None:
    part = fetched(batch(0, 10) + batch(10, 10))
    assert offsets_of(part.take(4)) == [0, 1, 2, 3]
    rows = taken(ArrowColumns(), part, most=8)
    assert rows.column("offset").to_pylist() == list(range(4, 12))
    assert offsets_of(part.take(100)) == list(range(12, 20))


def offsets_of(records: list[ConsumerRecord]) -> list[int]:
    return [record.offset for record in records]


def test_an_interrupted_iterator_calls_its_refill() -> None:
    interrupt, part, calls = Interrupt(), fetched(batch(0, 3)), []

    def refill(current: FetchedRecords | None) -> FetchedRecords | None:
        calls.append(current)
        interrupt.is_set = False
        return part if len(calls) < 3 else None

    records = RecordIterator(refill, interrupt)
    assert next(records).offset == 0
    interrupt.is_set = True
    assert next(records).offset == 1
    assert offsets_of(list(records)) == [2]
    assert calls == [None, part, part]
    assert interrupt.taken == 3


def test_records_are_compared_by_value() -> None:
    [record] = fetched(batch(7, 1), 7).take(1)
    again = ConsumerRecord("topic", 3, 7, timestamp=7, key=b"k", value=b"7", leader_epoch=record.leader_epoch)
    assert record == again == pickle.loads(pickle.dumps(record))
    assert hash(record) == hash(again)
    assert record != ConsumerRecord("topic", 2, 7)
    assert "offset=7" in repr(record)


@both
@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_corrupt_bytes_cause_an_error_or_other_records_and_no_crash(read: Any, data: st.DataObject) -> None:
    codec = data.draw(st.sampled_from([Codec.NONE, Codec.NONE, Codec.ZSTD]))
    body = bytearray(batch(0, 4, codec=codec) + batch(4, 4, codec=codec))
    for at, byte in data.draw(st.lists(st.tuples(st.integers(0, len(body) - 1), st.integers(0, 255)), max_size=6)):
        body[at] = byte
    part = fetched(bytes(body), check_crcs=False, max_decompressed=100_000)
    try:
        for _ in range(4):
            read(part)
    except StratalogError:
        pass

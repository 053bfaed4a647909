"""Record objects, and the loops that convert between them and bytes."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from stratalog.errors import CorruptBatchError, InvalidRecordError, MessageTooLargeError
from stratalog.records._records import Record, RecordsWriter, decode_records, size_upper_bound
from tests.records.strategies import numbered


def payload(*contents: tuple[bytes | None, bytes | None]) -> bytes:
    writer = RecordsWriter()
    writer.extend(contents)
    return bytes(writer.batch_bytes(0))


def decode(data: bytes, count: int = 1) -> list[Record]:
    return decode_records(data, count, 0, 0, 0, -1)


def test_a_record_has_its_fields_and_defaults() -> None:
    record = Record(offset=3, timestamp=4, timestamp_type=1, key=b"k", value=b"v", headers=[("h", None)])
    assert (record.offset, record.timestamp, record.timestamp_type) == (3, 4, 1)
    assert (record.key, record.value, record.headers) == (b"k", b"v", (("h", None),))
    empty = Record()
    assert (empty.offset, empty.timestamp, empty.timestamp_type) == (0, -1, 0)
    assert (empty.key, empty.value, empty.headers) == (None, None, ())


def test_records_compare_and_hash_by_value() -> None:
    assert Record(value=b"v") == Record(value=b"v")
    assert hash(Record(value=b"v")) == hash(Record(value=b"v"))
    for other in (Record(offset=1), Record(timestamp=1), Record(key=b""), Record(headers=[("h", b"")])):
        assert Record() != other
    assert Record() != "a record"


def test_a_record_survives_pickle_copy_and_repr() -> None:
    for record in numbered(10):
        assert pickle.loads(pickle.dumps(record)) == record
        assert copy.deepcopy(record) == record
        assert eval(repr(record), {"Record": Record}) == record


def test_a_record_is_read_only() -> None:
    with pytest.raises(AttributeError):
        Record().offset = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"key": "text"}, "bytes"),
        ({"value": 5}, "bytes"),
        ({"headers": [("only key",)]}, "a pair of str and bytes"),
        ({"headers": [(b"key", b"")]}, "header key is bytes, not str"),
        ({"headers": [("key", "text")]}, "value of header 'key' is str"),
    ],
)
def test_a_record_with_the_wrong_types_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Record(**fields)


def test_an_empty_record_takes_seven_bytes() -> None:
    assert payload((None, None)) == bytes([12, 0, 0, 0, 1, 1, 0])


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\x0e\x00\x00\x00\x01\x01\x00", "record 0 of 1: length goes past the end of the batch"),
        (b"\xff\xff\xff\xff\x1f\x00\x00\x00", "record 0 of 1: length goes past the end of the batch"),
        (b"\x01\x00\x00\x00\x01\x01\x00", "record 0 of 1: length goes past the end of the batch"),
        (b"\x02\x00\x00\x00\x01\x01\x00", "record 0 of 1: length is less than the fields need"),
        (b"\x0c\x00\xff\xff\xff\xff\xff", "record 0 of 1: timestamp delta can't be read"),
        (b"\x0c\x00\x00\xff\xff\xff\xff", "record 0 of 1: offset delta can't be read"),
        (b"\x0c\x00\x00\x00\x03\x01\x00", "record 0 of 1: key length goes past the end of the record"),
        (b"\x0c\x00\x00\x00\x10\x01\x00", "record 0 of 1: key length goes past the end of the record"),
        (b"\x0c\x00\x00\x00\x01\x03\x00", "record 0 of 1: value length goes past the end of the record"),
        (b"\x0c\x00\x00\x00\x01\x10\x00", "record 0 of 1: value length goes past the end of the record"),
        (b"\x0c\x00\x00\x00\x01\x01\x01", "record 0 of 1: header count does not fit the record"),
        (b"\x0c\x00\x00\x00\x01\x01\x02", "record 0 of 1: header count does not fit the record"),
        (b"\x0e\x00\x00\x00\x01\x01\x00\x00", "record 0 of 1: length leaves bytes over"),
        (b"\x10\x00\x00\x00\x01\x01\x02\x01\x00", "record 0 of 1: header key length goes past"),
        (b"\x10\x00\x00\x00\x01\x01\x02\x06\x00", "record 0 of 1: header key length goes past"),
        (b"\x10\x00\x00\x00\x01\x01\x02\x00\x03", "record 0 of 1: header value length goes past"),
        (b"\x10\x00\x00\x00\x01\x01\x02\x00\x02", "record 0 of 1: header value length goes past"),
        (b"\x12\x00\x00\x00\x01\x01\x02\x00\x00\x00", "record 0 of 1: length leaves bytes over"),
        (b"\x12\x00\x00\x00\x01\x01\x02\x02\xff\x01", "record 0 of 1: key of header 0 is not UTF-8"),
        (b"\x0c\x00\x00\x00\x01\x01\x00\x00", "1 bytes are left over after the last of 1 records"),
    ],
)
def test_malformed_records_are_corrupt_and_named(data: bytes, problem: str) -> None:
    with pytest.raises(CorruptBatchError, match=problem):
        decode(data)


def test_malformed_record_is_named_by_its_index() -> None:
    data = payload((b"k", b"v"), (b"k", b"v"), (b"k", b"v"))
    with pytest.raises(CorruptBatchError, match="record 2 of 3"):
        decode(data[:-1], count=3)


@pytest.mark.parametrize("count", [-1, 2, 2**31 - 1])
def test_impossible_record_count_is_corrupt_before_allocation(count: int) -> None:
    with pytest.raises(CorruptBatchError, match=f"record count is {count}"):
        decode(payload((None, None)), count)


def test_payload_cut_anywhere_is_corrupt() -> None:
    writer = RecordsWriter()
    writer.extend(numbered(8))
    data = bytes(writer.batch_bytes(0))
    for end in range(len(data)):
        with pytest.raises(CorruptBatchError):
            decode(data[:end], 8)


def test_log_append_time_is_the_timestamp_of_every_record() -> None:
    assert [r.timestamp for r in decode_records(payload((None, b"a"), (None, b"b")), 2, 0, 5, 1, 99)] == [
        99,
        99,
    ]


def test_writing_keeps_the_base_timestamp_of_the_first_record() -> None:
    writer = RecordsWriter()
    for timestamp in (50, 20, 80):
        writer.append(b"v", timestamp=timestamp)
    assert (writer.base_timestamp, writer.max_timestamp) == (50, 80)
    data = writer.batch_bytes(0)
    assert [r.timestamp for r in decode_records(data, 3, 0, 50, 0, -1)] == [50, 20, 80]


def test_extreme_timestamps_read_back_equal() -> None:
    writer = RecordsWriter()
    for timestamp in (-1, 2**63 - 1, 0):
        writer.append(None, timestamp=timestamp)
    data = writer.batch_bytes(0)
    assert [r.timestamp for r in decode_records(data, 3, 0, -1, 0, -1)] == [-1, 2**63 - 1, 0]


def test_record_that_cant_be_written_is_refused_by_name() -> None:
    writer = RecordsWriter()
    writer.append(b"fine")
    with pytest.raises(InvalidRecordError, match="record 1: timestamp is -2"):
        writer.append(b"v", timestamp=-2)
    with pytest.raises(InvalidRecordError, match="record 1: offset delta is 0; it must be after the last one, 0"):
        writer.append(b"v", offset_delta=0)
    with pytest.raises(InvalidRecordError, match="record 1: offset delta is 2147483648"):
        writer.append(b"v", offset_delta=2**31)
    with pytest.raises(InvalidRecordError, match=r"record 1: header key .* can't be written as UTF-8"):
        writer.append(b"v", headers=[("\ud800", None)])
    with pytest.raises(TypeError, match="value is str"):
        writer.append("text")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="key is int"):
        writer.append(b"v", key=5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="record is bytes"):
        writer.extend([b"v"])  # type: ignore[list-item]
    assert writer.record_count == 1
    assert decode(bytes(writer.batch_bytes(0))) == [Record(value=b"fine", timestamp=0)]


def test_refused_first_record_does_not_set_the_base_timestamp() -> None:
    writer = RecordsWriter()
    with pytest.raises(InvalidRecordError):
        writer.append(b"v", headers=[("\ud800", None)], timestamp=5)
    writer.append(b"v", timestamp=9)
    assert writer.base_timestamp == 9


def test_other_buffers_can_be_keys_and_values() -> None:
    writer = RecordsWriter()
    writer.append(bytearray(b"value"), key=memoryview(b"xkeyx")[1:4])
    assert decode(bytes(writer.batch_bytes(0))) == [Record(key=b"key", value=b"value", timestamp=0)]


def test_batch_of_two_gib_is_refused_before_allocation() -> None:
    writer = RecordsWriter()
    writer.append(b"small")
    with pytest.raises(MessageTooLargeError, match="with record 1; a batch must be smaller than 2 GiB"):
        writer.append(bytes(2**31 - 70))
    assert writer.record_count == 1


def test_size_upper_bound_is_never_exceeded() -> None:
    for record in numbered(30):
        writer = RecordsWriter()
        writer.append(record.value, record.key, record.headers, record.timestamp)
        assert writer.size <= size_upper_bound(record.value, record.key, record.headers)


def test_size_upper_bound_holds_for_the_longest_deltas() -> None:
    writer = RecordsWriter(base_timestamp=0)
    writer.append(b"v", timestamp=2**63 - 1, offset_delta=2**31 - 1)
    assert 20 < writer.size <= size_upper_bound(b"v", None, [])

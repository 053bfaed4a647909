"""Two other implementations read our batches, and we read theirs, record for record.

kafka-python compares only what it supports without further libraries: no codec, and gzip.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from aiokafka.record import default_records as aiokafka_v2
from aiokafka.record import legacy_records as aiokafka_legacy
from aiokafka.record.memory_records import MemoryRecords as AiokafkaRecords

from stratalog.records._framing import parse_header
from stratalog.records._records import Record
from stratalog.records.builder import build_batch, build_control_batch
from stratalog.records.format import Codec, ControlType, TimestampType
from stratalog.records.legacy import build_message_set
from stratalog.records.reader import read_records
from tests.records.strategies import numbered

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # its use of importlib.resources
    from kafka.record import default_records as kafka_v2
    from kafka.record import legacy_records as kafka_legacy
    from kafka.record.memory_records import MemoryRecords as KafkaRecords

V2_ORACLES = [(aiokafka_v2, AiokafkaRecords, codec) for codec in Codec] + [
    (kafka_v2, KafkaRecords, codec) for codec in (Codec.NONE, Codec.GZIP)
]
LEGACY_ORACLES = [
    (aiokafka_legacy, AiokafkaRecords, magic, codec)
    for magic in (0, 1)
    for codec in (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)
    if (magic, codec) != (0, Codec.LZ4)  # aiokafka does not accept it
] + [(kafka_legacy, KafkaRecords, magic, codec) for magic in (0, 1) for codec in (Codec.NONE, Codec.GZIP)]


def seen_by(memory_records: Any, data: bytes | bytearray) -> list[Record]:
    """Return the records as another implementation reads them, with its check of the checksum."""
    parsed = memory_records(bytes(data))
    records = []
    while parsed.has_next():
        batch = parsed.next_batch()
        assert batch.validate_crc()
        for record in batch:
            records.append(
                Record(
                    offset=record.offset,
                    timestamp=-1 if record.timestamp is None else record.timestamp,
                    timestamp_type=-1 if record.timestamp_type is None else record.timestamp_type,
                    key=record.key,
                    value=record.value,
                    headers=record.headers,
                )
            )
    return records


def plain(count: int) -> list[Record]:
    """Return records that a legacy magic supports."""
    return [Record(offset=r.offset, timestamp=r.timestamp, key=r.key, value=r.value) for r in numbered(count)]


def without_time(records: list[Record]) -> list[Record]:
    return [Record(offset=r.offset, timestamp_type=-1, key=r.key, value=r.value) for r in records]


@pytest.mark.parametrize(("oracle", "memory_records", "codec"), V2_ORACLES)
def test_other_implementations_read_our_batches(oracle: Any, memory_records: Any, codec: Codec) -> None:
    data = build_batch(numbered(100, 7), base_offset=7, codec=codec)
    data += build_batch(numbered(3, 107), base_offset=107, codec=codec)
    assert seen_by(memory_records, data) == numbered(103, 7)


@pytest.mark.parametrize(("oracle", "memory_records", "codec"), V2_ORACLES)
def test_batches_of_other_implementations_are_read(oracle: Any, memory_records: Any, codec: Codec) -> None:
    builder = oracle.DefaultRecordBatchBuilder(2, codec, 1, 11, 12, 13, 1 << 20)
    for r in numbered(100):
        builder.append(r.offset, r.timestamp, r.key, r.value, list(r.headers))
    data = builder.build()
    assert read_records(data) == numbered(100)
    header = parse_header(data)
    assert header is not None
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (11, 12, 13)
    assert header.is_transactional


@pytest.mark.parametrize("oracle", [aiokafka_v2, kafka_v2])
def test_uncompressed_batch_has_the_same_bytes(oracle: Any) -> None:
    builder = oracle.DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
    for r in numbered(50):
        builder.append(r.offset, r.timestamp, r.key, r.value, list(r.headers))
    data = bytes(builder.build())
    assert data == bytes(build_batch(numbered(50), leader_epoch=int.from_bytes(data[12:16], signed=True)))


@pytest.mark.parametrize("memory_records", [AiokafkaRecords, KafkaRecords])
def test_other_implementations_read_log_append_time_and_gaps(memory_records: Any) -> None:
    kept = [r for r in numbered(20) if r.offset % 4 == 1]
    data = build_batch(kept, offset_deltas=[r.offset for r in kept], last_offset_delta=19)
    assert seen_by(memory_records, data) == kept
    stamped = build_batch(numbered(5), timestamp_type=TimestampType.LOG_APPEND_TIME, append_time=99)
    assert {(r.timestamp, r.timestamp_type) for r in seen_by(memory_records, stamped)} == {(99, 1)}


@pytest.mark.parametrize("control_type", [ControlType.ABORT, ControlType.COMMIT])
def test_other_implementations_read_markers(control_type: ControlType) -> None:
    data = bytes(build_control_batch(control_type, 5, 6, 7, 1000))
    batch = KafkaRecords(data).next_batch()
    assert batch.is_control_batch
    (marker,) = batch
    assert (marker.abort, marker.commit) == (control_type == 0, control_type == 1)


@pytest.mark.parametrize(("oracle", "memory_records", "magic", "codec"), LEGACY_ORACLES)
def test_other_implementations_read_our_messages(oracle: Any, memory_records: Any, magic: int, codec: Codec) -> None:
    data = build_message_set(plain(40)[5:], magic=magic, codec=codec)
    expected = plain(40)[5:]
    assert seen_by(memory_records, data) == (expected if magic else without_time(expected))


@pytest.mark.parametrize(("oracle", "memory_records", "magic", "codec"), LEGACY_ORACLES)
def test_messages_of_other_implementations_are_read(oracle: Any, memory_records: Any, magic: int, codec: Codec) -> None:
    builder = oracle.LegacyRecordBatchBuilder(magic, codec, 1 << 20)
    for r in plain(40):
        builder.append(r.offset, r.timestamp, r.key, r.value)
    assert read_records(builder.build()) == (plain(40) if magic else without_time(plain(40)))


@pytest.mark.parametrize("memory_records", [AiokafkaRecords, KafkaRecords])
def test_other_implementations_read_the_log_append_time_of_a_wrapper(memory_records: Any) -> None:
    data = build_message_set(plain(5), magic=1, codec=Codec.GZIP, timestamp_type=TimestampType.LOG_APPEND_TIME)
    assert seen_by(memory_records, data) == read_records(data)

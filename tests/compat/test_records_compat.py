"""Parity of stratalog.records with Apache Kafka: what we build, Kafka reads the same, and the other way.

Two Kafka readers judge: DumpLogSegments, for batch headers and validity, and FileRecords, the class with
which the broker and the consumer decode, for every byte of keys, values and headers.
"""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stratalog.errors import CorruptBatchError
from stratalog.records import arrow, legacy
from stratalog.records._records import Record
from stratalog.records.builder import build_batch, build_control_batch
from stratalog.records.format import Codec, ControlType, TimestampType
from stratalog.records.reader import read_records
from tests.compat.fetch_kafka import fetch_kafka
from tests.compat.kafka import Kind, dump_log_segments
from tests.golden.generate.clients import run_java

pytestmark = pytest.mark.compat

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
FIRST_SEGMENT = "00000000000000000000.log"
TIME = 1_600_000_000_000
TIMESTAMP_TYPES = {"NoTimestampType": -1, "CreateTime": 0, "LogAppendTime": 1}


def write_log(directory: Path, *batches: bytes | bytearray) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / FIRST_SEGMENT
    path.write_bytes(b"".join(batches))
    return path


def as_kafka_reads(log: Path) -> list[Record]:
    """Return the records of a .log as Kafka's FileRecords decodes them. It throws at the first invalid batch."""
    return [record_of(seen) for seen in json.loads(run_java("ReadLogFile.java", fetch_kafka(), [str(log)]))]


def record_of(seen: dict[str, Any]) -> Record:
    return Record(
        offset=seen["offset"],
        timestamp=seen["timestamp"],
        timestamp_type=TIMESTAMP_TYPES[seen["timestamp_type"]],
        key=decoded(seen["key"]),
        value=decoded(seen["value"]),
        headers=[(name, decoded(content)) for name, content in seen["headers"]],
    )


def decoded(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def random_records(generator: random.Random, base_offset: int, *, with_headers: bool = True) -> list[Record]:
    """Return records with sizes at which a varint grows by a byte, nulls, binary values, and any timestamps."""

    def content() -> bytes | None:
        size = generator.choice((None, 0, 1, 62, 63, 64, 65, 8190, 8192, 8193))
        return None if size is None else generator.randbytes(size)

    return [
        Record(
            offset=base_offset + i,
            timestamp=TIME + generator.choice((0, -1, 63, 64, -65, 10**9, -(10**9), 2**40)),
            key=content(),
            value=content() if i % 2 else (content() or b"") * 3,
            headers=[(f"имя {j}", content()) for j in range(i % 4 if with_headers else 0)],
        )
        for i in range(generator.randint(1, 70))
    ]


def test_random_batches_of_every_codec_read_the_same_in_kafka(tmp_path: Path) -> None:
    generator = random.Random(20)
    written: list[Record] = []
    batches: list[bytearray] = []
    for codec in [*Codec] * 4:
        records = random_records(generator, len(written))
        batches.append(build_batch(records, base_offset=len(written), codec=codec, leader_epoch=0))
        written += records
    log = write_log(tmp_path, *batches)
    assert as_kafka_reads(log) == written
    assert read_records(log.read_bytes()) == written


def test_arrow_tables_of_every_codec_read_the_same_in_kafka(tmp_path: Path) -> None:
    generator = random.Random(22)
    written: list[Record] = []
    batches: list[bytearray] = []
    for codec in Codec:
        records = [record for _ in range(4) for record in random_records(generator, 0)]
        records = [
            Record(offset=len(written) + i, timestamp=r.timestamp, key=r.key, value=r.value, headers=r.headers)
            for i, r in enumerate(records)
        ]
        table = pa.table(
            {
                "key": pa.array([record.key for record in records], pa.binary()),
                "value": pa.array([record.value for record in records], pa.binary()),
                "headers": pa.array(
                    [[{"key": name, "value": value} for name, value in r.headers] for r in records],
                    arrow.SCHEMA.field("headers").type,
                ),
                "timestamp": pa.array([record.timestamp for record in records], pa.timestamp("ms", tz="UTC")),
            }
        )
        built = arrow.from_arrow(table, codec=codec, base_offset=len(written), max_batch_bytes=100_000)
        assert len(built) > 1
        batches += built
        written += records
    log = write_log(tmp_path, *batches)
    assert as_kafka_reads(log) == written
    assert arrow.to_arrow(log.read_bytes()).column("value").to_pylist() == [record.value for record in written]


def test_text_batches_of_every_codec_are_valid_to_the_dumper(tmp_path: Path) -> None:
    records = [
        Record(timestamp=TIME, key="ключ".encode(), value="значение\n値 payload: ".encode()),
        Record(timestamp=TIME + 5, key=None, value=b"", headers=[("a", b"1"), ("b", None)]),
        Record(timestamp=TIME - 5, key=b"", value=None),
        Record(timestamp=TIME + 1, key=b"long", value=b"0123456789" * 1000),
    ]
    logs = {
        codec: write_log(
            tmp_path / codec.name,
            *(build_batch(records, base_offset=4 * i, codec=codec, leader_epoch=7) for i in range(3)),
        )
        for codec in Codec
    }
    dump = dump_log_segments(list(logs.values()), "--deep-iteration", "--print-data-log")
    assert dump.complaints == []
    for codec, log in logs.items():
        batches = dump[log].batches
        assert [batch.header["compresscodec"] for batch in batches] == [codec.name.lower()] * 3
        assert [batch.number("baseOffset") for batch in batches] == [0, 4, 8]
        assert [batch.number("lastOffset") for batch in batches] == [3, 7, 11]
        assert {batch.number("CreateTime") for batch in batches} == {TIME + 5}
        assert {batch.number("partitionLeaderEpoch") for batch in batches} == {7}
        assert sum(batch.number("size") for batch in batches) == log.stat().st_size
        seen = [(r.timestamp, r.key, r.value, r.header_keys) for r in dump[log].records]
        assert seen == 3 * [(r.timestamp, r.key, r.value, tuple(n for n, _ in r.headers)) for r in records]
        assert [r.offset for r in dump[log].records] == list(range(12))


def test_every_header_field_has_kafkas_position(tmp_path: Path) -> None:
    log = write_log(
        tmp_path,
        build_batch(
            [(b"k", b"v")] * 5,
            base_offset=0,
            producer_id=2**40,
            producer_epoch=9,
            base_sequence=2**31 - 3,  # wraps to 0 inside the batch
            is_transactional=True,
            leader_epoch=3,
        ),
        build_control_batch(ControlType.COMMIT, 2**40, 9, 77, TIME, base_offset=5, leader_epoch=3),
        build_control_batch(ControlType.ABORT, 2**40, 10, 78, TIME + 1, base_offset=6, leader_epoch=4),
        build_batch(
            [Record(timestamp=TIME, value=b"v")],
            base_offset=7,
            timestamp_type=TimestampType.LOG_APPEND_TIME,
            append_time=TIME + 50,
        ),
        build_batch([Record(timestamp=TIME, key=b"tombstone")], base_offset=8, delete_horizon=TIME + 99),
    )
    dump = dump_log_segments([log], "--deep-iteration")
    assert dump.complaints == []
    data, commit, abort, appended, tombstone = dump[log].batches
    assert (data.number("producerId"), data.number("producerEpoch")) == (2**40, 9)
    assert (data.number("baseSequence"), data.number("lastSequence")) == (2**31 - 3, 1)
    assert [r.sequence for r in data.records] == [2**31 - 3, 2**31 - 2, 2**31 - 1, 0, 1]
    assert (data.header["isTransactional"], data.header["isControl"]) == ("true", "false")
    assert (commit.header["isTransactional"], commit.header["isControl"]) == ("true", "true")
    assert commit.records[0].control == "endTxnMarker: COMMIT coordinatorEpoch: 77"
    assert abort.records[0].control == "endTxnMarker: ABORT coordinatorEpoch: 78"
    assert (appended.timestamp_type, appended.number("LogAppendTime")) == ("LogAppendTime", TIME + 50)
    assert [r.timestamp for r in appended.records] == [TIME + 50]
    assert tombstone.header["deleteHorizonMs"] == f"OptionalLong[{TIME + 99}]"
    assert [r.timestamp for r in tombstone.records] == [TIME]


def test_gaps_of_compaction_are_read_as_gaps(tmp_path: Path) -> None:
    log = write_log(
        tmp_path,
        build_batch(
            [(b"a", b"1"), (b"b", b"2")],
            base_offset=10,
            offset_deltas=[3, 5],
            last_offset_delta=9,
            codec=Codec.ZSTD,
        ),
        build_batch([(b"c", b"3")], base_offset=20, offset_deltas=[4]),
    )
    dump = dump_log_segments([log], "--deep-iteration")
    assert [complaint.kind for complaint in dump.complaints] == [Kind.NON_CONSECUTIVE]
    assert [record.offset for record in dump[log].records] == [13, 15, 24]
    assert [(b.number("baseOffset"), b.last_offset) for b in dump[log].batches] == [(10, 19), (20, 24)]


def test_both_detect_a_flipped_bit(tmp_path: Path) -> None:
    batch = build_batch([(b"key", b"value")], codec=Codec.NONE)
    batch[-2] ^= 1
    log = write_log(tmp_path, batch)
    dump = dump_log_segments([log])
    assert [complaint.kind for complaint in dump.complaints] == [Kind.INVALID_BATCH]
    with pytest.raises(CorruptBatchError, match="checksum"):
        read_records(batch)


def test_message_sets_of_magic_0_and_1_read_the_same_in_kafka(tmp_path: Path) -> None:
    generator = random.Random(21)
    written: list[Record] = []
    messages = bytearray()
    for magic in (0, 1):
        for codec in (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4):
            records = random_records(generator, len(written), with_headers=False)
            messages += legacy.build_message_set(records, magic=magic, codec=codec)
            written += records if magic else [without_timestamp(record) for record in records]
    log = write_log(tmp_path, messages)
    assert as_kafka_reads(log) == written
    assert read_records(messages) == written


def without_timestamp(record: Record) -> Record:
    return Record(offset=record.offset, timestamp_type=-1, key=record.key, value=record.value)


@pytest.mark.parametrize("magic", [0, 1])
def test_up_converted_golden_messages_read_the_same_in_kafka(tmp_path: Path, magic: int) -> None:
    converted = bytearray()
    expected: list[Record] = []
    for directory in sorted(GOLDEN.glob(f"magic{magic}-*")):
        batches = legacy.up_convert((directory / FIRST_SEGMENT).read_bytes())
        log = write_log(tmp_path / directory.name, batches)
        assert log.read_bytes()[16] == 2
        converted += batches
        expected += [record_of(seen) for seen in json.loads((directory / "expected.json").read_text())["records"]]
    if magic == 0:  # magic 2 has no "no timestamp type", so Kafka reads CreateTime, -1
        expected = [Record(offset=r.offset, timestamp=-1, key=r.key, value=r.value) for r in expected]
    assert len(expected) >= 48
    assert as_kafka_reads(write_log(tmp_path / "all", converted)) == expected

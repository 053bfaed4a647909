"""Logs that Apache Kafka wrote from the records of real clients, in every codec and magic. The Java consumer read the
same records. tests/golden/README.md explains the files.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from stratalog.records import (
    Batch,
    Record,
    TimestampType,
    batches,
    read_control,
    read_records,
    to_arrow,
    up_convert,
)
from stratalog.records.format import CURRENT_MAGIC, Codec

GOLDEN = Path(__file__).parent.parent / "golden"
EXPECTED: dict[str, dict[str, Any]] = {
    path.parent.name: json.loads(path.read_text()) for path in sorted(GOLDEN.glob("*/expected.json"))
}
PARTITIONS = [name for name, expected in EXPECTED.items() if expected.get("batches")]
LEGACY = [name for name in PARTITIONS if EXPECTED[name]["magic"] != CURRENT_MAGIC]
TRANSACTIONAL = [name for name in PARTITIONS if EXPECTED[name].get("control")]

TIMESTAMP_TYPES = {
    "CreateTime": TimestampType.CREATE_TIME,
    "LogAppendTime": TimestampType.LOG_APPEND_TIME,
    "NoTimestampType": TimestampType.NO_TIMESTAMP,
}
BATCH_FIELDS = {
    "position": "position",
    "size": "size",
    "base_offset": "base_offset",
    "last_offset": "last_offset",
    "count": "record_count",
    "max_timestamp": "max_timestamp",
    "producer_id": "producer_id",
    "producer_epoch": "producer_epoch",
    "base_sequence": "base_sequence",
    "leader_epoch": "leader_epoch",
    "is_transactional": "is_transactional",
    "is_control": "is_control",
    "crc": "crc",
}


def content(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def expected_records(name: str) -> list[Record]:
    return [
        Record(
            offset=record["offset"],
            timestamp=record["timestamp"],
            timestamp_type=TIMESTAMP_TYPES[record["timestamp_type"]],
            key=content(record["key"]),
            value=content(record["value"]),
            headers=[(key, content(value)) for key, value in record["headers"]],
        )
        for record in EXPECTED[name]["records"]
    ]


def log_files(name: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((GOLDEN / name).glob("*.log"))}


def log_bytes(name: str) -> bytes:
    return b"".join(log_files(name).values())


def log_start_offset(name: str) -> int:
    """Return the consumer's start offset. The file may still have deleted records before it."""
    first: int = EXPECTED[name]["records"][0]["offset"]
    return first


def test_golden_files_cover_every_codec_and_magic() -> None:
    ours = {(EXPECTED[name]["magic"], EXPECTED[name]["codec"]) for name in PARTITIONS}
    codecs = [codec.name.lower() for codec in Codec]
    assert ours == {(magic, codec) for magic in (0, 1, 2) for codec in codecs if magic == 2 or codec != "zstd"}


@pytest.mark.parametrize("name", PARTITIONS)
def test_records_equal_those_of_the_java_consumer(name: str) -> None:
    ours = [record for record in read_records(log_bytes(name)) if record.offset >= log_start_offset(name)]
    assert ours == expected_records(name)


@pytest.mark.parametrize("name", PARTITIONS)
def test_columns_equal_the_records_of_the_java_consumer(name: str) -> None:
    columns = to_arrow(log_bytes(name), start_offset=log_start_offset(name))
    columns.validate(full=True)
    expected = expected_records(name)
    assert columns.column("offset").to_pylist() == [record.offset for record in expected]
    assert columns.column("key").to_pylist() == [record.key for record in expected]
    assert columns.column("value").to_pylist() == [record.value for record in expected]
    assert columns.column("timestamp").cast("int64").to_pylist() == [record.timestamp for record in expected]
    assert columns.column("timestamp_type").to_pylist() == [record.timestamp_type for record in expected]
    headers = [[(pair["key"], pair["value"]) for pair in row] for row in columns.column("headers").to_pylist()]
    assert headers == [list(record.headers) for record in expected]


@pytest.mark.parametrize("name", PARTITIONS)
def test_batch_headers_equal_those_of_kafkas_dump(name: str) -> None:
    ours = {(file, batch.header.position): batch for file, data in log_files(name).items() for batch in batches(data)}
    assert list(ours) == [(batch["file"], batch["position"]) for batch in EXPECTED[name]["batches"]]
    for expected, batch in zip(EXPECTED[name]["batches"], ours.values(), strict=True):
        known = {field: value for field, value in expected.items() if field in BATCH_FIELDS and value is not None}
        assert {field: getattr(batch.header, BATCH_FIELDS[field]) for field in known} == known
        assert batch.crc_matches()


@pytest.mark.parametrize("name", TRANSACTIONAL)
def test_markers_equal_those_of_kafkas_dump(name: str) -> None:
    def as_shown(batch: Batch) -> dict[str, Any]:
        control_type, coordinator_epoch = read_control(batch)
        return {
            "offset": batch.header.base_offset,
            "timestamp": batch.header.max_timestamp,
            "type": control_type.name,
            "producer_id": batch.header.producer_id,
            "producer_epoch": batch.header.producer_epoch,
            "coordinator_epoch": coordinator_epoch,
        }

    ours = [as_shown(batch) for batch in batches(log_bytes(name)) if batch.header.is_control]
    assert ours == EXPECTED[name]["control"]


@pytest.mark.parametrize("name", LEGACY)
def test_up_converted_messages_equal_the_records_of_the_java_consumer(name: str) -> None:
    converted = up_convert(log_bytes(name))
    assert {batch.header.magic for batch in batches(converted)} == {CURRENT_MAGIC}
    kept = [(r.offset, r.timestamp, r.key, r.value) for r in expected_records(name)]
    assert [(r.offset, r.timestamp, r.key, r.value) for r in read_records(converted)] == kept

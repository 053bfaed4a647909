"""Stratalog opens the directories of Kafka brokers, after a clean shutdown and after a crash, and reads the same
records as their consumers."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from stratalog.records._records import Record
from stratalog.storage import LogConfig, LogDirectory
from stratalog.storage.names import TopicPartition

GOLDEN = Path(__file__).parent
TIMESTAMP_TYPES = {"NoTimestampType": -1, "CreateTime": 0, "LogAppendTime": 1}
KEEP_EVERYTHING = LogConfig(retention_ms=-1, index_interval_bytes=64, segment_index_bytes=1024)


def expected_of(name: str) -> dict[str, Any]:
    expected: dict[str, Any] = json.loads((GOLDEN / name / "expected.json").read_text())
    return expected


PARTITIONS = sorted(path.parent.name for path in GOLDEN.glob("*/expected.json") if path.parent.name != "data-directory")


def copy_partition(name: str, data: Path) -> Path:
    target = data / f"{name}-0"
    target.mkdir(parents=True)
    for file in expected_of(name)["files"]:
        shutil.copy(GOLDEN / name / file, target / file)
    return target


def copy_data_directory(data: Path) -> None:
    """Copy the data directory as the broker left it. The legacy partitions are from another broker."""
    data.mkdir(exist_ok=True)
    for file in expected_of("data-directory")["files"]:
        shutil.copy(GOLDEN / "data-directory" / file, data / file)
    for name in PARTITIONS:
        if expected_of(name)["magic"] == 2:
            copy_partition(name, data)


def records_of(name: str) -> list[Record]:
    def decoded(text: str | None) -> bytes | None:
        return None if text is None else base64.b64decode(text)

    return [
        Record(
            offset=seen["offset"],
            timestamp=seen["timestamp"],
            timestamp_type=TIMESTAMP_TYPES[seen["timestamp_type"]],
            key=decoded(seen["key"]),
            value=decoded(seen["value"]),
            headers=[(header, decoded(content)) for header, content in seen["headers"]],
        )
        for seen in expected_of(name)["records"]
    ]


def files_in(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_golden_partitions_cover_every_client_codec_and_magic() -> None:
    clients = ("java", "kafka-python", "aiokafka", "confluent-kafka")
    expected = {f"{client}-{codec}" for client in clients for codec in ("none", "gzip", "snappy", "lz4", "zstd")}
    expected |= {f"magic{magic}-{codec}" for magic in (0, 1) for codec in ("none", "gzip", "snappy", "lz4")}
    assert expected <= set(PARTITIONS)


@pytest.mark.parametrize("name", PARTITIONS)
@pytest.mark.parametrize("stopped", ["cleanly", "by a crash"])
def test_records_equal_those_of_the_java_consumer(tmp_path: Path, name: str, stopped: str) -> None:
    partition = copy_partition(name, tmp_path)
    if stopped == "cleanly":
        (tmp_path / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":39}')
    expected = expected_of(name)
    last_offset = max(batch["last_offset"] for batch in expected["batches"])
    with LogDirectory.open(tmp_path, KEEP_EVERYTHING, background=False) as directory:
        log = directory.log(name, 0)
        if name == "java-deleted-records":
            log.advance_start(4)
        assert (log.recovery.problems, log.recovery.cut) == ([], None)
        assert list(log.records()) == records_of(name)
        assert log.log_end_offset == last_offset + 1
    # A 0.10 broker wrote no snapshots; closing the log adds one.
    assert files_in(partition).keys() == {*expected["files"], f"{last_offset + 1:020d}.snapshot"}


@pytest.mark.parametrize("name", [name for name in PARTITIONS if not name.startswith("magic")])
def test_recovery_rebuilds_kafkas_indexes_and_snapshots(tmp_path: Path, name: str) -> None:
    partition = copy_partition(name, tmp_path)
    for path in partition.iterdir():
        if path.suffix in (".index", ".timeindex", ".txnindex", ".snapshot"):
            path.unlink()
    with LogDirectory.open(tmp_path, KEEP_EVERYTHING, background=False) as directory:
        directory.log(name, 0)
    ours = files_in(partition)
    for file in expected_of(name)["files"]:
        if file.endswith((".log", ".index", ".timeindex", ".txnindex")):
            assert ours[file].hex() == (GOLDEN / name / file).read_bytes().hex(), file
    end = max(batch["last_offset"] for batch in expected_of(name)["batches"]) + 1
    assert ours[f"{end:020d}.snapshot"].hex() == (GOLDEN / name / f"{end:020d}.snapshot").read_bytes().hex()


@pytest.mark.parametrize("name", [name for name in PARTITIONS if not name.startswith("magic")])
def test_opening_and_closing_changes_no_byte(tmp_path: Path, name: str) -> None:
    copy_data_directory(tmp_path)
    with LogDirectory.open(tmp_path, KEEP_EVERYTHING, background=False) as directory:
        directory.log(name, 0)
    for file, content in files_in(tmp_path / f"{name}-0").items():
        assert content.hex() == (GOLDEN / name / file).read_bytes().hex(), file
    for checkpoint in expected_of("data-directory")["checkpoints"]:
        ours, kafkas = tmp_path / checkpoint, GOLDEN / "data-directory" / checkpoint
        assert sorted(ours.read_text().splitlines()) == sorted(kafkas.read_text().splitlines()), checkpoint


def test_checkpoints_of_the_data_directory_are_used(tmp_path: Path) -> None:
    copy_data_directory(tmp_path)
    checkpoints = expected_of("data-directory")["checkpoints"]
    with LogDirectory.open(tmp_path, KEEP_EVERYTHING, background=False) as directory:
        assert directory.log("java-deleted-records", 0).log_start_offset == 4
        logs = {log.partition: log for log in directory.open_all()}
        assert set(logs) == {TopicPartition(name, 0) for name in PARTITIONS if not name.startswith("magic")}
        for topic, partition, offset in checkpoints["replication-offset-checkpoint"]:
            assert directory.high_watermarks.get(TopicPartition(topic, partition)) == offset
            if not topic.startswith("__"):
                assert logs[TopicPartition(topic, partition)].log_end_offset == offset
                assert logs[TopicPartition(topic, partition)].recovery.segments_scanned == 0


@pytest.mark.parametrize("name", [name for name in PARTITIONS if "-log-append-time" not in name])
def test_lookup_of_every_timestamp_finds_its_first_record(tmp_path: Path, name: str) -> None:
    """Markers count, as in Kafka: a lookup by time may return the offset of a marker."""
    copy_partition(name, tmp_path)
    markers = [(marker["offset"], marker["timestamp"]) for marker in expected_of(name)["control"]]
    records = sorted([(record.offset, record.timestamp) for record in records_of(name)] + markers)
    with LogDirectory.open(tmp_path, KEEP_EVERYTHING, background=False) as directory:
        log = directory.log(name, 0)
        if name == "java-deleted-records":
            log.advance_start(4)
        for timestamp in {timestamp for _, timestamp in records if timestamp >= 0}:
            match = log.find_timestamp(timestamp)
            assert match is not None
            assert (match.offset, match.timestamp) == next(first for first in records if first[1] >= timestamp)
        assert log.find_timestamp(2**62) is None

"""Appending the batches of a golden partition to our Log writes the same files as Kafka, byte for byte.

This covers `.log`, the moment and the content of index entries, the producers in snapshots, aborted transactions, and
the end of all these files. It needs no Java, because Kafka wrote the golden files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stratalog.clock import ManualClock
from stratalog.records.batch import Batch, batches
from stratalog.records.format import TimestampType
from stratalog.storage import LogConfig, LogDirectory, Origin

GOLDEN = Path(__file__).parent
TAKEN_OUT_LATER = {"java-compacted", "java-deleted-records"}  # some appended batches are gone


def partitions() -> list[str]:
    names = []
    for path in sorted(GOLDEN.glob("*/expected.json")):
        if json.loads(path.read_text()).get("magic") == 2 and path.parent.name not in TAKEN_OUT_LATER:
            names.append(path.parent.name)
    return names


def expected_of(name: str) -> dict[str, Any]:
    expected: dict[str, Any] = json.loads((GOLDEN / name / "expected.json").read_text())
    return expected


def golden_batches(name: str) -> list[Batch]:
    logs = sorted((GOLDEN / name).glob("*.log"))
    return [batch for log in logs for batch in batches(log.read_bytes())]


def config_of(name: str) -> LogConfig:
    return LogConfig.parse(expected_of(name)["topic_config"])


@pytest.mark.parametrize("name", partitions())
def test_appending_kafkas_batches_writes_kafkas_files(tmp_path: Path, name: str) -> None:
    clock = ManualClock()
    with LogDirectory.open(tmp_path, config_of(name), clock=clock, background=False) as directory:
        log = directory.log(name, 0)
        for batch in golden_batches(name):
            clock.advance(batch.header.max_timestamp - clock.now_ms())  # the original LogAppendTime
            data = bytearray(batch.data)
            data[0:8] = bytes(8)
            # A client may not send batches of the broker: markers, and batches with LogAppendTime.
            is_brokers = batch.header.is_control or batch.header.timestamp_type == TimestampType.LOG_APPEND_TIME
            origin = Origin.COORDINATOR if is_brokers else Origin.CLIENT
            appended = log.append(data, leader_epoch=0, origin=origin)
            assert (appended.base_offset, appended.duplicate) == (batch.header.base_offset, False)
    ours = {path.name: path.read_bytes() for path in (tmp_path / f"{name}-0").iterdir()}
    kafkas = {file: (GOLDEN / name / file).read_bytes() for file in expected_of(name)["files"]}
    assert sorted(ours) == sorted(kafkas)
    for file in kafkas.keys() - {"partition.metadata"}:  # each topic has another id
        assert ours[file].hex() == kafkas[file].hex(), file


def test_partition_metadata_has_kafkas_format(tmp_path: Path) -> None:
    with LogDirectory.open(tmp_path, background=False) as directory:
        directory.log("shape", 0)
    ours = (tmp_path / "shape-0" / "partition.metadata").read_bytes()
    kafkas = (GOLDEN / "java-none" / "partition.metadata").read_bytes()
    assert ours[:21] == kafkas[:21]
    assert len(ours) == len(kafkas)

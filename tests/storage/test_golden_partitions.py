"""Opens partitions that Kafka wrote, and appends to them. (tests/golden tests reading them.)"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from stratalog.records.batch import batches
from stratalog.storage import LogDirectory
from tests.storage.hand_made import GOLDEN, START_MS, batch_of, left_by_kill, open_directory, write_clean_marker

PARTITIONS = sorted(path.parent.name for path in GOLDEN.glob("*/expected.json") if path.parent.name != "data-directory")
SETTINGS: dict[str, Any] = {"retention_ms": -1, "index_interval_bytes": 64, "segment_index_bytes": 1024}


def expected_of(name: str) -> dict[str, Any]:
    expected: dict[str, Any] = json.loads((GOLDEN / name / "expected.json").read_text())
    return expected


def copied(name: str, data: Path) -> LogDirectory:
    (data / f"{name}-0").mkdir(parents=True)
    for file in expected_of(name)["files"]:
        shutil.copy(GOLDEN / name / file, data / f"{name}-0" / file)
    write_clean_marker(data)
    return open_directory(data, **SETTINGS)


@pytest.mark.parametrize("name", PARTITIONS)
def test_log_continues_where_kafka_stopped(tmp_path: Path, name: str) -> None:
    end = max(batch["last_offset"] for batch in expected_of(name)["batches"]) + 1
    newest = max(batch["max_timestamp"] for batch in expected_of(name)["batches"])
    with copied(name, tmp_path / "data") as directory:
        log = directory.log(name, 0)
        before = list(log.records())
        later = max(newest, START_MS) + 1
        appended = log.append(batch_of(later, later + 5))
        assert (appended.base_offset, appended.last_offset) == (end, end + 1)
        assert log.find_timestamp(later + 1) == (end + 1, later + 5)
        after = list(log.records())
        assert after[:-2] == before
        assert [record.offset for record in after[-2:]] == [end, end + 1]
        crashed = left_by_kill(tmp_path / "data", tmp_path / "copy")
    for data in (tmp_path / "data", crashed):
        with open_directory(data, **SETTINGS) as directory:
            assert list(directory.log(name, 0).records()) == after
            assert directory.log(name, 0).recovery.problems == []


@pytest.mark.parametrize("name", [name for name in PARTITIONS if expected_of(name)["magic"] == 2])
def test_every_offset_is_read_from_its_batch(tmp_path: Path, name: str) -> None:
    with copied(name, tmp_path) as directory:
        log = directory.log(name, 0)
        for batch in expected_of(name)["batches"]:
            for offset in range(batch["base_offset"], batch["last_offset"] + 1):
                header = next(log.read(offset, 1).batches()).header
                seen = (header.base_offset, header.last_offset, header.crc, header.leader_epoch)
                assert seen == (batch["base_offset"], batch["last_offset"], batch["crc"], batch["leader_epoch"])


@pytest.mark.parametrize("name", [name for name in PARTITIONS if "transactional" in name or "idempotent" in name])
def test_kafkas_producers_are_known(tmp_path: Path, name: str) -> None:
    """The last data batch of each producer is recognised as a duplicate."""
    with copied(name, tmp_path) as directory:
        log = directory.log(name, 0)
        state = {producer.producer_id: producer for producer in log.producers}
        assert state
        whole = b"".join(path.read_bytes() for path in sorted((GOLDEN / name).glob("*.log")))
        for producer_id, producer in state.items():
            theirs = [batch for batch in batches(whole) if batch.header.producer_id == producer_id]
            data = [batch for batch in theirs if not batch.header.is_control]
            if not producer.batches:  # the last batch was a marker of the next producer epoch
                assert theirs[-1].header.is_control
                continue
            again = log.append(bytes(data[-1].data))
            assert (again.duplicate, again.base_offset) == (True, data[-1].header.base_offset)


@pytest.mark.parametrize("name", [name for name in PARTITIONS if "transactional" in name])
def test_kafkas_aborted_transactions_are_rebuilt_without_their_files(tmp_path: Path, name: str) -> None:
    partition = tmp_path / f"{name}-0"
    copied(name, tmp_path).close()
    for path in [*partition.glob("*.snapshot"), *partition.glob("*index")]:
        path.unlink()
    (tmp_path / ".kafka_cleanshutdown").unlink()
    with open_directory(tmp_path, **SETTINGS) as directory:
        log = directory.log(name, 0)
        aborted = [entry._asdict() for segment in log.segments for entry in segment.transaction_index.entries()]
        assert aborted == expected_of(name)["aborted"]
        assert aborted

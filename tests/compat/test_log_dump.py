"""Tests of the harness: every kind of damage in real Kafka files must cause a complaint of its kind."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.compat.kafka import Kind, dump_log_segments, segment_files

pytestmark = pytest.mark.compat

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
SEGMENT = "00000000000000000000"


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """Copy a partition with batches, both indexes, aborted transactions and a snapshot."""
    copy = tmp_path / "copy-0"
    shutil.copytree(GOLDEN / "confluent-kafka-transactional", copy)
    return copy


def kinds(directory: Path, *flags: str) -> set[Kind]:
    return {complaint.kind for complaint in dump_log_segments(segment_files(directory), *flags).complaints}


def change(path: Path, position: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[position : position + len(data)] = data
    path.write_bytes(content)


def test_valid_files_give_no_complaint_and_the_expected_structures(partition: Path) -> None:
    expected = json.loads((partition / "expected.json").read_text())
    dump = dump_log_segments(segment_files(partition), "--deep-iteration", "--print-data-log")
    assert dump.complaints == []
    assert {path.name for path in dump.files} == {path.name for path in segment_files(partition)}
    index = dump[partition / f"{SEGMENT}.index"].pairs("offset", "position")
    assert index == [tuple(entry) for entry in expected["index"][f"{SEGMENT}.index"]]
    data = [record for record in dump[partition / f"{SEGMENT}.log"].records if record.control is None]
    assert [record.offset for record in data] == [record["offset"] for record in expected["records"]]
    assert data[0].key == b"k0"


def test_sanity_check_of_valid_indexes_passes(partition: Path) -> None:
    dump = dump_log_segments(segment_files(partition), "--index-sanity-check")
    assert dump.complaints == []
    assert dump[partition / f"{SEGMENT}.index"].passed_sanity_check
    assert dump[partition / f"{SEGMENT}.timeindex"].passed_sanity_check


def test_damage_of_log_and_indexes_is_reported_by_kind(partition: Path) -> None:
    log = partition / f"{SEGMENT}.log"
    change(log, 90, b"\xff")  # inside the first batch's records
    log.write_bytes(log.read_bytes() + b"\0" * 5)
    change(partition / f"{SEGMENT}.index", 4, (173).to_bytes(4, "big"))  # the next batch's position
    change(partition / f"{SEGMENT}.timeindex", 7, b"\x01")  # the first timestamp's last byte
    change(partition / f"{SEGMENT}.timeindex", 20, (4).to_bytes(4, "big"))  # a data batch: another timestamp
    assert kinds(partition) == {
        Kind.INVALID_BATCH,
        Kind.TRAILING_BYTES,
        Kind.INDEX_MISMATCH,
        Kind.TIMESTAMP_MISMATCH,
        Kind.OFFSET_NOT_FOUND,  # the tool finds the time index's offsets through the damaged offset index
    }


def test_time_index_out_of_order_or_of_unknown_offsets_is_reported(partition: Path) -> None:
    index = partition / f"{SEGMENT}.timeindex"
    entries = index.read_bytes()
    change(index, 12, entries[:12])  # the same timestamp again
    change(index, 32, (6).to_bytes(4, "big"))  # inside a batch, not its last offset
    assert kinds(partition, "--verify-index-only") == {Kind.TIMESTAMP_OUT_OF_ORDER, Kind.OFFSET_NOT_FOUND}


def test_corrupt_index_and_snapshot_and_strange_file_are_reported(partition: Path) -> None:
    change(partition / "00000000000000000018.snapshot", 12, b"\x01")
    snapshot = dump_log_segments([partition / "00000000000000000018.snapshot", partition / "expected.json"])
    assert {complaint.kind for complaint in snapshot.complaints} == {Kind.CORRUPT_SNAPSHOT, Kind.UNKNOWN_FILE}
    index = partition / f"{SEGMENT}.timeindex"
    index.write_bytes(index.read_bytes() + b"\0" * 12)
    assert {Kind.EXCEPTION, Kind.EXIT_CODE} <= kinds(partition, "--index-sanity-check")


def test_gap_between_records_is_reported(partition: Path) -> None:
    log = partition / f"{SEGMENT}.log"
    content = log.read_bytes()
    log.write_bytes(content[:95] + content[173:])  # without the first marker
    (partition / f"{SEGMENT}.index").unlink()
    (partition / f"{SEGMENT}.timeindex").unlink()
    assert kinds(partition, "--deep-iteration") == {Kind.NON_CONSECUTIVE}

"""The description of a partition's files by Apache Kafka's own tool, for expected.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.compat.kafka import Dump, DumpedBatch, Kind, dump_log_segments, segment_files

Json = dict[str, Any]


def write_expected(target: Path, expected: Json) -> None:
    text = json.dumps(expected, indent=1, ensure_ascii=False)
    (target / "expected.json").write_text(text + "\n")


def describe(directory: Path, *allowed: Kind) -> Json:
    """Return the description. Fails if the tool reports a problem, because golden files must be valid."""
    files = segment_files(directory)
    dump = dump_log_segments(files, "--deep-iteration")
    faults = dump.complaints_but(Kind.NON_CONSECUTIVE, *allowed)
    if faults:
        raise SystemExit(f"{directory}: {faults}")
    return {
        "control": control_records(dump),
        "aborted": [
            {
                "producer_id": int(entry["producerId"]),
                "first_offset": int(entry["firstOffset"]),
                "last_offset": int(entry["lastOffset"]),
                "last_stable_offset": int(entry["lastStableOffset"]),
            }
            for path, file in dump.files.items()
            if path.suffix == ".txnindex"
            for entry in file.entries
        ],
        "batches": [
            batch_header(path, batch)
            for path, file in dump.files.items()
            if path.suffix == ".log"
            for batch in file.batches
        ],
        "index": {
            path.name: file.pairs("offset", "position") for path, file in dump.files.items() if path.suffix == ".index"
        },
        "timeindex": {
            path.name: file.pairs("timestamp", "offset")
            for path, file in dump.files.items()
            if path.suffix == ".timeindex"
        },
        "snapshots": {
            path.name: [producer(entry) for entry in file.entries]
            for path, file in dump.files.items()
            if path.suffix == ".snapshot"
        },
    }


def control_records(dump: Dump) -> list[Json]:
    markers = []
    for file in dump.files.values():
        for batch in file.batches:
            for record in batch.records:
                if record.control is None:
                    continue
                _, kind, _, epoch = record.control.split()
                markers.append(
                    {
                        "offset": record.offset,
                        "timestamp": record.timestamp,
                        "type": kind,
                        "producer_id": batch.number("producerId"),
                        "producer_epoch": batch.number("producerEpoch"),
                        "coordinator_epoch": int(epoch),
                    }
                )
    return markers


def batch_header(path: Path, batch: DumpedBatch) -> Json:
    common = {
        "file": path.name,
        "position": batch.position,
        "size": batch.number("size"),
        "last_offset": batch.last_offset,
        "codec": batch.header["compresscodec"],
        "timestamp_type": batch.timestamp_type,
        "max_timestamp": batch.number(batch.timestamp_type),
        "crc": batch.number("crc"),
    }
    if batch.number("magic") < 2:
        return {**common, "base_offset": None, "count": None}
    return {
        **common,
        "base_offset": batch.number("baseOffset"),
        "count": batch.number("count"),
        "producer_id": batch.number("producerId"),
        "producer_epoch": batch.number("producerEpoch"),
        "base_sequence": batch.number("baseSequence"),
        "leader_epoch": batch.number("partitionLeaderEpoch"),
        "is_transactional": batch.header["isTransactional"] == "true",
        "is_control": batch.header["isControl"] == "true",
        "delete_horizon_ms": optional_long(batch.header["deleteHorizonMs"]),
    }


def producer(entry: dict[str, str]) -> Json:
    return {
        "producer_id": int(entry["producerId"]),
        "producer_epoch": int(entry["producerEpoch"]),
        "coordinator_epoch": int(entry["coordinatorEpoch"]),
        "current_transaction_first_offset": optional_long(entry["currentTxnFirstOffset"]),
        "last_timestamp": int(entry["lastTimestamp"]),
        "last_sequence": int(entry.get("lastSequence", -1)),
        "last_offset": int(entry.get("lastOffset", -1)),
        "offset_delta": int(entry.get("offsetDelta", 0)),
    }


def optional_long(shown: str) -> int | None:
    """Parse Java's OptionalLong[3] and OptionalLong.empty, which the tool prints."""
    return int(shown[13:-1]) if shown.startswith("OptionalLong[") else None

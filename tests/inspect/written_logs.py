"""Logs on disk for the tools: written by the storage engine, or batch by batch where the engine would refuse."""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from stratalog.records._records import Record
from stratalog.records.builder import build_batch, build_control_batch
from stratalog.records.format import Codec, ControlType
from stratalog.storage import Log, LogConfig, Origin
from stratalog.storage.names import LOG, segment_file

GOLDEN = Path(__file__).parents[1] / "golden"
START = 1_700_000_000_000
SMALL = {"segment_bytes": 4096, "index_interval_bytes": 300, "segment_index_bytes": 4096, "retention_ms": -1}


def golden_partitions() -> list[Path]:
    return sorted(path for path in GOLDEN.iterdir() if any(path.glob("*.log")))


def record(offset: int, timestamp: int | None = None, size: int = 40) -> Record:
    return Record(
        offset=offset,
        timestamp=START + offset if timestamp is None else timestamp,
        key=b"key-%d" % offset,
        value=b"v" * size,
        headers=[("origin", b"test")],
    )


def fill(log: Log, count: int, *, per_batch: int = 5, codec: int = Codec.NONE) -> None:
    """Append `count` records, one per millisecond."""
    end = log.log_end_offset + count
    while log.log_end_offset < end:
        first = log.log_end_offset
        log.append(build_batch([record(at) for at in range(first, min(first + per_batch, end))], codec=codec))


def write_log(path: Path, count: int = 200, **settings: object) -> Path:
    """Write a closed log of several segments into a data directory of its own."""
    with Log.open(path, LogConfig(**(SMALL | settings))) as log:  # type: ignore[arg-type]
        fill(log, count)
    return path


def write_transactions(path: Path) -> Path:
    """Append two committed records, two aborted ones, and two of an open transaction, all of producer 7."""
    with Log.open(path, LogConfig(retention_ms=-1)) as log:
        for turn, ending in enumerate((ControlType.COMMIT, ControlType.ABORT, None)):
            data = [record(turn * 3), record(turn * 3 + 1)]
            sequence = turn * 2
            log.append(
                build_batch(data, producer_id=7, producer_epoch=0, base_sequence=sequence, is_transactional=True)
            )
            if ending is not None:
                marker = build_control_batch(ending, 7, 0, 3, START + turn)
                log.append(marker, origin=Origin.COORDINATOR)
    return path


def write_random_log(log: Log, source: random.Random, batches: int) -> None:
    """Append batches of any size and codec, with timestamps that go back and forth or are missing."""
    for _ in range(batches):
        count = source.choice((1, 1, 2, 7, 30))
        moment = source.choice((-1, source.randrange(START, START + 500), source.randrange(START, START + 500)))
        records = [
            record(at, -1 if moment < 0 else moment + source.randrange(20), source.randrange(80)) for at in range(count)
        ]
        log.append(build_batch(records, codec=source.choice((Codec.NONE, Codec.NONE, Codec.ZSTD, Codec.GZIP))))


def write_batches(path: Path, segments: Mapping[int, Sequence[bytes | bytearray]]) -> Path:
    """Write segments by base offset, from bytes, without indexes."""
    path.mkdir(parents=True, exist_ok=True)
    for base, batches in segments.items():
        segment_file(path, base, LOG).write_bytes(b"".join(batches))
    return path


def compacted_batch(base_offset: int, deltas: Sequence[int], last_offset_delta: int | None = None) -> bytearray:
    """Return a batch after compaction, with the records at `deltas`."""
    records = [record(base_offset + delta) for delta in deltas]
    return build_batch(
        records, base_offset=base_offset, offset_deltas=deltas, last_offset_delta=last_offset_delta, leader_epoch=0
    )


def copy_of(path: Path, target: Path) -> Path:
    """Copy the partition and its data directory's files, as a crash would leave them."""
    shutil.copytree(path.parent, target, ignore=shutil.ignore_patterns(".lock", ".kafka_cleanshutdown"))
    return target / path.name


def logs_of(path: Path) -> list[Path]:
    return sorted(path.glob("*.log"))


def damage(path: Path, position: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(content)


def tree_state(path: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return everything about the files that a read-only tool must not change."""
    return {
        str(file.relative_to(path)): (file.stat().st_mtime_ns, file.stat().st_size, file.read_bytes())
        for file in path.rglob("*")
        if file.is_file()
    }

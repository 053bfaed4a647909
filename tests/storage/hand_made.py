"""Writes files without the engine: segments with gaps, at high offsets, of old formats."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from stratalog.clock import ManualClock
from stratalog.records._records import Record
from stratalog.records.builder import build_batch
from stratalog.storage import DirectoryConfig, Log, LogConfig, LogDirectory
from stratalog.storage.names import CLEAN_SHUTDOWN, LOCK, segment_file

GOLDEN = Path(__file__).parent.parent / "golden"
START_MS = 1_700_000_000_000
ANY_TIME = {"message_timestamp_after_max_ms": 2**63 - 1}  # the clock stands still, and records have later timestamps


def timed(*timestamps: int, size: int = 8) -> list[Record]:
    """Return records with these timestamps, each with a value of about `size` bytes that contains its timestamp."""
    return [
        Record(timestamp=timestamp, key=b"key", value=b"%d" % timestamp + b"." * size, headers=[("h", None)])
        for timestamp in timestamps
    ]


def batch_of(*timestamps: int, base_offset: int = 0, size: int = 8, **fields: Any) -> bytearray:
    """Return one batch with a record for each timestamp."""
    return build_batch(timed(*(timestamps or (START_MS,)), size=size), base_offset=base_offset, **fields)


def write_segment(partition: Path, base_offset: int, *batches: bytes | bytearray) -> Path:
    """Write a .log file without indexes."""
    partition.mkdir(parents=True, exist_ok=True)
    path = segment_file(partition, base_offset, ".log")
    path.write_bytes(b"".join(batches))
    return path


def open_directory(path: Path, *, clock: ManualClock | None = None, **settings: Any) -> LogDirectory:
    config = LogConfig(**ANY_TIME | settings)
    return LogDirectory.open(path, config, clock=clock or ManualClock(START_MS), background=False)


def open_with(path: Path, directory_config: DirectoryConfig, clock: ManualClock, **settings: Any) -> LogDirectory:
    config = LogConfig(**ANY_TIME | settings)
    return LogDirectory.open(path, config, directory_config=directory_config, clock=clock, background=False)


def left_by_kill(data: Path, target: Path) -> Path:
    """Copy a data directory as kill -9 would leave it now, and return the copy."""
    shutil.copytree(data, target, ignore=shutil.ignore_patterns(LOCK))
    return target


def write_clean_marker(data: Path) -> None:
    data.mkdir(parents=True, exist_ok=True)
    (data / CLEAN_SHUTDOWN).write_text('{"version":0,"brokerEpoch":1}')


def files_of(partition: Path, suffix: str = "") -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(partition.iterdir()) if path.name.endswith(suffix)}


def offsets_of(log: Log, **bounds: int) -> list[int]:
    return [record.offset for record in log.records(**bounds)]


def flip(path: Path, position: int, bits: int = 0x40) -> None:
    """Flip bits of one byte."""
    content = bytearray(path.read_bytes())
    content[position] ^= bits
    path.write_bytes(content)

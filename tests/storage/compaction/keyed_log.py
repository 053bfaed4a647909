"""A compacted log for tests, with all records that were ever appended to it, and the records that a run must leave.

    keyed = KeyedLog(tmp_path).put("a=1", "b=1").put("a=2").roll()
    keyed.clean()
    assert keyed.pairs() == ["b=1", "a=2"]

"a=1" is a record with key a and value 1, "a" a tombstone. Each record is later than the one before it. Otherwise time
stands still, and without `background` no thread runs.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from stratalog.clock import ManualClock
from stratalog.records._framing import BatchHeader
from stratalog.records._records import Record
from stratalog.records.builder import build_batch, build_control_batch
from stratalog.records.format import ControlType
from stratalog.storage import Log, LogConfig, LogDirectory, Origin
from stratalog.storage.compaction.compactor import Cleaned
from stratalog.storage.compaction.config import CleanerConfig
from stratalog.storage.compaction.throttle import Throttle
from stratalog.storage.disk import Disk
from stratalog.storage.names import LOCK
from tests.storage.faults.racing import Unsynced
from tests.storage.hand_made import ANY_TIME, START_MS

TOPIC = "table"
DELETE_RETENTION_MS = 10_000
SETTINGS: dict[str, Any] = {
    **ANY_TIME,
    "cleanup_policy": ("compact",),
    "min_cleanable_dirty_ratio": 0.0,
    "delete_retention_ms": DELETE_RETENTION_MS,
    "index_interval_bytes": 100,
    "segment_index_bytes": 1024,
    "file_delete_delay_ms": 0,
    "producer_id_expiration_ms": 2**62,
}


class KeyedLog:
    def __init__(
        self,
        path: Path,
        *,
        disk: Disk | None = None,
        clock: ManualClock | None = None,
        cleaner: CleanerConfig | None = None,
        background: bool = False,
        **settings: Any,
    ) -> None:
        self.path = path
        self.disk = disk or Unsynced()
        self.clock = clock or ManualClock(START_MS)
        self.cleaner_config = cleaner or CleanerConfig()
        self.background = background
        self.config = LogConfig(**{**SETTINGS, **settings})
        self.history: list[Record] = []  # without markers
        self.open()

    def open(self) -> None:
        self.directory = LogDirectory.open(
            self.path,
            self.config,
            cleaner_config=self.cleaner_config,
            disk=self.disk,
            clock=self.clock,
            background=self.background,
        )
        self.log: Log = self.directory.log(TOPIC, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.directory.close()

    @property
    def log_path(self) -> Path:
        return self.path / f"{TOPIC}-0"

    # Writing

    def put(self, *pairs: str, leader_epoch: int | None = None, **fields: Any) -> Self:
        """Append one batch. `fields` go to build_batch()."""
        base = self.log.log_end_offset
        records = [record_of(pair, base + number) for number, pair in enumerate(pairs)]
        appended = self.log.append(build_batch(records, **fields), leader_epoch=leader_epoch)
        assert not appended.duplicate
        self.history += records
        return self

    def put_each(self, *pairs: str, **fields: Any) -> Self:
        """Append one batch per record."""
        for pair in pairs:
            self.put(pair, **fields)
        return self

    def end_transaction(self, kind: ControlType, producer: int, epoch: int = 0) -> Self:
        time = START_MS + self.log.log_end_offset
        self.log.append(build_control_batch(kind, producer, epoch, 1, time), origin=Origin.COORDINATOR)
        return self

    def roll(self) -> Self:
        self.log.roll()
        return self

    # Compacting

    def clean(self) -> list[Cleaned]:
        """Run the cleaner until no log is due."""
        runs: list[Cleaned] = []
        while (cleaned := self.directory.cleaner.turn()) is not None:
            runs.append(cleaned)
        assert not self.directory.cleaner.set_aside()
        return runs

    def tell_of_bytes(self, tell: Callable[[int], object]) -> None:
        """Call `tell` after every read and write of a run."""

        class Told(Throttle):
            def account(self, size: int) -> None:
                tell(size)

        self.directory.cleaner._throttle = Told(1.0, self.clock, threading.Event())

    def clean_again(self) -> list[Cleaned]:
        """Compact the clean part too: a new key makes the log dirty."""
        self.put(f"again-{self.log.log_end_offset}=x").roll()
        return self.clean()

    def reopen(self) -> Self:
        self.directory.close()
        self.open()
        return self

    def left_by_kill(self, target: Path) -> Path:
        shutil.copytree(self.path, target, ignore=shutil.ignore_patterns(LOCK))
        return target

    # Reading

    def pairs(self, log: Log | None = None) -> list[str]:
        return [pair_of(record) for record in (log or self.log).records()]

    def offsets(self) -> list[int]:
        return [record.offset for record in self.log.records()]

    def headers(self) -> list[BatchHeader]:
        return [header for segment in self.log.segments for chunk in segment.scan() for header in chunk.headers]

    def files(self, ending: str = "") -> list[str]:
        return sorted(path.name for path in self.log_path.iterdir() if path.name.endswith(ending))

    def survivors(self, *, tombstones: bool = True) -> list[Record]:
        """Return the records that stay when all segments except the active one are compacted."""
        return survivors(
            self.history, self.log.segments[-1].base_offset, self.log.log_start_offset, tombstones=tombstones
        )


def survivors(history: list[Record], cleaned_to: int, start: int, *, tombstones: bool = True) -> list[Record]:
    last = {record.key: record.offset for record in history if record.offset < cleaned_to}
    return [
        record
        for record in history
        if record.offset >= start
        and (
            record.offset >= cleaned_to
            or (last[record.key] == record.offset and (tombstones or record.value is not None))
        )
    ]


def record_of(pair: str, offset: int) -> Record:
    key, equals, value = pair.partition("=")
    return Record(
        offset=offset,
        timestamp=START_MS + offset,
        key=key.encode(),
        value=value.encode() if equals else None,
        headers=[("offset", b"%d" % offset)] if offset % 3 == 0 else (),
    )


def pair_of(record: Record) -> str:
    key = (record.key or b"").decode()
    return key if record.value is None else f"{key}={record.value.decode()}"

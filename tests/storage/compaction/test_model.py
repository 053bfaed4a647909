"""Applies random operations to a compacted log and to a list, which must agree, record by record: appends, tombstones,
deleted records, compactions, crashes, restarts. STRATALOG_HYPOTHESIS=long runs it for minutes instead of seconds.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stratalog.clock import ManualClock
from stratalog.errors import OffsetOutOfRangeError
from stratalog.records._records import Record
from stratalog.records.builder import build_batch
from stratalog.records.reader import records_of
from stratalog.storage import Log, LogConfig, LogDirectory
from stratalog.storage.compaction.compactor import Cleaned
from stratalog.storage.names import CLEANER_OFFSET_CHECKPOINT, LOCK, RECOVERY_POINT_CHECKPOINT
from tests.storage.compaction.keyed_log import DELETE_RETENTION_MS, SETTINGS
from tests.storage.faults.racing import Unsynced
from tests.storage.hand_made import START_MS

IS_LONG = os.environ.get("STRATALOG_HYPOTHESIS") == "long"
PRODUCER = 7

fractions = st.floats(0, 1)
keys = st.sampled_from([b"", b"a", b"b", b"c", b"d", b"e", b"f"])
entries = st.tuples(keys, st.sampled_from([None, 0, 1, 60]), st.integers(-1, 40))  # key, size of the value, timestamp
LOSSES = ["", "", "*index", "*.index", "*.timeindex", CLEANER_OFFSET_CHECKPOINT]


class Table:
    """The records that the log must have, and when compaction first read each tombstone."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.met: dict[int, int] = {}
        self.start = 0
        self.end = 0
        self.next_sequence = 0

    @property
    def visible(self) -> list[Record]:
        return [record for record in self.records if record.offset >= self.start]

    def compact(self, end: int, now_ms: int) -> None:
        last = {record.key: record.offset for record in self.records if record.offset < end}
        kept = []
        for record in self.records:
            if record.offset < end:
                if last[record.key] != record.offset:
                    continue
                if record.value is None and now_ms >= self.met.get(record.offset, now_ms) + DELETE_RETENTION_MS:
                    continue
                if record.value is None:
                    self.met.setdefault(record.offset, now_ms)
            kept.append(record)
        self.records = kept


class LogAndTable(RuleBasedStateMachine):
    directory: LogDirectory
    log: Log

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="stratalog-table-"))
        self.data = self.root / "0"
        self.lives = 0
        self.clock = ManualClock(START_MS)
        self.table = Table()
        self.stamp = 0

    def teardown(self) -> None:
        try:
            if hasattr(self, "directory"):
                self.full_clean()
                self.directory.close()
        finally:
            shutil.rmtree(self.root)

    @initialize(
        segment_bytes=st.sampled_from([600, 2000, 10_000]),
        interval=st.sampled_from([0, 150, 4096]),
        index_bytes=st.sampled_from([64, 120, 4096]),
    )
    def open(self, segment_bytes: int, interval: int, index_bytes: int) -> None:
        changes = {
            "segment_bytes": segment_bytes,
            "index_interval_bytes": interval,
            "segment_index_bytes": index_bytes,
        }
        self.config = LogConfig(**{**SETTINGS, **changes})
        self.reopened()

    def reopened(self) -> None:
        self.directory = LogDirectory.open(self.data, self.config, disk=Unsynced(), clock=self.clock, background=False)
        self.log = self.directory.log("table", 0)

    def offset_at(self, fraction: float) -> int:
        return self.table.start + round(fraction * (self.table.end - self.table.start))

    # Writing

    def append_records(self, shape: list[tuple[bytes, int | None, int]], **fields: int) -> None:
        self.stamp += 1
        table = self.table
        records = [
            Record(
                offset=table.end + number,
                timestamp=-1 if step < 0 else START_MS + step * 100,
                key=key,
                value=None if size is None else b"%d/%d" % (self.stamp, number) + bytes(size),
            )
            for number, (key, size, step) in enumerate(shape)
        ]
        appended = self.log.append(build_batch(records, **fields))  # type: ignore[arg-type]
        assert (appended.base_offset, appended.duplicate) == (table.end, False)
        table.records += records
        table.end += len(records)

    @rule(shape=st.lists(entries, min_size=1, max_size=6), codec=st.integers(0, 4))
    def append(self, shape: list[tuple[bytes, int | None, int]], codec: int) -> None:
        self.append_records(shape, codec=codec)

    @rule(shape=st.lists(entries, min_size=1, max_size=3), codec=st.integers(0, 4))
    def append_idempotent(self, shape: list[tuple[bytes, int | None, int]], codec: int) -> None:
        """Append with the next sequence, even if the earlier records were removed."""
        sequence = self.table.next_sequence
        self.append_records(shape, codec=codec, producer_id=PRODUCER, producer_epoch=0, base_sequence=sequence)
        self.table.next_sequence += len(shape)

    @rule()
    def roll(self) -> None:
        self.log.roll()

    # Removing records

    @rule(passed=st.sampled_from([0, 1, DELETE_RETENTION_MS // 2, DELETE_RETENTION_MS]))
    def compact(self, passed: int) -> None:
        self.clock.advance(passed)
        self.run_cleaner()

    def run_cleaner(self) -> list[Cleaned]:
        runs = []
        while (cleaned := self.directory.cleaner.turn()) is not None:
            self.table.compact(cleaned.first_dirty_offset, self.clock.now_ms())
            runs.append(cleaned)
        assert self.directory.cleaner.set_aside() == {}
        return runs

    @rule()
    def full_clean(self) -> None:
        """Compact everything. Only the last record of each key is visible afterwards."""
        self.append_records([(b"new", 1, 0)])
        self.log.roll()
        assert len(self.run_cleaner()) == 1
        records = list(self.log.records())
        assert len({record.key for record in records}) == len(records)
        assert records == self.table.visible

    @rule(fraction=fractions)
    def delete_records(self, fraction: float) -> None:
        self.table.start = self.offset_at(fraction * 0.4)
        self.log.advance_start(self.table.start)

    @rule()
    def delete_files(self) -> None:
        self.log.apply_retention()
        self.directory._home.deletions.run(everything=True)

    # Opening again

    @rule(lost=st.sampled_from(LOSSES))
    def reopen(self, lost: str) -> None:
        self.directory.close()
        self.lose(lost)
        self.reopened()
        assert self.log.recovery.problems == [] or lost

    @rule(lost=st.sampled_from([*LOSSES, RECOVERY_POINT_CHECKPOINT]), torn=st.booleans())
    def crash(self, lost: str, torn: bool) -> None:
        self.lives += 1
        copy = self.root / str(self.lives)
        shutil.copytree(self.data, copy, ignore=shutil.ignore_patterns(LOCK))
        self.directory.close()
        shutil.rmtree(self.data)
        self.data = copy
        self.lose(lost)
        if torn:
            with max((copy / "table-0").glob("*.log")).open("ab") as file:
                file.write(b"\xff" * 70)
        self.reopened()
        assert (self.log.recovery.cut is not None) == torn

    @precondition(lambda self: self.table.end)
    @rule()
    def crash_in_a_run(self) -> None:
        """Leave the files of a run that was killed before its swap."""
        self.log.roll()
        for base in self.log._segments.bases[:2]:
            for suffix in ("log.cleaned", "index.swap", "timeindex.cleaned"):
                (self.data / "table-0" / f"{base:020}.{suffix}").write_bytes(b"half of something")
        self.crash("", False)

    def lose(self, pattern: str) -> None:
        if pattern:
            for path in [*(self.data / "table-0").glob(pattern), *self.data.glob(pattern)]:
                path.unlink()

    # Reading

    @rule(fraction=fractions, max_bytes=st.integers(0, 3000))
    def read(self, fraction: float, max_bytes: int) -> None:
        offset = self.offset_at(fraction)
        expected = [record for record in self.table.records if record.offset >= offset]
        assert list(self.log.records(offset)) == expected
        batches = list(self.log.read(offset, max_bytes).batches())
        records = [record for batch in batches for record in records_of(batch) if record.offset >= offset]
        assert records == expected[: len(records)]
        assert batches or not expected
        assert all(batch.header.last_offset >= offset and batch.crc_matches() for batch in batches)

    @rule(step=st.integers(-1, 41))
    def find_time(self, step: int) -> None:
        timestamp = START_MS + step * 100
        first = next((record for record in self.table.visible if record.timestamp >= timestamp), None)
        match = self.log.find_timestamp(timestamp)
        assert match == (None if first is None else (first.offset, first.timestamp))

    @invariant()
    def bounds_agree(self) -> None:
        if hasattr(self, "log"):
            assert (self.log.log_start_offset, self.log.log_end_offset) == (self.table.start, self.table.end)
            assert list(self.log.records()) == self.table.visible
            for outside in (self.table.start - 1, self.table.end + 1):
                with pytest.raises(OffsetOutOfRangeError):
                    self.log.read(outside, 100)


class TestLogAndTable(LogAndTable.TestCase):  # type: ignore[misc,valid-type]
    settings = settings(max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.slow
@pytest.mark.timeout(3600)
class TestLogAndTableAtLength(LogAndTable.TestCase):  # type: ignore[misc,valid-type]
    settings = settings(
        max_examples=1000 if IS_LONG else 100,
        stateful_step_count=60 if IS_LONG else 30,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )

"""Applies random operations to a log and to a list, which must agree: appends, rolls, truncations, retention, crashes.

STRATALOG_HYPOTHESIS=long runs it for minutes instead of seconds.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stratalog.clock import ManualClock
from stratalog.errors import OffsetOutOfRangeError, OutOfOrderSequenceError
from stratalog.records._records import Record
from stratalog.records.builder import build_batch
from stratalog.records.reader import records_of
from stratalog.storage import Log, LogConfig, LogDirectory
from stratalog.storage._mapping import Mapping
from stratalog.storage.disk import Disk
from stratalog.storage.names import CLEAN_SHUTDOWN, LOCK, RECOVERY_POINT_CHECKPOINT
from tests.storage.hand_made import START_MS

IS_LONG = os.environ.get("STRATALOG_HYPOTHESIS") == "long"
RETENTION_MS = 2000
PRODUCER = 7

fractions = st.floats(0, 1)
times = st.integers(-1, 60)  # in steps of 100 ms: often equal, often out of order
shapes = st.tuples(st.lists(times, min_size=1, max_size=4), st.integers(0, 4), st.integers(0, 300))


class NoSync(Disk):
    """Syncs nothing: these tests have no power cuts, and syncing would take most of the time."""

    def sync(self, fd: int) -> None:
        pass

    def sync_mapping(self, mapping: Mapping, path: Path) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        pass


class Batch(NamedTuple):
    records: list[Record]
    sequence: int  # of the first record; -1 if the batch is not of the idempotent producer

    @property
    def base(self) -> int:
        return self.records[0].offset

    @property
    def end(self) -> int:
        return self.records[-1].offset + 1


@dataclass
class LogModel:
    """The content of a log as a list: the batches that were appended and not truncated, and the log start offset."""

    batches: list[Batch]
    start: int = 0

    @property
    def end(self) -> int:
        return self.batches[-1].end if self.batches else 0

    @property
    def records(self) -> list[Record]:
        return [record for batch in self.batches for record in batch.records if record.offset >= self.start]

    @property
    def next_sequence(self) -> int | None:
        last = next((batch for batch in reversed(self.batches) if batch.sequence >= 0), None)
        return None if last is None else last.sequence + len(last.records)

    def truncate(self, offset: int) -> int:
        while self.batches and self.batches[-1].end > offset:
            self.batches.pop()
        self.start = min(self.start, self.end)
        return self.end


class LogAndList(RuleBasedStateMachine):
    directory: LogDirectory
    log: Log

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="stratalog-model-"))
        self.data = self.root / "0"
        self.lives = 0
        self.clock = ManualClock(START_MS)
        self.model = LogModel([])
        self.stamp = 0

    def teardown(self) -> None:
        try:
            if hasattr(self, "directory"):
                assert list(self.log.records()) == self.model.records
                self.directory.close()
        finally:
            shutil.rmtree(self.root)

    @initialize(
        segment_bytes=st.sampled_from([700, 2000, 10_000]),
        interval=st.sampled_from([0, 150, 4096]),
        index_bytes=st.sampled_from([64, 120, 4096]),
    )
    def open(self, segment_bytes: int, interval: int, index_bytes: int) -> None:
        self.config = LogConfig(
            segment_bytes=segment_bytes,
            index_interval_bytes=interval,
            segment_index_bytes=index_bytes,
            segment_ms=3000,
            retention_ms=RETENTION_MS,
            file_delete_delay_ms=100,
        )
        self.reopened()

    def reopened(self) -> None:
        self.directory = LogDirectory.open(self.data, self.config, disk=NoSync(), clock=self.clock, background=False)
        self.log = self.directory.log("model", 0)

    def records_for(self, steps: list[int], size: int) -> list[Record]:
        """Return records for the log end that differ from all earlier and later ones."""
        self.stamp += 1
        return [
            Record(
                offset=self.model.end + number,
                timestamp=-1 if step < 0 else START_MS + step * 100,
                key=None if number % 3 else b"%d" % self.stamp,
                value=b"%d/%d" % (self.stamp, number) + bytes(size),
            )
            for number, step in enumerate(steps)
        ]

    def offset_at(self, fraction: float) -> int:
        return self.model.start + round(fraction * (self.model.end - self.model.start))

    # Writing

    @rule(batches=st.lists(shapes, min_size=1, max_size=3))
    def append(self, batches: list[tuple[list[int], int, int]]) -> None:
        data, base = bytearray(), self.model.end
        for steps, codec, size in batches:
            records = self.records_for(steps, size if len(batches) * len(steps) * size < 500 else 0)
            data += build_batch(records, codec=codec)
            self.model.batches.append(Batch(records, -1))
        appended = self.log.append(data)
        assert (appended.base_offset, appended.last_offset) == (base, self.model.end - 1)

    @rule(steps=st.lists(times, min_size=1, max_size=3), codec=st.integers(0, 4))
    def append_idempotent(self, steps: list[int], codec: int) -> None:
        sequence = self.model.next_sequence or 0
        records = self.records_for(steps, 20)
        assert not self.log.append(self.of_producer(records, sequence, codec)).duplicate
        self.model.batches.append(Batch(records, sequence))

    @precondition(lambda self: self.model.next_sequence is not None)
    @rule(steps=st.lists(times, min_size=1, max_size=2))
    def send_again_or_leave_a_gap(self, steps: list[int]) -> None:
        last = next(batch for batch in reversed(self.model.batches) if batch.sequence >= 0)
        again = self.log.append(self.of_producer(last.records, last.sequence))
        assert (again.base_offset, again.last_offset, again.duplicate) == (last.base, last.end - 1, True)
        with pytest.raises(OutOfOrderSequenceError):
            self.log.append(self.of_producer(self.records_for(steps, 0), last.sequence + len(last.records) + 1))

    def of_producer(self, records: list[Record], sequence: int, codec: int = 0) -> bytearray:
        return build_batch(records, codec=codec, producer_id=PRODUCER, producer_epoch=0, base_sequence=sequence)

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule()
    def flush(self) -> None:
        self.log.flush()
        assert self.log.recovery_point == self.model.end
        self.log.save_recovery_point()

    # Removing records

    @rule(fraction=fractions)
    def truncate(self, fraction: float) -> None:
        offset = self.offset_at(fraction)
        assert self.log.truncate(offset) == self.model.truncate(offset)

    @rule(fraction=fractions)
    def advance_start(self, fraction: float) -> None:
        self.model.start = self.offset_at(fraction * 0.5)
        self.log.advance_start(self.model.start)

    @rule(passed=st.integers(0, 40))
    def apply_retention(self, passed: int) -> None:
        self.clock.advance(passed * 100)
        before = self.model.records
        self.directory.turn()
        self.log.apply_retention()
        self.model.start = self.log.log_start_offset
        oldest_kept = self.clock.now_ms() - RETENTION_MS
        for record in before[: len(before) - len(self.model.records)]:
            # Records without a timestamp are deleted with their segment.
            assert record.timestamp < oldest_kept

    # Opening again

    @rule(lost=st.sampled_from(["", "", "*index", "*.index", "*.timeindex", "leader-epoch-checkpoint"]))
    def reopen(self, lost: str) -> None:
        self.directory.close()
        self.lose(lost)
        self.reopened()
        assert self.log.recovery.clean
        assert self.log.recovery.bytes_scanned == 0 or lost

    @rule(
        lost=st.sampled_from(["", "", "*index", "*.index", "*.timeindex", "*.snapshot", RECOVERY_POINT_CHECKPOINT]),
        tail=st.sampled_from([b"", b"", b"\0", bytes(100), b"\xff" * 70, "half"]),
    )
    def crash(self, lost: str, tail: Any) -> None:
        """After kill -9, all appended batches are there. The bytes of a torn write after them are removed."""
        self.lives += 1
        copy = self.root / str(self.lives)
        shutil.copytree(self.data, copy, ignore=shutil.ignore_patterns(LOCK))
        self.directory.close()
        shutil.rmtree(self.data)
        self.data = copy
        assert not (copy / CLEAN_SHUTDOWN).exists()
        if lost == "*.snapshot" and self.model.start:
            lost = ""  # deleted batches can't be replayed
        self.lose(lost)
        if tail == "half":
            tail = build_batch(self.records_for([1, 2], 10), base_offset=self.model.end)[:-3]
        with max((copy / "model-0").glob("*.log")).open("ab") as file:
            file.write(tail)
        self.reopened()
        assert (self.log.recovery.cut is not None) == bool(tail)

    def lose(self, pattern: str) -> None:
        if pattern:
            for path in [*(self.data / "model-0").glob(pattern), *self.data.glob(pattern)]:
                path.unlink()

    # Reading

    @rule(fraction=fractions, max_bytes=st.integers(0, 3000))
    def read(self, fraction: float, max_bytes: int) -> None:
        offset = self.offset_at(fraction)
        read = self.log.read(offset, max_bytes)
        expected = [batch for batch in self.model.batches if batch.end > offset]
        records = [records_of(batch) for batch in read.batches()]
        assert records == [batch.records for batch in expected[: len(records)]]
        assert bool(records) == bool(expected)

    @rule(fraction=fractions, bound=fractions)
    def read_below(self, fraction: float, bound: float) -> None:
        offset, high_watermark = self.offset_at(fraction), self.offset_at(bound)
        read = self.log.read(offset, 10**6, max_offset=high_watermark)
        assert all(batch.header.next_offset <= high_watermark for batch in read.batches())
        expected = [record for record in self.model.records if offset <= record.offset < high_watermark]
        assert list(self.log.records(offset, high_watermark)) == expected

    @rule(step=times)
    def find_time(self, step: int) -> None:
        timestamp = START_MS + step * 100
        match = self.log.find_timestamp(timestamp)
        first = next((record for record in self.model.records if record.timestamp >= timestamp), None)
        assert match == (None if first is None else (first.offset, first.timestamp))

    @rule()
    def read_everything(self) -> None:
        assert list(self.log.records()) == self.model.records

    @invariant()
    def bounds_agree(self) -> None:
        if hasattr(self, "log"):
            assert (self.log.log_start_offset, self.log.log_end_offset) == (self.model.start, self.model.end)
            for outside in (self.model.start - 1, self.model.end + 1):
                with pytest.raises(OffsetOutOfRangeError):
                    self.log.read(outside, 100)


class TestLogAndList(LogAndList.TestCase):  # type: ignore[misc,valid-type]
    settings = settings(max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.slow
@pytest.mark.timeout(3600)
class TestLogAndListAtLength(LogAndList.TestCase):  # type: ignore[misc,valid-type]
    settings = settings(
        max_examples=1500 if IS_LONG else 250,
        stateful_step_count=60 if IS_LONG else 30,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )

"""One writer and many readers of the same log, each of which knows what it may read.

The writer records its truncations in a `History` before it starts them. So a reader knows which records were right at
some moment during its read: exactly one at each offset, unless a truncation ran meanwhile. Errors are checked too: an
offset may be out of range only if retention or a truncation removed it, and other errors need a truncation, which makes
earlier slices invalid.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import TypeVar

from stratalog.errors import CorruptBatchError, OffsetOutOfRangeError, StorageError
from stratalog.records._records import Record
from stratalog.records.builder import build_batch
from stratalog.records.format import Codec
from stratalog.records.reader import records_of
from stratalog.storage import Log
from stratalog.storage.readable_log import Read
from tests.storage.log_builder import START_MS, STEP_MS, record_at, records_from

T = TypeVar("T")


class History:
    """The truncations so far. Generation n of the content starts with the nth truncation, and generation 0 with the
    log."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.cuts = [0]  # the offset at which each generation starts
        self.done = 0  # truncations that are finished; a reader takes it before a read
        self.begun = 0  # truncations that were started; a reader takes it after a read

    def record(self, offset: int, truncations: int) -> Record:
        """Return the record at `offset` after this many truncations."""
        generation = next(at for at in range(truncations, -1, -1) if self.cuts[at] <= offset)
        return record_at(offset, seed=self.seed, generation=generation)

    def check(self, records: Iterable[Record], since: int) -> None:
        """Check that each record was in the log at some moment after `since` truncations."""
        begun = self.begun
        for record in records:
            right = any(record == self.record(record.offset, count) for count in range(since, begun + 1))
            assert right, f"{record} was not in the log since truncation {since}, to {begun}: {self.cuts[since:]}"


class Writer:
    """Appends most of the time. Keeps its batches, so that it knows where a truncation ends the log."""

    def __init__(self, log: Log, history: History) -> None:
        self.log = log
        self.history = history
        self.rng = random.Random(f"writer {history.seed}")
        self.bases: deque[int] = deque(maxlen=200)
        self.end = 0

    def step(self) -> None:
        drawn = self.rng.random()
        if drawn < 0.03 and self.bases:
            self._truncate()
        elif drawn < 0.05:
            self.log.roll()
        elif drawn < 0.08:
            self.log.apply_retention()
        else:
            self._append()

    def _append(self) -> None:
        count = self.rng.choice([1, 2, 5, 12])
        records = records_from(self.end, count, seed=self.history.seed, generation=self.history.done)
        appended = self.log.append(build_batch(records, codec=self.rng.choice([Codec.NONE, Codec.NONE, Codec.LZ4])))
        assert (appended.base_offset, appended.last_offset) == (self.end, self.end + count - 1)
        self.bases.append(self.end)
        self.end += count

    def _truncate(self) -> None:
        """Truncate a few batches, or sometimes some segments. Later records at these offsets differ."""
        start = self.log.log_start_offset
        for _ in range(self.rng.choice([1, 1, 3, 3, 20, 150])):
            if self.bases and self.bases[-1] >= start:
                self.end = self.bases.pop()
        self.history.cuts.append(self.end)
        self.history.begun += 1
        assert self.log.truncate(self.end) == self.end
        self.history.done += 1


class Reader:
    """Reads repeatedly. `answers` counts the records and timestamps that were right."""

    def __init__(self, log: Log, history: History, name: str) -> None:
        self.log = log
        self.history = history
        self.rng = random.Random(f"{name} {history.seed}")
        self.answers = 0
        self._offset = 0
        self._since = 0  # truncations that were finished when the offset was known to exist

    def in_order(self) -> None:
        """Read on from the end of the last read."""
        before = self.history.done
        read = self._ask(lambda: self.log.read(self._offset, self.rng.choice([0, 500, 100_000])))
        if read is None:
            self._choose()
            return
        self._since = before  # the offset exists: no earlier truncation has removed it
        records = self._read(read)
        if records:
            assert records[0].offset <= self._offset, f"a read at {self._offset} starts with {records[0].offset}"
            self._offset = records[-1].offset + 1

    def at_random(self) -> None:
        self._choose()
        records = self._ask(lambda: list(self.log.records(self._offset, self._offset + 20)), slices=True)
        if records:
            self._check(records)
            assert records[0].offset == self._offset, f"a read at {self._offset} starts with {records[0].offset}"

    def by_time(self) -> None:
        """Look up the timestamp of an existing offset. The result is this offset, or the log start offset if it is
        later by now."""
        self._choose()
        start, end = self.log.log_start_offset, self.log.log_end_offset
        timestamp = START_MS + self._offset * STEP_MS - self.rng.randrange(STEP_MS)
        results = self._ask(lambda: (self.log.find_timestamp(timestamp),))
        if results is None or self.history.begun > self._since:
            return
        [answer] = results
        if answer is None:
            assert self._offset >= end, f"nothing has the time of offset {self._offset}; the log has {start} to {end}"
        else:
            latest = max(self._offset, self.log.log_start_offset)
            assert self._offset <= answer.offset <= latest, f"time of offset {self._offset}: {answer}, log from {start}"
        self.answers += 1

    def from_deleted(self) -> None:
        """Read a slice that was taken before its segment was deleted."""
        self._offset, self._since = self.log.log_start_offset, self.history.done
        read = self._ask(lambda: self.log.read(self._offset, 100_000))
        if read is None or not read.slice.length:
            return
        until = time.monotonic() + 0.3
        while read.slice.file.path.exists():
            if time.monotonic() > until:
                return
            time.sleep(0.002)
        self._read(read)

    def _choose(self) -> None:
        self._since = self.history.done
        start, end = self.log.log_start_offset, self.log.log_end_offset
        self._offset = self.rng.randint(min(start, end), end)

    def _read(self, read: Read) -> list[Record] | None:
        records = self._ask(lambda: _records(read), slices=True)
        if records is not None:
            self._check(records)
        return records

    def _check(self, records: list[Record]) -> None:
        self.history.check(records, self._since)
        offsets = [record.offset for record in records]
        assert all(after == before_it + 1 for before_it, after in pairwise(offsets)), (
            f"offsets of one answer: {offsets}"
        )
        self.answers += len(records)

    def _ask(self, question: Callable[[], T], *, slices: bool = False) -> T | None:
        """Return the result, or None after an error that is allowed. If `slices` are read, a truncation may change
        their bytes."""
        try:
            return question()
        except OffsetOutOfRangeError:
            if self._offset >= self.log.log_start_offset and self.history.begun == self._since:
                raise
        except StorageError:
            if self.history.begun == self._since:
                raise
        except CorruptBatchError:
            if not slices or self.history.begun == self._since:
                raise
        return None


def _records(read: Read) -> list[Record]:
    records = []
    for batch in read.batches():
        batch.check_crc()
        records += records_of(batch)
    return records

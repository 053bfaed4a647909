"""One writer and many readers on the same log, each of which knows what it may see.

The writer says what it is about to do in a `History`, so that a reader can tell which records were right at some
moment between its question and the answer: exactly one at each offset, unless a truncation ran meanwhile. Errors are
held to the same: an offset is out of range where retention or a truncation took it, and other errors need a truncation,
which voids the slices taken before it.
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
    """The truncations so far. Generation n of the content begins with the nth of them; the first is nobody's."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.cuts = [0]  # the offset that each generation began at
        self.done = 0  # truncations that are over: read it before a question
        self.begun = 0  # read it after the answer

    def record(self, offset: int, truncations: int) -> Record:
        """The record at `offset` when there had been so many truncations."""
        generation = next(at for at in range(truncations, -1, -1) if self.cuts[at] <= offset)
        return record_at(offset, seed=self.seed, generation=generation)

    def check(self, records: Iterable[Record], since: int) -> None:
        """Each was in the log at some moment since `since` truncations were done."""
        begun = self.begun
        for record in records:
            right = any(record == self.record(record.offset, count) for count in range(since, begun + 1))
            assert right, f"{record} was not in the log since truncation {since}, to {begun}: {self.cuts[since:]}"


class Writer:
    """Appends, mostly. Keeps its batches, so that it knows where a truncation will cut."""

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
        """Mostly a few batches, sometimes some segments. Other records come in the place of these."""
        start = self.log.log_start_offset
        for _ in range(self.rng.choice([1, 1, 3, 3, 20, 150])):
            if self.bases and self.bases[-1] >= start:
                self.end = self.bases.pop()
        self.history.cuts.append(self.end)
        self.history.begun += 1
        assert self.log.truncate(self.end) == self.end
        self.history.done += 1


class Reader:
    """Asks again and again; `answers` counts the records and times that were right."""

    def __init__(self, log: Log, history: History, name: str) -> None:
        self.log = log
        self.history = history
        self.rng = random.Random(f"{name} {history.seed}")
        self.answers = 0
        self._offset = 0
        self._since = 0  # truncations that were done when the offset was found to exist

    def in_order(self) -> None:
        """On from where the last answer ended."""
        before = self.history.done
        read = self._ask(lambda: self.log.read(self._offset, self.rng.choice([0, 500, 100_000])))
        if read is None:
            self._choose()
            return
        self._since = before  # the offset exists: it did not go with a truncation before that
        records = self._read(read)
        if records:
            assert records[0].offset <= self._offset, f"asked for {self._offset}, got {records[0].offset} at first"
            self._offset = records[-1].offset + 1

    def at_random(self) -> None:
        self._choose()
        records = self._ask(lambda: list(self.log.records(self._offset, self._offset + 20)), slices=True)
        if records:
            self._check(records)
            assert records[0].offset == self._offset, f"asked for {self._offset}, got {records[0].offset} at first"

    def by_time(self) -> None:
        """The time of an offset that exists: that one is found, or the log's start if that lies behind it by now."""
        self._choose()
        start, end = self.log.log_start_offset, self.log.log_end_offset
        asked = START_MS + self._offset * STEP_MS - self.rng.randrange(STEP_MS)
        found = self._ask(lambda: (self.log.find_timestamp(asked),))
        if found is None or self.history.begun > self._since:
            return
        [answer] = found
        if answer is None:
            assert self._offset >= end, f"nothing has the time of offset {self._offset}; the log has {start} to {end}"
        else:
            latest = max(self._offset, self.log.log_start_offset)
            assert self._offset <= answer.offset <= latest, f"time of offset {self._offset}: {answer}, log from {start}"
        self.answers += 1

    def from_deleted(self) -> None:
        """A slice that was taken before its segment was deleted."""
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
        assert all(after == one + 1 for one, after in pairwise(offsets)), f"offsets of one answer: {offsets}"
        self.answers += len(records)

    def _ask(self, question: Callable[[], T], *, slices: bool = False) -> T | None:
        """The answer, or None for an error that is allowed. Where `slices` are read, a truncation may change what is
        under them."""
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

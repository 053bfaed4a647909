"""Reading a log: by offset, by time, as records. Takes no lock and changes nothing; log.py adds writing.

A reader sees an immutable list of segments, which the writer replaces as a whole, and an end offset that is published
after the bytes before it are written. If a segment is deleted or truncated during a read, the read is repeated:
truncations are counted before they change a file, and a result counts only if the number is still the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import suppress
from enum import Enum
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple

from stratalog.errors import CorruptBatchError, OffsetOutOfRangeError, StorageError, StratalogError
from stratalog.records._framing import BatchHeader
from stratalog.records._records import Record
from stratalog.records.batch import Batch
from stratalog.records.reader import records_of
from stratalog.settings import LONG_MAX
from stratalog.storage.appending import WouldWaitError
from stratalog.storage.file_slice import FileSlice
from stratalog.storage.segment import Segment, TimestampedOffset
from stratalog.storage.transaction_index import AbortedTransaction

_RECORDS_READ = 1024 * 1024
_LAST_OFFSET = attrgetter("last_offset")


class Read(NamedTuple):
    """The result of read(): a range of a file, and its position in the log. Without new batches, the slice is empty."""

    slice: FileSlice
    base_offset: int
    log_start_offset: int
    log_end_offset: int

    def batches(self) -> Iterator[Batch]:
        return self.slice.batches()


class SegmentList(NamedTuple):
    """The segments, and their base offsets. Replaced as a whole, so that a reader always sees one consistent list."""

    bases: list[int]
    all: list[Segment]


class Condition(Enum):
    """The condition of a log. HALF_CHANGED: after an interrupt or a fault, or during a truncation, the state in memory
    may differ from the files."""

    OPEN = "open"
    HALF_CHANGED = "half changed"
    CLOSED = "closed"


OPEN: Final = Condition.OPEN  # a global costs less to look up than an enum's member
HALF_CHANGED: Final = Condition.HALF_CHANGED
CLOSED: Final = Condition.CLOSED


class ReadableLog(ABC):
    """A log as a reader sees it."""

    path: Path
    log_start_offset: int
    _segments: SegmentList
    _end_offset: int
    _condition: Condition
    _generation: int  # counts truncations and loads
    _warm_from: int  # from this offset on, all batches are in the page cache: they were written a short time ago

    @abstractmethod
    def _check_open(self) -> None:
        """Raise if the log is closed. If it is half changed, load it again, or wait for the end of the truncation."""

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record."""
        return self._end_offset

    @property
    def segments(self) -> list[Segment]:
        return list(self._segments.all)

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self._segments.all)

    def read(self, offset: int, max_bytes: int, *, max_offset: int | None = None, at_least_one: bool = True) -> Read:
        """Return the batches from the one with `offset` on, as a range of a file.

        The range has at most `max_bytes`, so the last batch may be cut off. The first batch is complete whatever its
        size, or left out if `at_least_one` is false. The range ends at the end of a segment, and before `max_offset`,
        such as a high watermark. All checksums are verified, except those of batches that this process has written.
        """
        if max_bytes < 0:
            raise ValueError(f"max_bytes is {max_bytes}; it must not be negative")
        while True:
            generation = self._generation
            if self._condition is not OPEN:
                self._check_open()
            # In this order: the list has all batches before this end, and the start moves before the list loses the
            # segments before it.
            end, segments, start = self._end_offset, self._segments, self.log_start_offset
            if not start <= offset <= end:
                raise OffsetOutOfRangeError(f"offset {offset} is outside the log, which has {start} to {end}")
            readable = end if max_offset is None or max_offset > end else max_offset
            try:
                location = _find(segments, offset, readable, generation)
                if location is None:
                    read = Read(FileSlice(segments.all[-1].file, 0, 0), offset, start, end)
                else:
                    read = Read(_slice(*location, max_bytes, at_least_one), location[1].base_offset, start, end)
            except (OSError, CorruptBatchError) as error:
                self._raise_if_current(error, segments, generation)
            else:
                if generation == self._generation:
                    return read

    def read_at_once(
        self, offset: int, max_bytes: int, *, max_offset: int | None = None, at_least_one: bool = True
    ) -> Read:
        """read() for a thread that must not wait for a disk. Raises WouldWaitError if it would have to, or might: then
        another thread calls warm_up()."""
        if offset < self._warm_from or self._condition is not OPEN:
            self._check_memory(offset, max_bytes, max_offset)
        return self.read(offset, max_bytes, max_offset=max_offset, at_least_one=at_least_one)

    def _check_memory(self, offset: int, max_bytes: int, max_offset: int | None) -> None:
        if self._condition is CLOSED or offset < self.log_start_offset:
            return  # read() raises
        if max_offset is not None and offset >= max_offset and self._condition is OPEN:
            return  # there is nothing to read
        segments = self._segments
        slot = bisect_right(segments.bases, offset) - 1
        if self._condition is HALF_CHANGED or not segments.all[slot].is_in_memory(offset, max_bytes):
            raise WouldWaitError(f"{self.path}: the batches from offset {offset} on may have to be read from the disk")

    def warm_up(self, offset: int, max_bytes: int) -> int:
        """Read what read() would return into the page cache, verify its checksums, and have the kernel begin to read
        what follows. Waits for the disk. Return the number of bytes; an error is left to the read()."""
        with suppress(OSError, StratalogError):
            batches = self.read(offset, max_bytes).slice
            if batches.length:
                self.aborted_transactions(offset, offset + 1)  # reads the transaction index, which is then remembered
                batches.read_ahead()
            return batches.length
        return 0

    def records(self, start: int | None = None, end: int | None = None) -> Iterator[Record]:
        """Yield the records from `start` to before `end`, by default all that are in the log now, without control
        records."""
        offset = self.log_start_offset if start is None else start
        if offset > self._end_offset:
            raise OffsetOutOfRangeError(f"offset {offset} is past the log end offset, {self._end_offset}")
        end = self._end_offset if end is None else min(end, self._end_offset)
        while offset < end:
            generation = self._generation
            read = self.read(offset, _RECORDS_READ, max_offset=end)
            if not read.slice.length:
                read = self.read(offset, 0)  # the batch spans `end`
                if not read.slice.length:
                    return
            try:
                batches = list(read.batches())
                for batch in batches:
                    batch.check_crc()
            except StratalogError:
                if generation == self._generation:
                    raise
            if generation != self._generation:
                continue  # the slice may have been cut, and written over
            for batch in batches:
                if not batch.header.is_control:
                    yield from (record for record in records_of(batch) if offset <= record.offset < end)
            offset = batches[-1].header.next_offset

    def find_timestamp(self, timestamp: int, max_offset: int | None = None) -> TimestampedOffset | None:
        """Return the first record not older than `timestamp` (milliseconds since 1970); None if all are older, or if it
        is not before `max_offset`, such as a high watermark."""
        if not isinstance(timestamp, int):
            raise TypeError(f"timestamp is {timestamp!r}; it must be milliseconds, like int(when.timestamp() * 1000)")
        if timestamp >= 2**63:
            return None
        timestamp = max(timestamp, -1)  # none is older
        while True:
            generation = self._generation
            self._check_open()
            segments = self._segments
            try:
                first = _find_timestamp(segments, timestamp, self.log_start_offset)
            except (OSError, CorruptBatchError) as error:
                self._raise_if_current(error, segments, generation)
            else:
                if generation == self._generation:
                    is_beyond = first is not None and max_offset is not None and first.offset >= max_offset
                    return None if is_beyond else first

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp of any record; -1 if no record has one."""
        return self.max_timestamp_before(LONG_MAX)

    def max_timestamp_before(self, max_offset: int) -> int:
        """Return the largest timestamp of the batches that end before `max_offset`, such as a high watermark; -1 if no
        record has one."""
        while True:
            segments, generation = self._segments, self._generation
            try:
                largest = max(
                    (_max_timestamp(segment, max_offset) for segment in segments.all if segment.size), default=-1
                )
            except (OSError, CorruptBatchError) as error:
                self._raise_if_current(error, segments, generation)
            else:
                if generation == self._generation:
                    return largest

    def aborted_transactions(self, start: int, end: int) -> list[AbortedTransaction]:
        """Return the aborted transactions that have records between two offsets, for a reader that leaves them out."""
        while True:
            segments = self._segments
            aborted = _aborted_transactions(segments, start, end)
            if segments is self._segments:  # else an index may have been deleted, and read as an empty one
                return aborted

    def aborted_in(self, read: Read, start: int, end: int) -> list[AbortedTransaction]:
        """Return the aborted transactions that have records in `read`, from `start` to before `end`, and perhaps some
        that follow."""
        segments = self._segments
        segment = segments.all[max(bisect_right(segments.bases, read.base_offset) - 1, 0)]
        if segment.file is read.slice.file:
            end = min(end, segment.offset_behind(read.slice.position + read.slice.length))
        return self.aborted_transactions(start, end)

    def _raise_if_current(self, error: OSError | CorruptBatchError, segments: SegmentList, generation: int) -> None:
        """Raise the error, unless a segment was deleted or truncated during the read: then the caller reads again."""
        if segments is self._segments and generation == self._generation:
            if isinstance(error, CorruptBatchError):
                raise error
            raise StorageError(f"{self.path}: can't read the log: {error}") from error


def _find(segments: SegmentList, offset: int, end: int, generation: int) -> tuple[Segment, BatchHeader, int] | None:
    """Return the segment and batch with `offset`, or the next batch if it is in a gap, and where to stop."""
    if offset >= end:
        return None
    slot = max(bisect_right(segments.bases, offset) - 1, 0)
    while slot < len(segments.all):
        segment = segments.all[slot]
        header = segment.locate(offset)
        if header is not None:
            if header.base_offset >= end:
                return None
            stop = segment.size
            if end < segment.limit:
                stop = min(stop, segment.position_of(end, generation))
            return segment, header, stop
        slot += 1
    return None


def _max_timestamp(segment: Segment, max_offset: int) -> int:
    return segment.max_timestamp if segment.limit <= max_offset else segment.max_timestamp_before(max_offset)


def _find_timestamp(segments: SegmentList, timestamp: int, start_offset: int) -> TimestampedOffset | None:
    for segment in segments.all:
        if segment.size and segment.max_timestamp >= timestamp:
            first = segment.find_timestamp(timestamp, start_offset)
            if first is not None:
                return first
    return None


def _aborted_transactions(segments: SegmentList, start: int, end: int) -> list[AbortedTransaction]:
    transactions = []
    for segment in segments.all[max(bisect_right(segments.bases, start) - 1, 0) :]:
        entries = segment.transaction_index.entries()
        # In the order of their markers, which are their last offsets.
        for aborted in islice(entries, bisect_left(entries, start, key=_LAST_OFFSET), None):
            if aborted.first_offset < end:
                transactions.append(aborted)
            if aborted.last_stable_offset >= end:
                return transactions
    return transactions


def _slice(segment: Segment, header: BatchHeader, stop: int, max_bytes: int, at_least_one: bool) -> FileSlice:
    position = header.position
    length = max_bytes
    if length < header.size:
        length = header.size if at_least_one else 0
    if length > stop - position:
        length = max(stop - position, 0)
    try:
        segment.ensure_checked(position, position + length)
    except CorruptBatchError:
        length = segment.sound_from(position) - position
        if length <= 0:
            raise  # batches before the damage are served: a reader gets as far as possible
    return FileSlice(segment.file, position, length)

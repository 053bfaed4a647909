"""Reading a segment: from an offset or a timestamp to a batch's position. Shared by the growing and the sealed kind.

A lookup by offset finds the floor entry of the offset index, then walks over batch headers. A lookup by time does the
same with the time index. An index entry counts only if the header at its position confirms it. Otherwise the indexes
are rebuilt from the log and the lookup starts again: a damaged index costs time, and never gives a wrong result.

Before a range of the log is first served, its checksums are verified (`ensure_checked`), unless this process wrote it.
A corrupt batch is never served: it raises an error that names the file and the position.

Threads: readers may call every method at any time, in parallel with one writer.
"""

from __future__ import annotations

import errno
import threading
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

from stratalog.errors import CorruptBatchError, StratalogError
from stratalog.records._framing import BatchHeader, find_batch, parse_header, parse_headers
from stratalog.records.batch import Batch
from stratalog.records.format import HEADER_SIZE
from stratalog.records.reader import find_timestamp
from stratalog.storage import names
from stratalog.storage._page_cache import is_cached
from stratalog.storage.checked_ranges import CheckedRanges
from stratalog.storage.disk import Disk
from stratalog.storage.file_slice import LogFile
from stratalog.storage.offset_index import OffsetIndex
from stratalog.storage.retention import SegmentFacts
from stratalog.storage.scan import CHUNK, Chunk, check, reason, scan
from stratalog.storage.time_index import TimeEntry, TimeIndex
from stratalog.storage.transaction_index import TransactionIndex

_WALK_BYTES = 4096  # about the distance between two index entries; a longer walk takes a second read
_LOOKUP_CHUNK = 64 * 1024
_CHECKED_AT_ONCE = 1024 * 1024  # a quarter of a millisecond

T = TypeVar("T")


class TimestampedOffset(NamedTuple):
    offset: int
    timestamp: int


class DoubtfulIndexError(Exception):
    """An index and its log disagree. Raised inside this package only: the index is rebuilt."""


class Segment(ABC):
    """`size` is the number of bytes of the .log file that belong to the log. All offsets are below `limit`."""

    size: int

    def __init__(self, disk: Disk, directory: Path, base_offset: int, rebuild_lock: threading.RLock) -> None:
        self._disk = disk
        self._directory = directory
        self.base_offset = base_offset
        self.transaction_index = TransactionIndex(disk, self.path(names.TRANSACTION_INDEX))
        self._checked = CheckedRanges()
        self._check_lock = threading.Lock()
        self._rebuild_lock = rebuild_lock
        self._retired = False
        self._last_position = (-1, -1, -1)  # of position_of(): the log's generation, the offset, the position

    def __repr__(self) -> str:
        return f"{type(self).__name__}(base_offset={self.base_offset}, size={self.size})"

    def path(self, suffix: str) -> Path:
        return names.segment_file(self._directory, self.base_offset, suffix)

    @property
    @abstractmethod
    def file(self) -> LogFile: ...

    @property
    @abstractmethod
    def open_file(self) -> LogFile | None:
        """The .log file if it and the offset index are open."""

    @property
    @abstractmethod
    def offset_index(self) -> OffsetIndex: ...

    @property
    @abstractmethod
    def time_index(self) -> TimeIndex: ...

    @property
    @abstractmethod
    def limit(self) -> int: ...

    @property
    @abstractmethod
    def index_size(self) -> int:
        """The size of the entries in the larger of the two indexes, in bytes."""

    @property
    @abstractmethod
    def max_timestamp(self) -> int: ...

    @abstractmethod
    def rebuild_indexes(self) -> None:
        """Rebuild both indexes from the log. Raises CorruptBatchError if the log itself is corrupt."""

    @abstractmethod
    def release(self) -> None:
        """Close the files and mappings. The next read opens them again."""

    def retire(self) -> None:
        """Prepare for the files to be deleted, or opened as another segment: from here on, nothing is written to them
        for a late reader. A reader that needs that gets an OSError and repeats its read."""
        with self._rebuild_lock:
            self._retired = True

    def retention_facts(self) -> SegmentFacts:
        return SegmentFacts(self.base_offset, self.limit, self.size, self._newest, self._oldest)

    def _oldest(self) -> int:
        """Return the timestamp of the first batch, an estimate for the oldest record."""
        header = parse_header(self.file.read(HEADER_SIZE, 0)) if self.size else None
        return self._newest() if header is None or header.max_timestamp < 0 else header.max_timestamp

    def _newest(self) -> int:
        """Return the largest timestamp, or the time of the file if no record has one."""
        if self.max_timestamp >= 0:
            return self.max_timestamp
        return self.path(names.LOG).stat().st_mtime_ns // 1_000_000

    def locate(self, offset: int) -> BatchHeader | None:
        """Return the header of the first batch that ends at or after `offset`, with its position, or None."""
        try:
            header = self._locate(offset)
        except DoubtfulIndexError:
            header = self._with_new_indexes(lambda: self._locate(offset))
        if self.base_offset <= offset < self.limit and (header is None or header.base_offset > offset):
            self._check_gap(offset, header)
        return header

    def position_of(self, offset: int, generation: int) -> int:
        """Return the position of the first batch that ends at or after `offset`, or the size of the segment. Remembers
        the last result for as long as the log's `generation` is the same: all consumers have the same high
        watermark."""
        known_generation, known_offset, position = self._last_position
        if offset == known_offset and generation == known_generation:
            return position
        header = self.locate(offset)
        if header is None:
            return self.size
        self._last_position = (generation, offset, header.position)
        return header.position

    def max_timestamp_before(self, offset: int) -> int:
        """Return the largest timestamp of the batches that end before `offset`; -1 if no record has one."""
        try:
            return self._max_timestamp_before(offset)
        except DoubtfulIndexError:
            return self._with_new_indexes(lambda: self._max_timestamp_before(offset))

    def find_timestamp(self, timestamp: int, start_offset: int) -> TimestampedOffset | None:
        """Return the first record at or after `start_offset` that is not older than `timestamp`."""
        try:
            return self._find_timestamp(timestamp, start_offset)
        except DoubtfulIndexError:
            return self._with_new_indexes(lambda: self._find_timestamp(timestamp, start_offset))

    def is_in_memory(self, offset: int, max_bytes: int) -> bool:
        """Return whether locate(offset) and a read of `max_bytes` from there would find everything in memory, and few
        checksums to verify. Waits for no disk."""
        file = self.open_file
        index = None if file is None else self.offset_index
        if file is None or index is None or not index.is_resident():
            return False
        slot = index.floor_slot(offset)
        start = 0 if slot < 0 else index.entry(slot).position
        # The batch with `offset` begins before the next entry's batch, or is that one; it is read as a whole.
        following = index.entry(slot + 1).position if slot + 1 < index.count else self.size
        end = min(following + max_bytes, self.size)
        if min(self._unchecked(start, end), self._unchecked(following, end)) > _CHECKED_AT_ONCE:
            return False
        return is_cached(file.fd, start, end - start)

    def _unchecked(self, start: int, end: int) -> int:
        """Return how many bytes between two positions ensure_checked() would read, at most."""
        return max(end - self._checked.end_of(start), 0)

    def ensure_checked(self, start: int, end: int) -> None:
        """Verify the batches that begin in [start, end), unless they are verified. `start` is a batch's position."""
        if self._checked.end_of(start) >= end:
            return
        with self._check_lock:
            start = self._checked.end_of(start)
            if start < end:
                self._check(start, end)

    def sound_from(self, position: int) -> int:
        """Return the end of the verified range that starts at `position`, after ensure_checked has raised."""
        return self._checked.end_of(position)

    def offset_behind(self, position: int) -> int:
        """Return an offset after all batches that begin before `position`: that of the next index entry if the log
        confirms it, else the limit of the segment."""
        index = self.offset_index
        slot = bisect_left(range(index.count), position, key=lambda slot: index.entry(slot).position)
        if slot < index.count:
            entry = index.entry(slot)
            try:
                header = parse_header(self.file.read(HEADER_SIZE, entry.position))
            except (OSError, StratalogError):
                return self.limit
            if header is not None and header.last_offset == entry.offset:
                return header.base_offset
        return self.limit

    def scan(self, position: int = 0, chunk_size: int = CHUNK) -> Iterator[Chunk]:
        """Yield the batches from `position` to the end of the segment; framing is checked, checksums are not."""
        return scan(self.file, position, self.size, chunk_size)

    def walk_headers(self, position: int) -> Iterator[BatchHeader]:
        """Yield the headers from `position` on. Of large batches, little more than the header is read. The positions in
        the headers count from the start of a read, not of the file."""
        size = self.size
        previous = -1
        while position < size:
            buffer = self.file.read(min(_LOOKUP_CHUNK, size - position), position)
            headers, stop, error = parse_headers(buffer)
            cut_off = parse_header(buffer, stop) if error is None else None
            for header in headers if cut_off is None else [*headers, cut_off]:
                if header.base_offset <= previous or header.last_offset < header.base_offset:
                    raise self._corrupt(f"offset {header.base_offset} follows {previous}", position + header.position)
                previous = header.last_offset
                yield header
            if error is not None:
                raise self._corrupt(reason(error), position + stop)
            position += stop if cut_off is None else stop + cut_off.size
            if stop == 0 and cut_off is None:
                raise self._corrupt(f"{size - position} bytes at the end are less than a batch header", position)
        if position > size:
            raise self._corrupt(f"the last batch goes {position - size} bytes past the end", size)

    def _with_new_indexes(self, look_up: Callable[[], T]) -> T:
        with self._rebuild_lock:
            if self._retired:
                raise FileNotFoundError(
                    errno.ENOENT, "the segment is no longer part of the log", str(self.path(names.LOG))
                )
            self.rebuild_indexes()
        try:
            return look_up()
        except DoubtfulIndexError as error:
            raise self._corrupt(f"the index does not fit the log, even when rebuilt: {error}", 0) from error

    def _locate(self, offset: int) -> BatchHeader | None:
        entry = self.offset_index.floor(offset)
        if entry is None:
            return self._walk(0, offset, self.base_offset - 1, -1)
        expected, position = entry
        if not 0 <= position < self.size:
            raise DoubtfulIndexError(f"position {position} lies outside the log, which has {self.size} bytes")
        if expected < self.base_offset:
            raise DoubtfulIndexError(f"offset {expected} lies before the segment, which starts at {self.base_offset}")
        return self._walk(position, offset, -1, expected)

    def _check_gap(self, offset: int, following: BatchHeader | None) -> None:
        """Raise CorruptBatchError if a corrupt header before or after `offset` looks like a gap of compaction, and
        hides records."""
        entry = self.offset_index.floor(offset)
        self.ensure_checked(0 if entry is None else entry[1], _end(following, self.size))

    def _walk(self, position: int, offset: int, previous: int, expected: int) -> BatchHeader | None:
        """Find a batch as find_batch() does, in the file. Return None only at the end of the segment."""
        size = self.size
        read = self.file.read
        while position < size:
            try:
                header, stop, previous, _ = find_batch(
                    read(min(_WALK_BYTES, size - position), position), offset, position, previous, expected
                )
            except LookupError as error:
                raise DoubtfulIndexError(str(error)) from error
            except CorruptBatchError as error:
                raise self._corrupt(error.reason, error.position) from error
            if header is not None:
                if stop + header.size > size:
                    raise self._corrupt(f"batch claims {header.size} bytes, {size - stop} are left", stop)
                return header
            if stop == position:
                raise self._corrupt(f"{size - position} bytes at the end are less than a batch header", position)
            expected = -1
            position = stop
        if position > size:
            raise self._corrupt(f"the last batch goes {position - size} bytes past the end", size)
        return None

    def _find_timestamp(self, timestamp: int, start_offset: int) -> TimestampedOffset | None:
        if self.max_timestamp < timestamp:
            return None
        position = 0
        entry = self.time_index.floor(timestamp)
        if entry is not None:
            position = self._confirm(entry).position
        first = self.locate(start_offset)
        if first is None:
            return None
        start = max(position, first.position)
        for chunk in self.scan(start, _LOOKUP_CHUNK):
            for header in chunk.headers:
                if header.max_timestamp >= timestamp:
                    # Includes all batches before it: a corrupt timestamp may have hidden the record.
                    self.ensure_checked(start, chunk.origin + header.position + header.size)
                    record = self._first_record(Batch(chunk.buffer, header), chunk.origin, timestamp, start_offset)
                    if record is not None:
                        return record
        self.ensure_checked(start, self.size)
        return None

    def _first_record(self, batch: Batch, origin: int, timestamp: int, start_offset: int) -> TimestampedOffset | None:
        try:
            record = find_timestamp(batch, timestamp, start_offset)
        except StratalogError as error:
            raise self._corrupt(reason(error), origin + batch.header.position) from error
        return None if record is None else TimestampedOffset(*record)

    def _confirm(self, entry: TimeEntry) -> BatchHeader:
        """Return the header that a time index entry points to. Raises DoubtfulIndexError if the two differ."""
        header = self._locate(entry.offset)
        if header is None or header.base_offset > entry.offset or header.max_timestamp != entry.timestamp:
            raise DoubtfulIndexError(f"no batch with offset {entry.offset} has timestamp {entry.timestamp}")
        return header

    def _confirmed_max_timestamp(self) -> int:
        """Return the largest timestamp, from the last entry of the time index and the batches after it."""
        last = self.time_index.last
        start = 0 if last is None else self._confirm(last).position
        largest = -1 if last is None else last.timestamp
        for header in self.walk_headers(start):
            if header.max_timestamp > largest:
                raise DoubtfulIndexError(f"timestamp {header.max_timestamp} is missing from the time index")
        return largest

    def _max_timestamp_before(self, offset: int) -> int:
        times = self.time_index
        slot = bisect_left(range(times.count), offset, key=lambda slot: times.entry(slot).offset) - 1
        entry = times.entry(slot) if slot >= 0 else None
        largest = -1 if entry is None else entry.timestamp
        for header in self.walk_headers(0 if entry is None else self._confirm(entry).position):
            if header.last_offset >= offset:
                break
            largest = max(largest, header.max_timestamp)
        return largest

    def _check(self, start: int, end: int) -> None:
        size = self.size
        previous = -1 if start else self.base_offset - 1
        chunk_size = min(max(end - start + _WALK_BYTES, _LOOKUP_CHUNK), CHUNK)
        for chunk in check(self.file, start, size, previous=previous, limit=self.limit, chunk_size=chunk_size):
            sound, doubt = chunk.end, None
            if chunk.end < size:
                try:
                    self._check_next(chunk.end, chunk.headers[-1].last_offset)
                except CorruptBatchError as error:
                    sound, doubt = chunk.origin + chunk.headers[-1].position, error
            if sound > chunk.origin:
                self._checked.add(chunk.origin, sound)
            if sound >= end:
                return
            if doubt is not None:
                raise doubt

    def _check_next(self, position: int, last_offset: int) -> None:
        """Check the next base offset. The checksum does not cover base offsets: only the next batch confirms one."""
        try:
            header = parse_header(self.file.read(_WALK_BYTES, position))
        except StratalogError:
            return  # a corrupt next batch says nothing about this one; a read of it finds the damage
        if header is not None and header.base_offset <= last_offset:
            raise self._corrupt(f"offset {header.base_offset} follows offset {last_offset}", position)

    def _corrupt(self, message: str, position: int | None) -> CorruptBatchError:
        return CorruptBatchError(message, file=str(self.path(names.LOG)), position=position)


def _end(header: BatchHeader | None, size: int) -> int:
    return size if header is None else header.position + header.size

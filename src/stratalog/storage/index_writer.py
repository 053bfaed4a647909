"""The rule that adds entries to both indexes of a segment, while it grows and when the indexes are rebuilt.

A batch gets an entry if more than `index.interval.bytes` of log were written since the batch of the last entry, as in
Kafka. The time index gets its entry at the same moment, and a last one when the segment is sealed.
"""

from __future__ import annotations

from collections.abc import Iterable

from stratalog.records._framing import BatchHeader
from stratalog.records.format import NO_TIMESTAMP
from stratalog.storage.offset_index import OffsetIndex
from stratalog.storage.time_index import TimeIndex

MAX_RELATIVE_OFFSET = 2**31 - 1  # the largest that fits into an index entry


class IndexWriter:
    """Adds the entries of appended batches to both indexes. It runs at every append, so it keeps copies of the values
    that it needs from the indexes."""

    __slots__ = (
        "_entry_timestamp",
        "_reserved",
        "_since_entry",
        "interval",
        "is_finished",
        "is_full",
        "max_timestamp",
        "max_timestamp_offset",
        "offsets",
        "times",
    )

    is_finished: bool  # as far as is known, the files are as a sealed segment has them
    is_full: bool
    max_timestamp: int
    max_timestamp_offset: int
    _entry_timestamp: int  # of the last entry of the time index
    _since_entry: int

    def __init__(self, offsets: OffsetIndex, times: TimeIndex, interval: int) -> None:
        self.offsets = offsets
        self.times = times
        self.interval = interval
        self._reserved = 0
        self._restart()

    def adopt(self, file_sizes: tuple[int, int] | None) -> None:
        """Compare the file sizes of a segment that was closed in order with the expected ones. If they match, finish()
        leaves the files as they are."""
        times = self.times.size
        if self.max_timestamp > self._entry_timestamp:
            times += self.times.ENTRY_SIZE  # the last entry, which is in the file but was not read
        self.is_finished = file_sizes == (self.offsets.size, times)

    def reserve(self, batches: int) -> None:
        """Reserve room for the entries of this many batches and for the last entry. After that, add() can't fail.
        Raises OSError."""
        entries = self.offsets.count + batches + 1  # the time index never has more
        if entries > self._reserved:
            self.is_finished = False
            self._reserved = min(self.offsets.reserve(entries), self.times.reserve(entries))

    def add(self, headers: list[BatchHeader], position: int) -> None:
        """Add the entries of consecutive batches, the first of which is at `position`."""
        since = self._since_entry
        for header in headers:
            if header.max_timestamp > self.max_timestamp:
                self.max_timestamp = header.max_timestamp
                self.max_timestamp_offset = header.last_offset
            if since > self.interval and not self.is_full:
                self._add_entry(header.last_offset, position)
                since = 0
            size = header.size
            since += size
            position += size
        self._since_entry = since

    def _add_entry(self, offset: int, position: int) -> None:
        offsets, times = self.offsets, self.times
        if offset - offsets.base_offset > MAX_RELATIVE_OFFSET:
            return  # only in a foreign file: its later batches are found by walking
        offsets.append(offset, position)
        if self.max_timestamp > self._entry_timestamp:
            times.append(self.max_timestamp, self.max_timestamp_offset)
            self._entry_timestamp = self.max_timestamp
        self.is_full = offsets.count >= offsets.room or times.count >= times.room

    def truncate(self, offset: int) -> None:
        """Drop the entries at and after `offset`. The caller then passes the batches after the last remaining entry to
        note_timestamps()."""
        self.offsets.truncate(offset)
        self.times.truncate(offset)
        self._restart()

    def resume(self, offset: int) -> None:
        """Drop the entries at and after `offset`, and make the next batch get an entry. It is the batch that ends at
        `offset`, whose entry was just dropped."""
        self.truncate(offset)
        self._since_entry = self.interval + 1

    def clear(self) -> None:
        self.offsets.count = 0
        self.times.count = 0
        self._restart()

    def _restart(self) -> None:
        self.is_finished = False
        self._since_entry = 0
        last = self.times.last
        self.max_timestamp = self._entry_timestamp = NO_TIMESTAMP if last is None else last.timestamp
        self.max_timestamp_offset = -1 if last is None else last.offset
        self.is_full = self.offsets.count >= self.offsets.room or self.times.count >= self.times.room

    def note_timestamps(self, headers: Iterable[BatchHeader]) -> None:
        """Record the timestamps of batches that get no entries."""
        for header in headers:
            if header.max_timestamp > self.max_timestamp:
                self.max_timestamp = header.max_timestamp
                self.max_timestamp_offset = header.last_offset

    def note_max_timestamp(self) -> None:
        """Append the last entry of the time index: the largest timestamp of the segment."""
        nameable = self.max_timestamp_offset - self.times.base_offset <= MAX_RELATIVE_OFFSET
        if self.max_timestamp > self._entry_timestamp and nameable:
            self.times.append(self.max_timestamp, self.max_timestamp_offset)
            self._entry_timestamp = self.max_timestamp

    def finish(self) -> None:
        """Finish both files as a sealed segment has them. Raises OSError."""
        if not self.is_finished:
            if self.max_timestamp > self._entry_timestamp:
                self.reserve(0)
                self.note_max_timestamp()
            self.trim()
            self.is_finished = True

    def trim(self) -> None:
        self._reserved = 0
        self.offsets.trim()
        self.times.trim()

    def release(self) -> None:
        """Release the mappings. They are created again when they are needed."""
        self._reserved = 0
        self.offsets.release()
        self.times.release()

    def sync(self) -> None:
        self.offsets.sync()
        self.times.sync()

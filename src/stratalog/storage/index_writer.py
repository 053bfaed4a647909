"""When an index entry is made: the rule that fills both indexes of a segment, while it grows and when it is rebuilt.

An entry is added for a batch when more than `index.interval.bytes` of log lie behind the last one, as in Kafka. The
time index gets its entry at the same moment, and a last one when the segment is sealed.
"""

from __future__ import annotations

from collections.abc import Iterable

from stratalog.records._framing import BatchHeader
from stratalog.records.format import NO_TIMESTAMP
from stratalog.storage.offset_index import OffsetIndex
from stratalog.storage.time_index import TimeIndex

MAX_RELATIVE_OFFSET = 2**31 - 1  # an entry has that much room for an offset


class IndexWriter:
    """Called for every append, so it keeps at hand what it would otherwise ask the indexes for."""

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

    is_finished: bool  # the files are as a sealed segment has them, for all that is known
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
        """Take note of the sizes that the files of a segment that was closed in order have: finish() leaves them as
        they are if those are right."""
        times = self.times.size
        if self.max_timestamp > self._entry_timestamp:
            times += self.times.ENTRY_SIZE  # the last one; it is in the file, which was not looked at
        self.is_finished = file_sizes == (self.offsets.size, times)

    def reserve(self, batches: int) -> None:
        """Have room for the entries of so many batches, and for the last one: after this, nothing here can fail."""
        entries = self.offsets.count + batches + 1  # never fewer than the time index has
        if entries > self._reserved:
            self.is_finished = False
            self._reserved = min(self.offsets.reserve(entries), self.times.reserve(entries))

    def add(self, headers: list[BatchHeader], position: int) -> None:
        """Take note of batches that lie one behind the other from `position`."""
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
            return  # a log never grows so wide, but a file from elsewhere may be: look-ups walk there
        offsets.append(offset, position)
        if self.max_timestamp > self._entry_timestamp:
            times.append(self.max_timestamp, self.max_timestamp_offset)
            self._entry_timestamp = self.max_timestamp
        self.is_full = offsets.count >= offsets.room or times.count >= times.room

    def truncate(self, offset: int) -> None:
        """Drop the entries at and above `offset`. note_timestamps() must tell what lies behind the last one left."""
        self.offsets.truncate(offset)
        self.times.truncate(offset)
        self._restart()

    def resume(self, offset: int) -> None:
        """As truncate(), where the next batch to come is the one that ends at `offset` and had an entry: it gets it
        again."""
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
        """Take note of the timestamps of batches that get no entries."""
        for header in headers:
            if header.max_timestamp > self.max_timestamp:
                self.max_timestamp = header.max_timestamp
                self.max_timestamp_offset = header.last_offset

    def note_max_timestamp(self) -> None:
        """Give the time index its last entry: the largest timestamp of the segment."""
        nameable = self.max_timestamp_offset - self.times.base_offset <= MAX_RELATIVE_OFFSET
        if self.max_timestamp > self._entry_timestamp and nameable:
            self.times.append(self.max_timestamp, self.max_timestamp_offset)
            self._entry_timestamp = self.max_timestamp

    def finish(self) -> None:
        """Leave both files as a sealed segment has them. Raises OSError."""
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
        """Give the mappings back until they are needed again."""
        self._reserved = 0
        self.offsets.release()
        self.times.release()

    def sync(self) -> None:
        self.offsets.sync()
        self.times.sync()

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


class IndexWriter:
    __slots__ = ("_interval", "_since_entry", "max_timestamp", "max_timestamp_offset", "offsets", "times")

    max_timestamp: int
    max_timestamp_offset: int
    _since_entry: int

    def __init__(self, offsets: OffsetIndex, times: TimeIndex, interval: int) -> None:
        self.offsets = offsets
        self.times = times
        self._interval = interval
        self._restart()

    @property
    def is_full(self) -> bool:
        return self.offsets.is_full or self.times.is_full

    def reserve(self, batches: int) -> None:
        """Have room for the entries of so many batches, and for the last one: after this, nothing here can fail."""
        self.offsets.reserve(batches + 1)
        self.times.reserve(batches + 1)

    def add(self, headers: list[BatchHeader], position: int) -> None:
        """Take note of batches that lie one behind the other from `position`."""
        since = self._since_entry
        for header in headers:
            if header.max_timestamp > self.max_timestamp:
                self.max_timestamp = header.max_timestamp
                self.max_timestamp_offset = header.last_offset
            if since > self._interval and not self.is_full:
                self.offsets.append(header.last_offset, position)
                self.times.append(self.max_timestamp, self.max_timestamp_offset)
                since = 0
            since += header.size
            position += header.size
        self._since_entry = since

    def truncate(self, offset: int) -> None:
        """Drop the entries at and above `offset`. note_timestamps() must tell what lies behind the last one left."""
        self.offsets.truncate(offset)
        self.times.truncate(offset)
        self._restart()

    def clear(self) -> None:
        self.offsets.count = 0
        self.times.count = 0
        self._restart()

    def _restart(self) -> None:
        self._since_entry = 0
        last = self.times.last
        self.max_timestamp = NO_TIMESTAMP if last is None else last.timestamp
        self.max_timestamp_offset = -1 if last is None else last.offset

    def note_timestamps(self, headers: Iterable[BatchHeader]) -> None:
        """Take note of the timestamps of batches that get no entries."""
        for header in headers:
            if header.max_timestamp > self.max_timestamp:
                self.max_timestamp = header.max_timestamp
                self.max_timestamp_offset = header.last_offset

    def note_max_timestamp(self) -> None:
        """Give the time index its last entry: the largest timestamp of the segment."""
        self.times.append(self.max_timestamp, self.max_timestamp_offset)

    def trim(self) -> None:
        self.offsets.trim()
        self.times.trim()

    def sync(self) -> None:
        self.offsets.sync()
        self.times.sync()

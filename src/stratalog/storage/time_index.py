"""The .timeindex file: maps timestamps to offsets. Entries of 12 bytes: timestamp, relative offset.

An entry (t, o) means that no record of the segment up to offset o is newer than t. Timestamps rise from entry to entry.
The last entry of a sealed segment holds the largest timestamp of the segment and the last offset of the batch that has
it.
"""

from __future__ import annotations

from typing import NamedTuple

from stratalog.storage._mapping import Mapping
from stratalog.storage.sparse_index import SparseIndex


class TimeEntry(NamedTuple):
    timestamp: int
    offset: int


class TimeIndex(SparseIndex):
    """The time index of one segment."""

    ENTRY_SIZE = 12

    def append(self, timestamp: int, offset: int) -> None:
        """Append an entry. The caller has reserved room, and the timestamp is higher than the last entry's."""
        self._store().store_time_entry(self.count, timestamp, offset - self.base_offset)
        self.count += 1
        self._unsynced = True

    def entry(self, slot: int) -> TimeEntry:
        timestamp, relative = self._map().time_entry(slot)
        return TimeEntry(timestamp, self.base_offset + relative)

    @property
    def last(self) -> TimeEntry | None:
        return self.entry(self.count - 1) if self.count else None

    def floor(self, timestamp: int) -> TimeEntry | None:
        """Return the last entry at or before `timestamp`."""
        count = self.count
        slot = self._map().floor_time(count, timestamp) if count else -1
        return None if slot < 0 else self.entry(slot)

    def truncate(self, offset: int) -> None:
        """Drop the entries at and after `offset`. Offsets rise from entry to entry, like timestamps."""
        while self.count and self.entry(self.count - 1).offset >= offset:
            self.count -= 1

    @staticmethod
    def _count_rising(mapping: Mapping, count: int, start: int) -> int:
        return mapping.rising_time_entries(count, start)

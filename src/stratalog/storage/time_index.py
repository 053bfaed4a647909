"""The .timeindex file: how far the clock had come by which offset. 12-byte entries: timestamp, relative offset.

An entry (t, o) says: no record of the segment up to offset o is younger than t. Timestamps only rise from entry to
entry. The last entry of a sealed segment holds its largest timestamp, and the offset is the last one of the batch
that has it.
"""

from __future__ import annotations

from typing import NamedTuple

from stratalog.storage._mapping import Mapping
from stratalog.storage.sparse_index import SparseIndex


class TimeEntry(NamedTuple):
    timestamp: int
    offset: int


class TimeIndex(SparseIndex):
    ENTRY_SIZE = 12

    def append(self, timestamp: int, offset: int) -> None:
        """Room must have been reserved, and the timestamp must be above the last entry's."""
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
        """The last entry at or below `timestamp`."""
        count = self.count
        slot = self._map().floor_time(count, timestamp) if count else -1
        return None if slot < 0 else self.entry(slot)

    def truncate(self, offset: int) -> None:
        """Drop the entries whose offset is at or above `offset`. Offsets rise with the slots, as timestamps do."""
        while self.count and self.entry(self.count - 1).offset >= offset:
            self.count -= 1

    @staticmethod
    def _rising(mapping: Mapping, count: int, start: int) -> int:
        return mapping.rising_time_entries(count, start)

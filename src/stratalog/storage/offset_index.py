"""The .index file: maps offsets to positions. Entries of 8 bytes: offset relative to the segment's base, position.

As in Kafka, an entry holds the LAST offset of a batch and the position where that batch starts. So the floor entry of
an offset leads to the batch with that offset or to an earlier batch, whose header confirms the entry.
"""

from __future__ import annotations

from typing import NamedTuple

from stratalog.storage._mapping import Mapping
from stratalog.storage.sparse_index import SparseIndex


class OffsetEntry(NamedTuple):
    offset: int
    position: int


class OffsetIndex(SparseIndex):
    """The offset index of one segment."""

    ENTRY_SIZE = 8

    def append(self, offset: int, position: int) -> None:
        """Append an entry. The caller has reserved room, and the offset is higher than the last entry's."""
        self._store().store_offset_entry(self.count, offset - self.base_offset, position)
        self.count += 1
        self._unsynced = True

    def entry(self, slot: int) -> OffsetEntry:
        relative, position = self._map().offset_entry(slot)
        return OffsetEntry(self.base_offset + relative, position)

    @property
    def last(self) -> OffsetEntry | None:
        return self.entry(self.count - 1) if self.count else None

    def floor(self, offset: int) -> tuple[int, int] | None:
        """Return the offset and position of the last entry at or before `offset`. A plain tuple, because every lookup
        needs it."""
        count = self.count
        return self._map().floor_entry(count, self.base_offset, offset) if count else None

    def floor_slot(self, offset: int) -> int:
        count = self.count
        if count == 0:
            return -1
        return self._map().floor_offset(count, offset - self.base_offset)

    def truncate(self, offset: int) -> None:
        """Drop the entries at and after `offset`."""
        self.count = self.floor_slot(offset - 1) + 1

    @staticmethod
    def _count_rising(mapping: Mapping, count: int, start: int) -> int:
        return mapping.rising_offset_entries(count, start)

"""What the two sparse indexes have in common: fixed-size entries in a mapped file, growing at the end.

An index that grows is preallocated to `segment.index.bytes` (sparse: blocks are given out a step at a time, ahead of
the stores, so that a full disk is an error and not a SIGBUS) and trimmed to its entries when the segment is sealed.

Crash policy: an index is a hint. Nothing in it is believed before the log's own bytes have confirmed it (see
segment.py), so a lost, short, stale or damaged index costs a rebuild and never a wrong answer.

Threads: one writer. Readers may search at any time: an entry is stored before `count` says that it is there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Self

from stratalog.storage._mapping import Mapping
from stratalog.storage.disk import Disk

_ALLOCATION_STEP = 16 * 1024
_ALL_RESERVED = 2**31  # more than any index has: never ask again


class SparseIndex(ABC):
    ENTRY_SIZE: ClassVar[int]

    def __init__(self, disk: Disk, path: Path, base_offset: int, mapping: Mapping | None, count: int) -> None:
        self.path = path
        self.base_offset = base_offset
        self.count = count
        self._disk = disk
        self._mapping = mapping
        self._capacity = 0 if mapping is None else len(mapping) // self.ENTRY_SIZE
        # One slot is kept back for the last entry of a time index, which is added when the segment is sealed.
        self.room = self._capacity - 1

    @classmethod
    def open_to_grow(cls, disk: Disk, path: Path, base_offset: int, max_bytes: int, *, keep: bool) -> Self:
        """Map the file with room for max_bytes of entries; `keep` those that it has, or start empty.

        A file that was not trimmed ends in zeros: only entries that rise are taken for entries.
        """
        size = max_bytes - max_bytes % cls.ENTRY_SIZE
        fd = disk.open(path, create=True)
        try:
            kept = min(disk.size(fd) // cls.ENTRY_SIZE, size // cls.ENTRY_SIZE) if keep else 0
            disk.truncate(fd, kept * cls.ENTRY_SIZE)
            disk.truncate(fd, size)
            mapping = disk.map(fd, size, writable=True)
        finally:
            disk.close(fd)
        mapping.advise_used(kept * cls.ENTRY_SIZE)  # behind lies room: no use for megabytes of zeros in the page cache
        return cls(disk, path, base_offset, mapping, cls._rising(mapping, kept))

    @classmethod
    def open_sealed(cls, disk: Disk, path: Path, base_offset: int) -> Self:
        """Map a finished index for reading. Raises FileNotFoundError where there is none."""
        fd = disk.open(path, writable=False)
        try:
            count = disk.size(fd) // cls.ENTRY_SIZE
            mapping = disk.map(fd, count * cls.ENTRY_SIZE, writable=False) if count else None
        finally:
            disk.close(fd)
        if mapping is not None and not any(memoryview(mapping)[-cls.ENTRY_SIZE :]):
            count = cls._rising(mapping, count)  # it was not trimmed; to make it again would need room on the disk
        return cls(disk, path, base_offset, mapping, count)

    @property
    def is_full(self) -> bool:
        return self.count >= self.room

    @property
    def size(self) -> int:
        return self.count * self.ENTRY_SIZE

    def reserve(self, entries: int) -> int:
        """Give so many entries in all real blocks, and some more: stores into those can't fail for want of disk
        space. How many entries have them now."""
        target = min(entries * self.ENTRY_SIZE + _ALLOCATION_STEP, self._capacity * self.ENTRY_SIZE)
        fd = self._disk.open(self.path)
        try:
            self._disk.allocate(fd, 0, target)
        finally:
            self._disk.close(fd)
        return target // self.ENTRY_SIZE if target < self._capacity * self.ENTRY_SIZE else _ALL_RESERVED

    def trim(self) -> None:
        """Cut the file down to its entries. The mapping stays usable for readers, up to `count`."""
        fd = self._disk.open(self.path)
        try:
            self._disk.truncate(fd, self.size)
        finally:
            self._disk.close(fd)

    def sync(self) -> None:
        if self._mapping is not None:
            self._disk.sync_mapping(self._mapping, self.path)

    def _map(self) -> Mapping:
        assert self._mapping is not None, "an empty index has no entry to look at"
        return self._mapping

    @staticmethod
    @abstractmethod
    def _rising(mapping: Mapping, count: int) -> int:
        """How many of the first `count` entries rise from one to the next."""

"""The common part of the two sparse indexes: fixed-size entries in a mapped file that grows at its end.

The first reserve() of a growing index opens its file for writing and extends it to `segment.index.bytes`. The file is
sparse: blocks are allocated step by step, ahead of the stores, so that a full disk is an error and not a SIGBUS. When
the segment is sealed, the file is trimmed to its entries. Before the first reserve(), the file is not written to.
Mappings are created when they are needed, and released by release().

Crash policy: an index is a hint. An entry is used only after the log's own bytes have confirmed it (segment.py). So a
missing, short, stale or corrupt index costs a rebuild and never causes a wrong result.

Threads: one writer. Readers may search at any time: an entry is stored before `count` covers it. A file is never
shortened below `count` entries while a reader may use them through a mapping.
"""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Self

from stratalog.storage._mapping import Mapping
from stratalog.storage.disk import Disk

_ALLOCATION_STEP = 16 * 1024
_ALL_RESERVED = 2**31  # more entries than any index has, so reserve() is not called again
_FIRST_STEP, _LONGEST_STEP = 4 * 1024, 1024 * 1024
_READING, _GROWING = "reading", "growing"


class SparseIndex(ABC):
    """A mapped file of `count` entries, in rising order."""

    ENTRY_SIZE: ClassVar[int]

    def __init__(
        self, disk: Disk, path: Path, base_offset: int, mapping: Mapping | None, count: int, max_bytes: int = 0
    ) -> None:
        """Create an index over a mapping with `count` entries. An index that may grow has room for `max_bytes`."""
        self.path = path
        self.base_offset = base_offset
        self.count = count
        self._disk = disk
        # The mapping for readers, and the writer's mapping of the same file with all its room. The writer replaces the
        # dict, so that a slow reader can't overwrite the writer's mapping with its own, which may be shorter.
        self._mappings: dict[str, Mapping] = {} if mapping is None else {_READING: mapping}
        self._capacity = max_bytes // self.ENTRY_SIZE
        # One slot is kept free for the last entry of a time index, which is added when the segment is sealed.
        self.room = self._capacity - 1
        self._is_stale = False  # the content of the file is not valid
        self._unsynced = False

    @classmethod
    def open_to_grow(cls, disk: Disk, path: Path, base_offset: int, max_bytes: int, *, keep: bool) -> Self:
        """Open an index with room for `max_bytes` of entries. With `keep`, it has the entries of the file, else none.

        A file that was not trimmed ends in zeros, so the entries end where they no longer rise.
        """
        index = cls(disk, path, base_offset, None, 0, max_bytes)
        index._is_stale = True
        if keep:
            with suppress(FileNotFoundError):
                mapping = index._map_file()
                if mapping is not None:
                    index.count = _count_rising(cls, mapping)
                    index._mappings = {_READING: mapping} if index.count else {}
                    index._is_stale = index.count == 0
        return index

    @classmethod
    def open_sealed(cls, disk: Disk, path: Path, base_offset: int) -> Self:
        """Map the index of a sealed segment for reading. Raises FileNotFoundError if it is missing."""
        fd = disk.open(path, writable=False)
        try:
            count = disk.size(fd) // cls.ENTRY_SIZE
            mapping = disk.map(fd, count * cls.ENTRY_SIZE, writable=False) if count else None
        finally:
            disk.close(fd)
        if mapping is not None and not any(memoryview(mapping)[-cls.ENTRY_SIZE :]):
            count = _count_rising(cls, mapping)  # the file was not trimmed, and rebuilding it would need disk space
        return cls(disk, path, base_offset, mapping, count)

    @property
    def is_full(self) -> bool:
        return self.count >= self.room

    @property
    def size(self) -> int:
        return self.count * self.ENTRY_SIZE

    def is_resident(self) -> bool:
        """Return whether a lookup finds all entries in memory."""
        mapping = self._mappings.get(_READING)
        return self.count == 0 or (mapping is not None and mapping.is_resident(self.size))

    def reserve(self, entries: int) -> int:
        """Allocate blocks for this many entries in total, and for some more, so that storing them can't fail for lack
        of disk space. Return how many entries have blocks now. Raises OSError."""
        target = min(entries * self.ENTRY_SIZE + _ALLOCATION_STEP, self._capacity * self.ENTRY_SIZE)
        fd = self._open_to_write()
        try:
            if _GROWING not in self._mappings:
                self._map_to_grow(fd)
            self._disk.allocate(fd, 0, target)
        finally:
            self._disk.close(fd)
        return target // self.ENTRY_SIZE if target < self._capacity * self.ENTRY_SIZE else _ALL_RESERVED

    def trim(self) -> None:
        """Truncate the file to its entries. Readers can still use existing mappings, up to `count`."""
        fd = self._open_to_write()
        try:
            if self._disk.size(fd) != self.size:
                self._disk.truncate(fd, self.size)
                self._unsynced = True
        finally:
            self._disk.close(fd)

    def sync(self) -> None:
        if not self._unsynced:
            return
        self._unsynced = False  # before the sync: entries that are stored during it are left to the next call
        try:
            growing = self._mappings.get(_GROWING)
            if growing is not None:
                self._disk.sync_mapping(growing, self.path)
            else:
                self._sync_file()
        except BaseException:
            self._unsynced = True
            raise

    def release(self) -> None:
        """Release the mappings. The next lookup or reserve() creates new ones. Only for the writer, between stores."""
        self._mappings = {}

    def _sync_file(self) -> None:
        try:
            fd = self._disk.open(self.path)
        except FileNotFoundError:
            return  # the file was removed, so there is nothing to make durable
        try:
            self._disk.sync(fd)
        finally:
            self._disk.close(fd)

    def _open_to_write(self) -> int:
        fd = self._disk.open(self.path, create=True)
        if self._is_stale:
            try:
                if self._disk.size(fd):
                    # Start a new file: a reader may still use a mapping of the old one.
                    self._disk.remove(self.path)
                    stale, fd = fd, self._disk.open(self.path, create=True)
                    self._disk.close(stale)
            except BaseException:
                self._disk.close(fd)
                raise
            self._is_stale = False
        return fd

    def _map_to_grow(self, fd: int) -> None:
        size = self._capacity * self.ENTRY_SIZE
        if self._disk.size(fd) != size:
            self._disk.truncate(fd, size)
        mapping = self._disk.map(fd, size, writable=True)
        mapping.advise_random()  # the rest of the file is unused room, which need not be in the page cache
        self._mappings = {_READING: mapping, _GROWING: mapping}

    def _map_file(self) -> Mapping | None:
        """Map all complete entries of the file for reading, at most as many as there is room for."""
        fd = self._disk.open(self.path, writable=False)
        try:
            entries = min(self._disk.size(fd) // self.ENTRY_SIZE, self._capacity)
            return self._disk.map(fd, entries * self.ENTRY_SIZE, writable=False) if entries else None
        finally:
            self._disk.close(fd)

    def _map(self) -> Mapping:
        mapping = self._mappings.get(_READING)
        return self._map_again() if mapping is None else mapping

    def _map_again(self) -> Mapping:
        """Map the file again after a release(). Raises OSError."""
        mappings, size = self._mappings, self.size
        mapping = self._map_file()
        if mapping is None or len(mapping) < size:
            raise OSError(errno.EIO, f"index no longer has its {self.count} entries", str(self.path))
        return mappings.setdefault(_READING, mapping)

    def _store(self) -> Mapping:
        return self._mappings[_GROWING]  # the caller has reserved room

    @staticmethod
    @abstractmethod
    def _count_rising(mapping: Mapping, count: int, start: int) -> int:
        """Return how many of the first `count` entries rise from one to the next. The first `start` are known to."""


def _count_rising(kind: type[SparseIndex], mapping: Mapping) -> int:
    """Return how many entries rise from one to the next. Reads little more than those, because megabytes of unused room
    may follow."""
    mapping.advise_random()
    entries, rising, step = len(mapping) // kind.ENTRY_SIZE, 0, _FIRST_STEP
    while rising < entries:
        end = min(rising + step // kind.ENTRY_SIZE, entries)
        mapping.advise_needed(rising * kind.ENTRY_SIZE, end * kind.ENTRY_SIZE)
        rising = kind._count_rising(mapping, end, rising)
        if rising < end:
            break
        step = min(step * 2, _LONGEST_STEP)
    return rising

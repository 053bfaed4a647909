"""What the two sparse indexes have in common: fixed-size entries in a mapped file, growing at the end.

An index that grows is opened for that by its first reserve(): it is then preallocated to `segment.index.bytes` (sparse:
blocks are given out a step at a time, ahead of the stores, so that a full disk is an error and not a SIGBUS), and
trimmed to its entries when the segment is sealed. Before that, its file is not written to. Mappings are made when they
are needed, and given back by release().

Crash policy: an index is a hint. Nothing in it is believed before the log's own bytes have confirmed it (see
segment.py), so a lost, short, stale or damaged index costs a rebuild and never a wrong answer.

Threads: one writer. Readers may search at any time: an entry is stored before `count` says that it is there. A file is
never shortened below `count` entries while somebody may look at them through a mapping.
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
_ALL_RESERVED = 2**31  # more than any index has: never ask again
_FIRST_LOOK, _LONGEST_LOOK = 4 * 1024, 1024 * 1024
_READING, _GROWING = "reading", "growing"


class SparseIndex(ABC):
    ENTRY_SIZE: ClassVar[int]

    def __init__(
        self, disk: Disk, path: Path, base_offset: int, mapping: Mapping | None, count: int, max_bytes: int = 0
    ) -> None:
        """`max_bytes`: of an index that may grow."""
        self.path = path
        self.base_offset = base_offset
        self.count = count
        self._disk = disk
        # For readers; and the same file with all its room, for the writer. Replaced as a whole by the writer, so that a
        # reader that was slow never puts its own mapping, which may be shorter, in the place of that.
        self._mappings: dict[str, Mapping] = {} if mapping is None else {_READING: mapping}
        self._capacity = max_bytes // self.ENTRY_SIZE
        # One slot is kept back for the last entry of a time index, which is added when the segment is sealed.
        self.room = self._capacity - 1
        self._is_stale = False  # what the file holds counts for nothing
        self._unsynced = False

    @classmethod
    def open_to_grow(cls, disk: Disk, path: Path, base_offset: int, max_bytes: int, *, keep: bool) -> Self:
        """An index with room for max_bytes of entries; `keep` those that the file has, or start empty.

        A file that was not trimmed ends in zeros: only entries that rise are taken for entries, and no more is read.
        """
        index = cls(disk, path, base_offset, None, 0, max_bytes)
        index._is_stale = True
        if keep:
            with suppress(FileNotFoundError):
                mapping = index._map_file()
                if mapping is not None:
                    index.count = _rising(cls, mapping)
                    index._mappings = {_READING: mapping} if index.count else {}
                    index._is_stale = index.count == 0
        return index

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
            count = _rising(cls, mapping)  # it was not trimmed; to make it again would need room on the disk
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
        """Give so many entries in all real blocks, and some more: stores into those can't fail for want of disk
        space. How many entries have them now."""
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
        """Cut the file down to its entries. Mappings stay usable for readers, up to `count`."""
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
        self._unsynced = False  # first: what is stored meanwhile is left to the next call
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
        """Give the mappings back; the next look-up or reserve() makes new ones. The writer's: not beside a store."""
        self._mappings = {}

    def _sync_file(self) -> None:
        try:
            fd = self._disk.open(self.path)
        except FileNotFoundError:
            return  # nothing can find these bytes again, durable or not
        try:
            self._disk.sync(fd)
        finally:
            self._disk.close(fd)

    def _open_to_write(self) -> int:
        fd = self._disk.open(self.path, create=True)
        if self._is_stale:
            try:
                if self._disk.size(fd):
                    # Another file: somebody may still look at the old one through a mapping.
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
        mapping.advise_random()  # behind lies room: no use for megabytes of zeros in the page cache
        self._mappings = {_READING: mapping, _GROWING: mapping}

    def _map_file(self) -> Mapping | None:
        """All whole entries of the file that there is room for, to be read."""
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
        """After a release. Raises OSError."""
        mappings, size = self._mappings, self.size
        mapping = self._map_file()
        if mapping is None or len(mapping) < size:
            raise OSError(errno.EIO, f"has not got its {self.count} entries any more", str(self.path))
        return mappings.setdefault(_READING, mapping)

    def _store(self) -> Mapping:
        return self._mappings[_GROWING]  # room must have been reserved

    @staticmethod
    @abstractmethod
    def _rising(mapping: Mapping, count: int, start: int) -> int:
        """How many of the first `count` entries rise from one to the next, where the first `start` are known to."""


def _rising(kind: type[SparseIndex], mapping: Mapping) -> int:
    """How many entries rise from one to the next. Little more than those is read, as megabytes of room may follow."""
    mapping.advise_random()
    entries, found, step = len(mapping) // kind.ENTRY_SIZE, 0, _FIRST_LOOK
    while found < entries:
        end = min(found + step // kind.ENTRY_SIZE, entries)
        mapping.advise_needed(found * kind.ENTRY_SIZE, end * kind.ENTRY_SIZE)
        found = kind._rising(mapping, end, found)
        if found < end:
            break
        step = min(step * 2, _LONGEST_LOOK)
    return found

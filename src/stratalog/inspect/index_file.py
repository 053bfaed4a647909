"""An .index or .timeindex, read entry by entry from the file. Without a mapping, a file that shrinks causes no SIGBUS.

The zeros after the last non-zero byte are preallocated and not entries. The entries are not checked here.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from stratalog.errors import StorageError
from stratalog.inspect.read_only_file import ReadOnlyFile
from stratalog.storage import names

LARGEST_INDEX = 2**31 - 1  # the limit of segment.index.bytes
_WINDOW = 64 * 1024


class IndexEntry(NamedTuple):
    """An entry of an .index as (offset, position), of a .timeindex as (timestamp, offset)."""

    slot: int
    key: int
    value: int


class IndexFile:
    """An index of either kind: lookups compare `key` and continue at `value`. Offsets are absolute."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.base_offset = base_offset_of(path)
        self.is_time = names.TIME_INDEX in path.suffixes
        self._struct = struct.Struct(">qi" if self.is_time else ">ii")
        self._file = ReadOnlyFile(path)
        if self._file.size > LARGEST_INDEX:
            self._file.close()
            raise StorageError(f"{path}: has {self._file.size} bytes, more than the limit of an index, {LARGEST_INDEX}")
        self.size = self._file.size
        self.left_over = self.size % self._struct.size
        self.count = self._count()
        self._file.bytes_read = 0  # a broker has the count in memory, so reading it is not a cost of a lookup

    @property
    def entry_size(self) -> int:
        return self._struct.size

    @property
    def is_preallocated(self) -> bool:
        return self.size - self.left_over > self.count * self.entry_size

    @property
    def bytes_read(self) -> int:
        return self._file.bytes_read

    def close(self) -> None:
        self._file.close()

    def _count(self) -> int:
        whole = self.size - self.left_over
        count = -(-_used(self._file, whole) // self.entry_size)
        if count == 0 and self.is_time and whole == self.entry_size:
            return 1  # the entry of a segment whose largest timestamp is 0, at its first offset
        return count

    def entry(self, slot: int) -> IndexEntry:
        data = self._file.read(self.entry_size, slot * self.entry_size)
        if len(data) < self.entry_size:
            raise StorageError(f"{self.path}: became shorter while it was read")
        return self._entry(slot, *self._struct.unpack(data))

    def __iter__(self) -> Iterator[IndexEntry]:
        window = _WINDOW - _WINDOW % self.entry_size
        slot = 0
        while slot < self.count:
            size = min(window, (self.count - slot) * self.entry_size)
            data = self._file.read(size, slot * self.entry_size)
            if len(data) < size:
                return  # the index was sealed or truncated since, so the other entries are gone
            for key, value in self._struct.iter_unpack(data):
                yield self._entry(slot, key, value)
                slot += 1

    def _entry(self, slot: int, key: int, value: int) -> IndexEntry:
        if self.is_time:
            return IndexEntry(slot, key, self.base_offset + value)
        return IndexEntry(slot, self.base_offset + key, value)


def base_offset_of(path: Path) -> int:
    """Return the base offset in a file name, with any suffixes, or 0 for a name that is not a segment's."""
    number = path.name.partition(".")[0]
    return int(number) if len(number) == 20 and number.isascii() and number.isdecimal() else 0


def _end_of_data(fd: int) -> int:
    """Return the end of the last extent that is not a hole, or of the file on file systems without holes."""
    end = 0
    try:
        while True:
            end = os.lseek(fd, os.lseek(fd, end, os.SEEK_DATA), os.SEEK_HOLE)
    except OSError as error:
        if error.errno != errno.ENXIO:  # there is no data after this position
            raise
    return end


def _used(file: ReadOnlyFile, size: int) -> int:
    """Return the size up to the last non-zero byte. Most of a preallocated file is a hole, which is not read."""
    size = min(size, _end_of_data(file.fileno()))
    while size > 0:
        start = max(size - _WINDOW, 0)
        used = len(file.read(size - start, start).rstrip(b"\0"))
        if used:
            return start + used
        size = start
    return 0

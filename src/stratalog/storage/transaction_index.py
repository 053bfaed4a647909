"""The .txnindex file: the aborted transactions of a segment. 34-byte entries, version 0, appended as markers arrive.

    version i16, producer id i64, first offset i64, last offset i64, last stable offset i64

The file is small, so it is read at once and written with ordinary calls, not mapped. A segment without aborted
transactions has no such file. Crash policy: it is rebuilt from the log when its segment is recovered.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from stratalog.errors import StorageError
from stratalog.storage.disk import Disk

_ENTRY = struct.Struct(">hqqqq")
ENTRY_SIZE = _ENTRY.size


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """The aborted transactions of one segment, read from the file at the first use."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self.path = path
        self._disk = disk
        self._cached: list[AbortedTransaction] | None = None  # each fetch with isolation read_committed needs them

    def append(self, aborted: AbortedTransaction) -> None:
        fd = self._disk.open(self.path, create=True)
        try:
            size = self._disk.size(fd)
            try:
                self._disk.write(fd, _ENTRY.pack(0, *aborted), size)
            except OSError:
                with contextlib.suppress(OSError):
                    self._disk.truncate(fd, size)
                raise
        finally:
            self._disk.close(fd)
        if self._cached is not None:
            self._cached.append(aborted)

    def entries(self) -> list[AbortedTransaction]:
        cached = self._cached
        if cached is None:
            cached = self._cached = self._read()
        return cached

    def set_entries(self, entries: list[AbortedTransaction]) -> None:
        """Set the entries without reading the file, for a segment whose files don't have their final names yet."""
        self._cached = entries

    def _read(self) -> list[AbortedTransaction]:
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return []
        return parse_entries(content, self.path)

    def truncate(self, offset: int) -> None:
        """Drop the transactions that ended at or after `offset`."""
        entries = self.entries()
        kept = [entry for entry in entries if entry.last_offset < offset]
        if len(kept) < len(entries):
            self._cached = None
            self._disk.replace(self.path, format_entries(kept))

    def reset(self) -> None:
        self._cached = None
        self._disk.remove(self.path)

    def sync(self) -> None:
        if not self.path.exists():
            return
        fd = self._disk.open(self.path)
        try:
            self._disk.sync(fd)
        finally:
            self._disk.close(fd)


def format_entries(entries: Iterable[AbortedTransaction]) -> bytes:
    return b"".join(_ENTRY.pack(0, *entry) for entry in entries)


def parse_entries(content: bytes, path: Path) -> list[AbortedTransaction]:
    if len(content) % ENTRY_SIZE:
        raise StorageError(f"{path}: has {len(content)} bytes, not a multiple of {ENTRY_SIZE}")
    entries = []
    for version, *fields in _ENTRY.iter_unpack(content):
        if version != 0:
            raise StorageError(f"{path}: entry version is {version}; only version 0 is supported")
        entries.append(AbortedTransaction(*fields))
    return entries

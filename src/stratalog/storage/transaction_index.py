"""The .txnindex file: the aborted transactions of a segment. 34-byte entries, version 0, appended as markers arrive.

    version i16, producer id i64, first offset i64, last offset i64, last stable offset i64

Few and small, so it is read whole and written through the file, not mapped. A segment without aborted transactions
has no such file. Crash policy: rebuilt from the log with the segment it belongs to.
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
    def __init__(self, disk: Disk, path: Path) -> None:
        self.path = path
        self._disk = disk
        self._known: list[AbortedTransaction] | None = None  # asked for at each fetch of a read_committed reader

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
        if self._known is not None:
            self._known.append(aborted)

    def entries(self) -> list[AbortedTransaction]:
        known = self._known
        if known is None:
            known = self._known = self._read()
        return known

    def know(self, entries: list[AbortedTransaction]) -> None:
        """What the file holds, for a segment whose files have not got their names yet."""
        self._known = entries

    def _read(self) -> list[AbortedTransaction]:
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return []
        return parse_entries(content, self.path)

    def truncate(self, offset: int) -> None:
        """Drop the transactions that ended at or above `offset`."""
        entries = self.entries()
        kept = [entry for entry in entries if entry.last_offset < offset]
        if len(kept) < len(entries):
            self._known = None
            self._disk.replace(self.path, format_entries(kept))

    def reset(self) -> None:
        self._known = None
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
            raise StorageError(f"{path}: entry version is {version}; 0 is known")
        entries.append(AbortedTransaction(*fields))
    return entries

"""Writes the segment that replaces others. The names of its files end in .cleaned.

Crash policy: .cleaned files don't count as a segment, and are removed when the log is next opened.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from stratalog.records._framing import BatchHeader
from stratalog.storage import names
from stratalog.storage.config import LogConfig
from stratalog.storage.disk import Disk
from stratalog.storage.index_writer import IndexWriter
from stratalog.storage.offset_index import OffsetIndex
from stratalog.storage.time_index import TimeIndex
from stratalog.storage.transaction_index import AbortedTransaction, format_entries

if TYPE_CHECKING:
    from typing_extensions import Buffer


class CleanedSegment:
    """A segment that compaction writes. finish() makes it durable, discard() removes it."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        base_offset: int,
        config: LogConfig,
        chunk: int,
        account: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Create the files. `account` is called with the number of bytes after each write. Raises OSError."""
        self.base_offset = base_offset
        self._account = account
        self.size = 0
        self.aborted: list[AbortedTransaction] = []
        self._disk = disk
        self._directory = directory
        self._chunk = chunk  # bytes per write
        self.unwritten = bytearray()
        self.discard()  # an earlier run may have left files
        self._fd = -1
        try:
            self._fd = disk.open(self._path(names.LOG), create=True)
            room = config.segment_index_bytes
            self.index = IndexWriter(
                OffsetIndex.open_to_grow(disk, self._path(names.OFFSET_INDEX), base_offset, room, keep=False),
                TimeIndex.open_to_grow(disk, self._path(names.TIME_INDEX), base_offset, room, keep=False),
                config.index_interval_bytes,
            )
        except BaseException:
            self.abandon()
            raise

    @property
    def max_timestamp(self) -> int:
        return self.index.max_timestamp

    def append(self, data: Buffer, header: BatchHeader) -> None:
        """Append a batch with its parsed header. Raises OSError."""
        self.unwritten += data
        self.note([header])

    def note(self, headers: list[BatchHeader]) -> None:
        """Index batches that the caller has appended to `unwritten`. Raises OSError."""
        self.index.reserve(len(headers))
        self.index.add(headers, self.size)
        self.size += sum(header.size for header in headers)
        if len(self.unwritten) >= self._chunk:
            self._write()

    def finish(self, aborted: Iterable[AbortedTransaction], modified_ns: int) -> None:
        """Make the content of all files durable, but not their names. Raises OSError. `modified_ns` becomes the time of
        the log file: retention uses the time of the replaced file if records have no timestamps."""
        self._write()
        self.aborted = list(aborted)
        self.index.note_max_timestamp()
        self.index.trim()
        self.index.sync()
        if self.aborted:
            fd = self._disk.open(self._path(names.TRANSACTION_INDEX), create=True)
            try:
                self._disk.write(fd, format_entries(self.aborted), 0)
                self._disk.sync(fd)
            finally:
                self._disk.close(fd)
        self._disk.set_modified(self._fd, modified_ns)
        self._disk.sync(self._fd)
        self.close()

    def close(self) -> None:
        if self._fd >= 0:
            self._disk.close(self._fd)
            self._fd = -1

    def abandon(self) -> None:
        """Close and remove the files after an error. Files that can't be removed don't count, and are removed by the
        next run, or when the log is next opened."""
        self.close()
        with contextlib.suppress(OSError):
            self.discard()

    def discard(self) -> None:
        """Remove the files."""
        for suffix in names.SEGMENT_SUFFIXES:
            self._disk.remove(self._path(suffix))

    def _write(self) -> None:
        if self.unwritten:
            size = len(self.unwritten)
            self._disk.write(self._fd, self.unwritten, self.size - size)
            self.unwritten = bytearray()
            self._account(size)

    def _path(self, suffix: str) -> Path:
        path = names.segment_file(self._directory, self.base_offset, suffix)
        return path.with_name(path.name + names.CLEANED)

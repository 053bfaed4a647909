"""A segment that never changes. Its files are opened when they are first read, and may be closed again at any time.

Opening a log needs only the names and sizes of the files. So a log of a thousand sealed segments opens as fast as its
directory can be listed, and segments that are not read take no memory.
"""

from __future__ import annotations

import errno
import logging
import threading
from pathlib import Path

from stratalog.errors import CorruptBatchError
from stratalog.storage import names
from stratalog.storage.config import LogConfig
from stratalog.storage.disk import Disk
from stratalog.storage.file_slice import LogFile
from stratalog.storage.index_writer import IndexWriter
from stratalog.storage.offset_index import OffsetIndex
from stratalog.storage.open_segments import OpenSegments
from stratalog.storage.scan import check
from stratalog.storage.segment import DoubtfulIndexError, Segment
from stratalog.storage.time_index import TimeIndex
from stratalog.storage.transaction_index import AbortedTransaction

logger = logging.getLogger(__name__)


class SealedSegment(Segment):
    """A segment whose .log never changes. `limit` is the base offset of the next segment."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        base_offset: int,
        size: int,
        limit: int,
        config: LogConfig,
        open_segments: OpenSegments,
        *,
        checked_from: int | None = None,
        max_timestamp: int | None = None,
    ) -> None:
        super().__init__(disk, directory, base_offset, rebuild_lock=threading.RLock())
        self.size = size
        self._limit = limit
        self._config = config
        self._open_segments = open_segments
        self._file: LogFile | None = None
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._max_timestamp = max_timestamp
        if checked_from is not None and checked_from < size:
            self._checked.add(checked_from, size)

    @property
    def limit(self) -> int:
        return self._limit

    @property
    def index_size(self) -> int:
        paths = [self.path(suffix) for suffix in (names.OFFSET_INDEX, names.TIME_INDEX)]
        return max(path.stat().st_size if path.exists() else 0 for path in paths)  # a missing index is rebuilt later

    @property
    def file(self) -> LogFile:
        file = self._file
        if file is None:
            file = LogFile(self._disk, self.path(names.LOG))
            self._check_not_replaced()
            self._file = file
            self._open_segments.opened(self)
        return file

    def open_before_rename(self, state: str, aborted: list[AbortedTransaction]) -> None:
        """Open the files whose names still end in `state`. Until the caller has renamed them and calls renamed(), this
        object must not open a file by its name."""
        log, offsets, times = (
            path.with_name(path.name + state)
            for path in map(self.path, (names.LOG, names.OFFSET_INDEX, names.TIME_INDEX))
        )
        self._file = LogFile(self._disk, log)
        self._offset_index = OffsetIndex.open_sealed(self._disk, offsets, self.base_offset)
        self._time_index = TimeIndex.open_sealed(self._disk, times, self.base_offset)
        self.transaction_index.set_entries(aborted)

    def renamed(self) -> None:
        """Record that the files have their final names. Called once, after open_before_rename()."""
        if self._file is not None:
            self._file.path = self.path(names.LOG)
            self._open_segments.opened(self)

    def _check_not_replaced(self) -> None:
        """Raise FileNotFoundError if the segment is retired: a file that was opened by its name may then belong to the
        segment that replaced this one."""
        if self._retired:
            raise FileNotFoundError(errno.ENOENT, "segment is no longer part of the log", str(self.path(names.LOG)))

    @property
    def open_file(self) -> LogFile | None:
        return None if self._offset_index is None else self._file

    @property
    def offset_index(self) -> OffsetIndex:
        index = self._offset_index
        if index is None:
            try:
                index = OffsetIndex.open_sealed(self._disk, self.path(names.OFFSET_INDEX), self.base_offset)
            except FileNotFoundError as error:
                raise DoubtfulIndexError(f"{error.filename} is missing") from error
            self._check_not_replaced()
            last = index.last
            if last is not None and not (
                self.base_offset <= last.offset < self.limit and 0 <= last.position < self.size
            ):
                raise DoubtfulIndexError(f"{index.path} ends with {last}, which is not in the log")
            self._offset_index = index
        return index

    @property
    def time_index(self) -> TimeIndex:
        index = self._time_index
        if index is None:
            try:
                index = TimeIndex.open_sealed(self._disk, self.path(names.TIME_INDEX), self.base_offset)
            except FileNotFoundError as error:
                raise DoubtfulIndexError(f"{error.filename} is missing") from error
            self._check_not_replaced()
            self._time_index = index
        return index

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp, or -1 if no record has a timestamp."""
        if self._max_timestamp is None:
            try:
                try:
                    self._max_timestamp = self._confirmed_max_timestamp()
                except DoubtfulIndexError:
                    self._max_timestamp = self._with_new_indexes(self._confirmed_max_timestamp)
            except CorruptBatchError as error:
                logger.warning("the largest timestamp of a corrupt segment is taken from its time index: %s", error)
                last = self._time_index.last if self._time_index is not None else None
                self._max_timestamp = -1 if last is None else last.timestamp
        return self._max_timestamp

    def retire(self) -> None:
        super().retire()
        self._open_segments.forget(self)  # or its deleted files would take up space for as long as they are open

    def release(self) -> None:
        """Close the file and the mappings. The next read opens them again."""
        self._file = None
        self._offset_index = None
        self._time_index = None

    def rebuild_indexes(self) -> None:
        logger.warning("%s: indexes are missing or do not fit the log; rebuilding them", self.path(names.LOG))
        # In new files, which are then renamed: a reader may use a mapping of the old ones.
        paths = [self.path(suffix) for suffix in (names.OFFSET_INDEX, names.TIME_INDEX)]
        temporary_paths = [path.with_name(path.name + names.TEMPORARY) for path in paths]
        room = self._config.segment_index_bytes
        writer = IndexWriter(
            OffsetIndex.open_to_grow(self._disk, temporary_paths[0], self.base_offset, room, keep=False),
            TimeIndex.open_to_grow(self._disk, temporary_paths[1], self.base_offset, room, keep=False),
            self._config.index_interval_bytes,
        )
        try:
            self._index_whole_log(writer)
        except CorruptBatchError:
            # The old indexes still lead to the batches after the corrupt one. Without them, only those before are read.
            if all(path.exists() for path in paths):
                raise
        writer.note_max_timestamp()
        writer.trim()
        writer.sync()
        for temporary, path in zip(temporary_paths, paths, strict=True):
            self._disk.rename(temporary, path)
        self._offset_index = self._time_index = None

    def _index_whole_log(self, writer: IndexWriter) -> None:
        previous = self.base_offset - 1
        # Checksums too: an index entry from a corrupt timestamp would silently lead past records.
        for chunk in check(self.file, 0, self.size, previous=previous, limit=self.limit):
            writer.reserve(len(chunk.headers))
            writer.add(chunk.headers, chunk.origin)

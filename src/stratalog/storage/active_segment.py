"""The active segment of a log. Appends write to the end of its .log through the page cache and add index entries.

Its files are opened when they are first needed, and closed when other segments need the descriptors (open_segments.py).
So an idle log holds no descriptor and no mapping.

What survives: a batch whose append returned survives kill -9, because the kernel has its bytes. It survives a power cut
once `flush` returned. An append that fails leaves the segment as it was: bytes that were written are truncated at once,
or, if that fails too, before the next append.

Threads: one writer. Readers see a batch once `size` and `next_offset` cover it, which is after its bytes were written.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from stratalog.clock import Clock
from stratalog.errors import CorruptBatchError, StratalogError
from stratalog.records._framing import BatchHeader, parse_header
from stratalog.records.format import HEADER_SIZE
from stratalog.storage import names
from stratalog.storage.config import LogConfig
from stratalog.storage.disk import Disk
from stratalog.storage.file_slice import LogFile
from stratalog.storage.index_writer import MAX_RELATIVE_OFFSET, IndexWriter
from stratalog.storage.offset_index import OffsetEntry, OffsetIndex
from stratalog.storage.open_segments import OpenSegments
from stratalog.storage.scan import CHUNK, Chunk, check
from stratalog.storage.sealed_segment import SealedSegment
from stratalog.storage.segment import DoubtfulIndexError, Segment
from stratalog.storage.time_index import TimeIndex

if TYPE_CHECKING:
    from typing_extensions import Buffer

logger = logging.getLogger(__name__)

_SLACK_SHARE = 8  # a segment may grow past segment.bytes by an eighth
MAX_POSITION = 2**31 - 1  # the largest position that fits into an index entry
_WRITEBACK_STEP = 8 * 1024 * 1024
_LEAST_PREALLOCATED = 64 * 1024
_MOST_PREALLOCATED = 16 * 1024 * 1024


class ActiveSegment(Segment):
    """A segment that grows at its end. The writer calls append(), flush(), truncate() and seal()."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        base_offset: int,
        config: LogConfig,
        now_ms: int,
        write_lock: threading.RLock,
        open_segments: OpenSegments,
        *,
        size: int | None = None,
    ) -> None:
        """Create the files of a new segment, or prepare an existing segment whose .log has `size` bytes.

        If the file has batches, the next offset and the largest timestamp are unknown until adopt() or recover() was
        called.
        """
        super().__init__(disk, directory, base_offset, rebuild_lock=write_lock)
        self._created_ms = now_ms
        self._apply_settings(config)
        self._open_segments = open_segments
        self._file: LogFile | None = None
        self.size = self._make_files() if size is None else size
        self.next_offset = base_offset
        self._first_timestamp: int | None = None
        self._written_from = self.size
        self._torn_tail = False
        self._preallocated_to = self.size
        self._flushed_to = 0
        self._writeback_to = self.size
        self.sync_failed = False
        # A segment no longer than the distance of two index entries has none, so its index files are not read.
        self._is_short = self.size <= config.index_interval_bytes
        self.index = self._open_indexes(keep=not self._is_short)

    def reconfigure(self, config: LogConfig) -> None:
        self._apply_settings(config)
        self.index.interval = config.index_interval_bytes

    def _apply_settings(self, config: LogConfig) -> None:
        self._config = config
        self._segment_bytes = config.segment_bytes
        longest = config.segment_ms
        if "compact" in config.cleanup_policy:
            # Compaction never cleans the active segment, so it must roll in time for the lag to be kept.
            longest = min(longest, config.max_compaction_lag_ms)
        self._roll_after_ms = longest - random.randint(0, min(config.segment_jitter_ms, longest))

    def _open_indexes(self, *, keep: bool) -> IndexWriter:
        room = self._config.segment_index_bytes
        base = self.base_offset
        return IndexWriter(
            OffsetIndex.open_to_grow(self._disk, self.path(names.OFFSET_INDEX), base, room, keep=keep),
            TimeIndex.open_to_grow(self._disk, self.path(names.TIME_INDEX), base, room, keep=keep),
            self._config.index_interval_bytes,
        )

    def _make_files(self) -> int:
        """Create the files and return the size of the .log, which a roll that failed may have left behind."""
        sizes = []
        for suffix in (names.LOG, names.OFFSET_INDEX, names.TIME_INDEX):
            fd = self._disk.open(self.path(suffix), create=True)
            try:
                sizes.append(self._disk.size(fd))
            finally:
                self._disk.close(fd)
        return sizes[0]

    @property
    def file(self) -> LogFile:
        file = self._file
        return self._open_file() if file is None else file

    def _open_file(self) -> LogFile:
        file = LogFile(self._disk, self.path(names.LOG), writable=True)
        if self._retired:
            # The name may belong to another file by now. The reader starts again with the current segments.
            raise FileNotFoundError(errno.ENOENT, "segment is no longer part of the log", str(file.path))
        self._file = file
        self._open_segments.opened(self)
        return file

    def release(self) -> None:
        """Close the file and the mappings, unless another thread holds the write lock."""
        if not self._rebuild_lock.acquire(blocking=False):
            self._open_segments.still_open(self)
            return
        try:
            self._file = None
            self.index.release()
        finally:
            self._rebuild_lock.release()

    def retire(self) -> None:
        super().retire()
        self._open_segments.forget(self)

    @property
    def open_file(self) -> LogFile | None:
        return self._file

    @property
    def offset_index(self) -> OffsetIndex:
        return self.index.offsets

    @property
    def time_index(self) -> TimeIndex:
        return self.index.times

    @property
    def limit(self) -> int:
        return self.next_offset

    @property
    def index_size(self) -> int:
        return max(self.index.offsets.size, self.index.times.size)

    @property
    def max_timestamp(self) -> int:
        return self.index.max_timestamp

    def append(self, data: Buffer, size: int, headers: list[BatchHeader]) -> None:
        """Append stamped batches. Raises OSError, and then nothing was appended."""
        if self._torn_tail:
            self.cut_torn_tail()
        position = self.size
        file = self._file
        if file is None:
            file = self._open_file()
        self.index.reserve(len(headers))
        if position + size > self._preallocated_to:
            self._preallocate(size)
        try:
            self._disk.write(file.fd, data, position)
        except OSError:
            self._torn_tail = True
            with contextlib.suppress(OSError):
                self.cut_torn_tail()
            raise
        self.index.add(headers, position)
        if self._first_timestamp is None:
            self._first_timestamp = headers[0].max_timestamp
        # In this order, a reader that sees the new size sees the new limit too, and can stop before the limit.
        self.next_offset = headers[-1].next_offset
        self.size = position + size

    def _preallocate(self, size: int) -> None:
        """Allocate blocks ahead of the appends, more for longer segments: that makes a write a fifth cheaper for the
        kernel. An error is ignored, because the write itself fails if it needs blocks and gets none.

        With the setting `preallocate`, the first append allocates the blocks of the whole segment, and fails if the
        disk is full.
        """
        step = max(size, min(max(self.size, _LEAST_PREALLOCATED), _MOST_PREALLOCATED))
        if self._config.preallocate:
            step = max(size, self._segment_bytes - self.size)
        try:
            self._disk.preallocate(self.file.fd, self.size, step)
        except OSError as error:
            if self._config.preallocate and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            logger.debug("%s: can't preallocate blocks: %s", self.path(names.LOG), error)
        self._preallocated_to = self.size + step

    def cut_torn_tail(self) -> None:
        """Truncate the bytes that a failed append may have left. Raises OSError."""
        if self._torn_tail:
            self._truncate_file()
            self._torn_tail = False

    def take_back(self, position: int, next_offset: int) -> None:
        """Undo the last append, which began at `position` and `next_offset`."""
        self.size = position
        self.next_offset = next_offset
        self._torn_tail = True
        with contextlib.suppress(OSError):
            self.cut_torn_tail()
        if position == 0:
            self._first_timestamp = None
        self._truncate_index(next_offset)

    def _truncate_file(self) -> None:
        """Truncate the file to `size`, which also frees the blocks after it."""
        self._disk.truncate(self.file.fd, self.size)
        self._preallocated_to = self.size

    def must_roll_before(self, size: int, last_offset: int, timestamp: int, clock: Clock) -> bool:
        """Return True if batches of `size` bytes that end at `last_offset` belong in a new segment."""
        if self.size == 0:
            return False
        if self.size + size > self._segment_bytes or self.index.is_full:
            return True
        return last_offset - self.base_offset > MAX_RELATIVE_OFFSET or self.is_due_by_time(timestamp, clock)

    def has_slack(self, size: int, last_offset: int) -> bool:
        """Return True if batches still fit into this segment, although segment.bytes or segment.ms require a roll."""
        most = min(self._segment_bytes + self._segment_bytes // _SLACK_SHARE, MAX_POSITION)
        fits = self.size + size <= most and last_offset - self.base_offset <= MAX_RELATIVE_OFFSET
        return fits and not self.index.is_full

    def is_due_by_time(self, timestamp: int, clock: Clock) -> bool:
        """Return True if segment.ms requires a roll. It counts in the records' own time if they have timestamps, as in
        Kafka."""
        first = self._first_timestamp
        if first is None:
            return False
        waited = timestamp - first if first >= 0 and timestamp >= 0 else clock.now_ms() - self._created_ms
        return waited > self._roll_after_ms

    def ensure_checked(self, start: int, end: int) -> None:
        if start < self._written_from:  # from _written_from on, this process wrote the file from checked bytes
            super().ensure_checked(start, min(end, self._written_from))

    def _unchecked(self, start: int, end: int) -> int:
        return super()._unchecked(start, min(end, self._written_from)) if start < self._written_from else 0

    def adopt(self, index_sizes: tuple[int, int] | None = None) -> bool:
        """Open a segment that was closed in order: find its end from its indexes, and return True. Return False if the
        indexes don't fit the log. `index_sizes` are the sizes of the index files, if they are known."""
        if self._is_short:
            headers = list(self.walk_headers(0))
            if headers:
                self.next_offset = headers[-1].next_offset
                self._first_timestamp = headers[0].max_timestamp
            self.index.note_timestamps(headers)
            self.index.adopt(index_sizes)
            return True
        try:
            last = self.offset_index.last
            if last is not None:
                self._locate(last.offset)  # raises unless the log confirms the entry
            for header in self.walk_headers(0 if last is None else last.position):
                self.next_offset = header.next_offset
            self._confirmed_max_timestamp()
        except DoubtfulIndexError as error:
            logger.warning("%s: %s", self.path(names.LOG), error)
            return False
        self._load_first_timestamp()
        self.index.adopt(index_sizes)
        return True

    def recover(
        self, trusted_offset: int, limit: int, on_batches: Callable[[list[BatchHeader]], None] | None = None
    ) -> int:
        """Check the batches that may not have been flushed, index them again, and return the position where checking
        began. Everything before `trusted_offset` is known to be flushed. `on_batches` is called with the headers.

        Raises CorruptBatchError at the first batch that is corrupt or reaches `limit`. The segment then ends before
        this batch, and the caller truncates the file with cut_tail().
        """
        start = self._keep_index_entries(trusted_offset)
        end, self.size = self.size, start
        self._written_from = self._flushed_to = start
        self._note_kept_timestamps()
        for chunk in check(self.file, start, end, previous=self.next_offset - 1, limit=limit):
            if not self._is_short:  # a short segment has no index entries
                self.index.reserve(len(chunk.headers))
            self.index.add(chunk.headers, chunk.origin)
            self.size = chunk.end
            self.next_offset = chunk.headers[-1].next_offset
            if on_batches is not None:
                on_batches(chunk.headers)
        self._load_first_timestamp()
        return start

    def cut_tail(self) -> int:
        """Truncate the file to `size` and return how many bytes that removed."""
        tail = self._disk.size(self.file.fd) - self.size
        if tail:
            self._truncate_file()
        self._written_from = min(self._written_from, self.size)
        self._load_first_timestamp()
        return tail

    def _keep_index_entries(self, trusted_offset: int) -> int:
        """Keep the index entries before `trusted_offset` if the log confirms the last ones. Return the position where
        checking has to start."""
        self.next_offset = self.base_offset
        self.index.truncate(trusted_offset)
        entry = self.offset_index.last
        # The first batch of a segment has no entry, so an entry for position 0 is unused room that a crash left.
        if entry is None or entry.position == 0 or not self._confirms(entry):
            self.index.clear()
            return 0
        self.index.resume(entry.offset)  # the batch of this entry is scanned and indexed again
        before = self.offset_index.last
        if before is not None:
            self.next_offset = before.offset + 1
        return entry.position

    def _note_kept_timestamps(self) -> None:
        """Read the timestamps between the last entry of the time index and `size` from the log: the time index may have
        lost its last entries."""
        last = self.time_index.last
        try:
            header = None if last is None else self._locate(last.offset)
            self.index.note_timestamps(self.walk_headers(0 if header is None else header.position))
        except (DoubtfulIndexError, CorruptBatchError) as error:
            logger.warning("%s: some timestamps before the recovery point are unknown: %s", self.path(names.LOG), error)

    def _confirms(self, entry: OffsetEntry) -> bool:
        """Return True if the log confirms this entry and the last entry of the time index."""
        try:
            self._locate(entry.offset)
            if self.time_index.last is None:
                raise DoubtfulIndexError("the time index is empty")
            self._confirm(self.time_index.last)
        except (DoubtfulIndexError, CorruptBatchError) as error:
            logger.warning("%s: rebuilding the indexes: %s", self.path(names.LOG), error)
            return False
        return True

    def _load_first_timestamp(self) -> None:
        self._first_timestamp = None
        with contextlib.suppress(StratalogError):  # a corrupt batch does not prevent opening the log; reads report it
            header = parse_header(self.file.read(HEADER_SIZE, 0)) if self.size else None
            if header is not None:
                self._first_timestamp = header.max_timestamp

    def truncate(self, position: int, next_offset: int) -> None:
        """Truncate the segment at the position of a batch."""
        self._disk.truncate(self.file.fd, position)
        self._preallocated_to = position
        self.size = position
        self.next_offset = next_offset
        self._written_from = min(self._written_from, position)
        self._checked.cut(position)
        self._flushed_to = min(self._flushed_to, position)
        self._writeback_to = min(self._writeback_to, position)
        self._torn_tail = False
        self._truncate_index(next_offset)
        self.transaction_index.truncate(next_offset)
        if position == 0:
            self._first_timestamp = None

    def _truncate_index(self, next_offset: int) -> None:
        self.index.truncate(next_offset)
        last = self.offset_index.last
        self.index.note_timestamps(self.walk_headers(0 if last is None else last.position))

    def rebuild_indexes(self) -> None:
        """Write the entries of both indexes again, in place. Concurrent readers see fewer entries meanwhile, and walk
        further. Raises CorruptBatchError and keeps the indexes if the log is corrupt."""
        for _ in self._checked_chunks():
            pass  # check everything first: the old indexes still lead to the batches after a corrupt one
        self.index.clear()
        for chunk in self._checked_chunks():
            self.index.reserve(len(chunk.headers))
            self.index.add(chunk.headers, chunk.origin)

    def _checked_chunks(self) -> Iterator[Chunk]:
        return check(self.file, 0, self.size, previous=self.base_offset - 1, limit=self.limit)

    def flush(self) -> None:
        """Make everything up to `size` durable, including the indexes. Raises OSError.

        A failed sync may mark pages clean that never reached the disk, and the next sync would then succeed without
        them. So this method writes them again first. It does the same after a crash with everything after the recovery
        point, because a sync of the earlier process may have failed.
        """
        end = self.size
        file = self._file_to_sync()
        if file is None:
            return
        if self.sync_failed:
            self._rewrite(file, self._flushed_to, end)
        try:
            self._disk.sync(file.fd)
        except OSError:
            self.sync_failed = True
            raise
        self.sync_failed = False
        self._flushed_to = end
        self.index.sync()
        self.transaction_index.sync()

    def _file_to_sync(self) -> LogFile | None:
        """Return the open file. Return None if the segment was sealed in the meantime: the roll has synced it."""
        file = self._file
        if file is None:
            with self._rebuild_lock:
                if not self._retired:
                    file = self.file
        return file

    def start_writeback(self) -> None:
        """Ask the kernel to start writing dirty pages, so that the flush of a roll finds little left to do."""
        end = self.size
        if end - self._writeback_to >= _WRITEBACK_STEP:
            file = self._file_to_sync()
            if file is not None:
                self._disk.start_writeback(file.fd, self._writeback_to, end - self._writeback_to)
                self._writeback_to = end

    def _rewrite(self, file: LogFile, position: int, end: int) -> None:
        while position < end:
            data = file.read(min(CHUNK, end - position), position)
            if not data:
                raise OSError(errno.EIO, f"file ends at {position}, but the log at {end}", str(file.path))
            self._disk.write(file.fd, data, position)
            position += len(data)

    def finish(self) -> None:
        """Free the blocks that were allocated ahead, and finish the indexes as for a sealed segment. Raises OSError."""
        if self._preallocated_to != self.size or self._torn_tail:
            self._truncate_file()
        self.index.finish()

    def seal(self, open_segments: OpenSegments, limit: int) -> SealedSegment:
        """Return the sealed segment of the same files. An error here is only logged: it costs some disk space, or a
        rebuild of the indexes at the next read."""
        try:
            self.finish()
        except OSError as error:
            logger.warning("%s: can't trim the segment's files: %s", self.path(names.LOG), error)
        return SealedSegment(
            self._disk,
            self._directory,
            self.base_offset,
            self.size,
            limit,
            self._config,
            open_segments,
            checked_from=self._written_from,
            max_timestamp=self.max_timestamp,
        )

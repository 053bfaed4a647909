"""The segment that grows: appends go to the end of its .log through the page cache, and its indexes grow beside it.

Its files are opened when they are first needed, and let go when others need the descriptors (open_segments.py): a log
that nobody uses holds none, and no mapping.

What survives: a batch whose append returned survives kill -9 (the bytes are the kernel's), and a power cut once
`flush` returned. An append that fails leaves the segment as it was: bytes that did get written are cut off at once,
or, where even that fails, before the next append.

Threads: one writer. Readers see a batch when `size` and `next_offset` cover it, which is after its bytes are there.
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

_SLACK_SHARE = 8  # of segment.bytes
MAX_POSITION = 2**31 - 1  # an index entry has that much room for it
_WRITEBACK_STEP = 8 * 1024 * 1024
_LEAST_PREALLOCATED = 64 * 1024
_MOST_PREALLOCATED = 16 * 1024 * 1024


class ActiveSegment(Segment):
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
        """Of a new segment, whose files are made; or of one whose .log has `size` bytes. Files are opened when they
        are first needed, and may be let go again.

        The next offset and the largest timestamp are not known yet for a file that has batches: adopt() or
        recover() must follow.
        """
        super().__init__(disk, directory, base_offset, rebuild_lock=write_lock)
        self._created_ms = now_ms
        self._go_by(config)
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
        # A log that is no longer than the distance of two entries has none: what its files hold is not looked at.
        self._is_short = self.size <= config.index_interval_bytes
        self.index = self._open_indexes(keep=not self._is_short)

    def reconfigure(self, config: LogConfig) -> None:
        self._go_by(config)
        self.index.interval = config.index_interval_bytes

    def _go_by(self, config: LogConfig) -> None:
        self._config = config
        self._segment_bytes = config.segment_bytes
        longest = config.segment_ms
        if "compact" in config.cleanup_policy:
            longest = min(
                longest, config.max_compaction_lag_ms
            )  # or the lag could not be kept: this segment is not cleaned
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
        """The size of the .log: a roll that failed may have left one."""
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
            # A reader came too late, and the name may be another file's. It looks again.
            raise FileNotFoundError(errno.ENOENT, "segment is not part of the log any more", str(file.path))
        self._file = file
        self._open_segments.opened(self)
        return file

    def release(self) -> None:
        """Let go of the file and the mappings, unless somebody writes."""
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
        """Add stamped batches. Raises OSError, and then nothing was added."""
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
        # In this order: whoever finds the new size finds the new limit too, and can stop before what it must not read.
        self.next_offset = headers[-1].next_offset
        self.size = position + size

    def _preallocate(self, size: int) -> None:
        """Get blocks ahead, more the longer the segment is: a write that finds them costs the kernel a fifth less.
        Where there are none to be had, the write itself will say so, or not need them.

        With `preallocate`, blocks for the whole segment are got by its first append, which fails where there are none.
        """
        step = max(size, min(max(self.size, _LEAST_PREALLOCATED), _MOST_PREALLOCATED))
        if self._config.preallocate:
            step = max(size, self._segment_bytes - self.size)
        try:
            self._disk.preallocate(self.file.fd, self.size, step)
        except OSError as error:
            if self._config.preallocate and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            logger.debug("%s: can't be preallocated: %s", self.path(names.LOG), error)
        self._preallocated_to = self.size + step

    def cut_torn_tail(self) -> None:
        """Cut off what an append that failed may have left. Raises OSError."""
        if self._torn_tail:
            self._truncate_file()
            self._torn_tail = False

    def take_back(self, position: int, next_offset: int) -> None:
        """Undo the last append, which began there: as if writing it had failed."""
        self.size = position
        self.next_offset = next_offset
        self._torn_tail = True
        with contextlib.suppress(OSError):
            self.cut_torn_tail()
        if position == 0:
            self._first_timestamp = None
        self._truncate_index(next_offset)

    def _truncate_file(self) -> None:
        """Make the file end at `size`, and give back the blocks behind."""
        self._disk.truncate(self.file.fd, self.size)
        self._preallocated_to = self.size

    def must_roll_before(self, size: int, last_offset: int, timestamp: int, clock: Clock) -> bool:
        """Whether batches of `size` bytes that end at `last_offset` belong in a new segment."""
        if self.size == 0:
            return False
        if self.size + size > self._segment_bytes or self.index.is_full:
            return True
        return last_offset - self.base_offset > MAX_RELATIVE_OFFSET or self.is_due_by_time(timestamp, clock)

    def has_slack(self, size: int, last_offset: int) -> bool:
        """Whether batches still fit in practice, though segment.bytes or segment.ms ask for a new segment."""
        most = min(self._segment_bytes + self._segment_bytes // _SLACK_SHARE, MAX_POSITION)
        fits = self.size + size <= most and last_offset - self.base_offset <= MAX_RELATIVE_OFFSET
        return fits and not self.index.is_full

    def is_due_by_time(self, timestamp: int, clock: Clock) -> bool:
        """segment.ms counts in the records' own time where they have one, as in Kafka."""
        first = self._first_timestamp
        if first is None:
            return False
        waited = timestamp - first if first >= 0 and timestamp >= 0 else clock.now_ms() - self._created_ms
        return waited > self._roll_after_ms

    def ensure_checked(self, start: int, end: int) -> None:
        if start < self._written_from:  # from there on, this process wrote it from checked bytes
            super().ensure_checked(start, min(end, self._written_from))

    def _unchecked(self, start: int, end: int) -> int:
        return super()._unchecked(start, min(end, self._written_from)) if start < self._written_from else 0

    def adopt(self, index_sizes: tuple[int, int] | None = None) -> bool:
        """Take over a segment that was closed in order: find its end from its indexes. False: they don't fit it.
        `index_sizes`: of their files, where they are known."""
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
                self._locate(last.offset)  # believes the entry only if the log agrees
            for header in self.walk_headers(0 if last is None else last.position):
                self.next_offset = header.next_offset
            self._confirmed_max_timestamp()
        except DoubtfulIndexError as error:
            logger.warning("%s: %s", self.path(names.LOG), error)
            return False
        self._load_first_timestamp()
        self.index.adopt(index_sizes)
        return True

    def recover(self, trusted_offset: int, limit: int, found: Callable[[list[BatchHeader]], None] | None = None) -> int:
        """Check every batch from about `trusted_offset` on, which is known to be flushed, and index it again. `found`
        is told of each.

        Returns the position where checking began. Raises CorruptBatchError at the first batch that is not sound, or
        does not lie below `limit`: everything before it is taken in then, and cut_tail() makes it the end.
        """
        start = self._keep_index_entries(trusted_offset)
        end, self.size = self.size, start
        self._written_from = self._flushed_to = start
        self._note_kept_timestamps()
        for chunk in check(self.file, start, end, previous=self.next_offset - 1, limit=limit):
            if not self._is_short:  # or there will be no entries
                self.index.reserve(len(chunk.headers))
            self.index.add(chunk.headers, chunk.origin)
            self.size = chunk.end
            self.next_offset = chunk.headers[-1].next_offset
            if found is not None:
                found(chunk.headers)
        self._load_first_timestamp()
        return start

    def cut_tail(self) -> int:
        """Make `size` the end of the file; how many bytes were cut off."""
        tail = self._disk.size(self.file.fd) - self.size
        if tail:
            self._truncate_file()
        self._written_from = min(self._written_from, self.size)
        self._load_first_timestamp()
        return tail

    def _keep_index_entries(self, trusted_offset: int) -> int:
        """Keep the index entries below `trusted_offset`, if the last ones are right; where to go on from."""
        self.next_offset = self.base_offset
        self.index.truncate(trusted_offset)
        entry = self.offset_index.last
        # The first batch of a segment gets no entry: at position 0 there is only room that was not used before a crash.
        if entry is None or entry.position == 0 or not self._confirms(entry):
            self.index.clear()
            return 0
        self.index.resume(entry.offset)  # its batch is scanned again, and gets its entry again
        before = self.offset_index.last
        if before is not None:
            self.next_offset = before.offset + 1
        return entry.position

    def _note_kept_timestamps(self) -> None:
        """The time index may have lost its last entries: what lies between its last one and `size` is asked itself."""
        last = self.time_index.last
        try:
            header = None if last is None else self._locate(last.offset)
            self.index.note_timestamps(self.walk_headers(0 if header is None else header.position))
        except (DoubtfulIndexError, CorruptBatchError) as error:
            logger.warning(
                "%s: timestamps before the recovery point are not all known: %s", self.path(names.LOG), error
            )

    def _confirms(self, entry: OffsetEntry) -> bool:
        """Whether the log says the same as this entry and the last of the time index."""
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
        with contextlib.suppress(StratalogError):  # found when it is read; it is no reason not to open the log
            header = parse_header(self.file.read(HEADER_SIZE, 0)) if self.size else None
            if header is not None:
                self._first_timestamp = header.max_timestamp

    def truncate(self, position: int, next_offset: int) -> None:
        """Cut the segment off at a batch's position."""
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
        """In place, as readers may be looking: they see fewer entries meanwhile, and walk further."""
        for _ in self._checked_chunks():
            pass  # raises where the log is damaged: the old indexes still lead to what lies behind, and stay
        self.index.clear()
        for chunk in self._checked_chunks():
            self.index.reserve(len(chunk.headers))
            self.index.add(chunk.headers, chunk.origin)

    def _checked_chunks(self) -> Iterator[Chunk]:
        return check(self.file, 0, self.size, previous=self.base_offset - 1, limit=self.limit)

    def flush(self) -> None:
        """Make everything up to `size` durable, the indexes too. Raises OSError.

        A failed sync may leave pages marked clean that never reached the disk, and the next sync would then
        promise what it can't keep: so they are written again first. So is what was found after a crash behind the
        recovery point: the sync that failed may be an earlier process's.
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
        """None: the segment was sealed meanwhile, and the roll has synced it."""
        file = self._file
        if file is None:
            with self._rebuild_lock:
                if not self._retired:
                    file = self.file
        return file

    def start_writeback(self) -> None:
        """Ask the kernel to begin writing what it holds, so that the flush at a roll finds little left to do."""
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
                raise OSError(errno.EIO, f"file ends at {position}, before the log does, at {end}", str(file.path))
            self._disk.write(file.fd, data, position)
            position += len(data)

    def finish(self) -> None:
        """Give back what was allocated ahead, and leave the indexes as a sealed segment has them. Raises OSError."""
        if self._preallocated_to != self.size or self._torn_tail:
            self._truncate_file()
        self.index.finish()

    def seal(self, open_segments: OpenSegments, limit: int) -> SealedSegment:
        """The same segment, as one that never changes. What can fail here costs some space, or a rebuild of the indexes
        when they are next read, and is no reason not to go on."""
        try:
            self.finish()
        except OSError as error:
            logger.warning("%s: can't be trimmed: %s", self.path(names.LOG), error)
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

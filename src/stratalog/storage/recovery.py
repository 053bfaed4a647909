"""Opens a partition directory: finds its segments and the log end offset, and recovers the log after a crash.

After a clean shutdown, only the last few kilobytes of the last segment are scanned. After any other stop, every batch
after the recovery point is checked. The log then ends before the first batch that is torn or corrupt: this batch and
everything after it are removed, and the report says so. Batches before the recovery point were flushed. They are
checked when they are first read.

Segments are removed from the highest to the lowest, each removal durable before the next one, so that a crash in
between leaves no gap.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from stratalog.errors import CorruptBatchError
from stratalog.records._framing import BatchHeader
from stratalog.storage import names
from stratalog.storage.active_segment import ActiveSegment
from stratalog.storage.compaction import swap
from stratalog.storage.config import LogConfig
from stratalog.storage.disk import Disk
from stratalog.storage.leader_epochs import LeaderEpochs
from stratalog.storage.open_segments import OpenSegments
from stratalog.storage.sealed_segment import SealedSegment
from stratalog.storage.segment_files import remove_segment_files

logger = logging.getLogger(__name__)


class Cut(NamedTuple):
    """The tail of a log that recovery removed because its first batch was torn or corrupt."""

    file: str
    position: int
    bytes: int
    reason: str


@dataclass(slots=True)
class RecoveryReport:
    """The result of opening a log: what was scanned, what was removed, and which problems there were."""

    clean: bool  # the log was closed in order
    segments_scanned: int = 0
    bytes_scanned: int = 0
    cut: Cut | None = None
    segments_removed: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def note(self, problem: str) -> None:
        logger.warning("%s", problem)
        self.problems.append(problem)


class ScannedEpochs:
    """The leader epochs of the batches that were scanned, which are all batches from `from_offset` on."""

    def __init__(self) -> None:
        self.from_offset = 2**63 - 1  # nothing was scanned
        self.epochs = LeaderEpochs()

    def note(self, headers: Sequence[BatchHeader]) -> None:
        self.from_offset = min(self.from_offset, headers[0].base_offset)
        latest = self.epochs.latest
        for header in headers:
            if header.leader_epoch != latest:
                self.epochs.learn(header.leader_epoch, header.base_offset)
                latest = self.epochs.latest


class Opened(NamedTuple):
    """The segments of a log that was opened, with the report and the leader epochs that were scanned."""

    sealed: list[SealedSegment]
    active: ActiveSegment
    report: RecoveryReport
    scanned: ScannedEpochs
    files: frozenset[str]  # the names in the partition's directory


class Loader:
    """Opens the log of one partition directory with open(), which is called once. open_active() may be called at any
    time."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        config: LogConfig,
        open_segments: OpenSegments,
        active_segments: OpenSegments,
        now_ms: int,
        write_lock: threading.RLock,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._config = config
        self._open_segments = open_segments
        self._active_segments = active_segments
        self._now_ms = now_ms
        self._write_lock = write_lock
        self._scanned = ScannedEpochs()
        self._files: frozenset[str] = frozenset()

    def open(self, *, clean: bool, recovery_point: int, log_start_offset: int) -> Opened:
        report = RecoveryReport(clean)
        sizes = self._list_segments(report)
        bases = sorted(sizes)
        if not bases:
            active = self.open_active(log_start_offset)
            return Opened([], active, report, self._scanned, self._files)
        first_to_scan = len(bases) - 1 if clean else _floor(bases, recovery_point)
        sealed = [
            self._sealed(base, sizes[base], following)
            for base, following in itertools.pairwise(bases[: first_to_scan + 1])
        ]
        # A log that was closed in order is only scanned if its indexes don't fit it, and then no entry is trusted.
        trusted_offset = 0 if clean else recovery_point
        opened = self._open_tail(sealed, bases[first_to_scan:], sizes, trusted_offset, report)
        if opened.active.next_offset > recovery_point:
            _cut_misplaced_batch(opened.active, recovery_point, report)
        return opened

    def open_active(self, base_offset: int, size: int | None = None) -> ActiveSegment:
        """Create a new active segment, or open one whose .log has `size` bytes."""
        return ActiveSegment(
            self._disk,
            self._directory,
            base_offset,
            self._config,
            self._now_ms,
            self._write_lock,
            self._active_segments,
            size=size,
        )

    def _sealed(self, base_offset: int, size: int, limit: int) -> SealedSegment:
        return SealedSegment(self._disk, self._directory, base_offset, size, limit, self._config, self._open_segments)

    def _list_segments(self, report: RecoveryReport) -> dict[int, int]:
        """Return the base offsets and sizes of the segments. Finish interrupted compactions, and remove leftovers of
        deletions and of unfinished writes."""
        entries = self._disk.list(self._directory)
        if any(name.endswith((names.SWAP, names.CLEANED)) for name in entries):
            for note in swap.finish_all(self._disk, self._directory):
                report.note(note)
            entries = self._disk.list(self._directory)
        sizes: dict[int, int] = {}
        indexes: list[tuple[int, str]] = []
        removed: set[str] = set()
        for name, entry in sorted(entries.items()):
            parsed = names.parse_segment_file(name)
            if parsed is None:
                if names.is_leftover(name):
                    self._remove(name, removed)
            elif parsed[1] == names.LOG:
                sizes[parsed[0]] = entry.stat().st_size
            elif parsed[1] in names.SEGMENT_SUFFIXES:
                indexes.append((parsed[0], name))
        for base, name in indexes:
            if base not in sizes:
                report.note(f"{self._directory / name}: removed, because it is an index without a log")
                self._remove(name, removed)
        self._files = frozenset(entries.keys() - removed)
        return sizes

    def _remove(self, name: str, removed: set[str]) -> None:
        self._disk.remove(self._directory / name)
        removed.add(name)

    def _index_sizes(self, base_offset: int) -> tuple[int, int] | None:
        paths = [
            names.segment_file(self._directory, base_offset, suffix)
            for suffix in (names.OFFSET_INDEX, names.TIME_INDEX)
        ]
        if not all(path.name in self._files for path in paths):
            return None
        offsets, times = (path.stat().st_size for path in paths)
        return offsets, times

    def _open_tail(
        self,
        sealed: list[SealedSegment],
        bases: list[int],
        sizes: Mapping[int, int],
        trusted_offset: int,
        report: RecoveryReport,
    ) -> Opened:
        """Open and check the segments from the first one that has to be scanned. The last one becomes the active
        segment."""
        for index, base in enumerate(bases):
            following = bases[index + 1] if index + 1 < len(bases) else None
            segment = self.open_active(base, sizes[base])
            if report.clean and following is None and self._adopt(segment, report):
                return Opened(sealed, segment, report, self._scanned, self._files)
            if not self._recover(segment, trusted_offset, following, report):
                self._remove_following(bases[index + 1 :], report)
                return Opened(sealed, segment, report, self._scanned, self._files)
            if following is None:
                return Opened(sealed, segment, report, self._scanned, self._files)
            sealed.append(segment.seal(self._open_segments, limit=following))
        raise AssertionError("a log has at least one segment")

    def _adopt(self, segment: ActiveSegment, report: RecoveryReport) -> bool:
        try:
            fits = segment.adopt(self._index_sizes(segment.base_offset))
        except CorruptBatchError as error:
            report.note(f"the log was closed in order, but is corrupt now: {error}")
            fits = False
        return fits

    def _recover(
        self, segment: ActiveSegment, trusted_offset: int, following: int | None, report: RecoveryReport
    ) -> bool:
        """Return True if the segment is valid to its end. Otherwise truncate it before its first torn or corrupt batch
        and return False."""
        report.segments_scanned += 1
        before = segment.size
        limit = 2**63 - 1 if following is None else following
        segment.sync_failed = not report.clean  # a sync of the earlier process may have failed
        try:
            start = segment.recover(trusted_offset, limit, self._scanned.note)
        except CorruptBatchError as error:
            cut = segment.cut_tail()
            report.bytes_scanned += before
            report.cut = Cut(str(segment.path(names.LOG)), segment.size, cut, error.reason)
            report.note(
                f"{report.cut.file}: removed the last {cut} bytes, from position {segment.size}: {error.reason}"
            )
            return False
        report.bytes_scanned += before - start
        return True

    def _remove_following(self, bases: list[int], report: RecoveryReport) -> None:
        for base in reversed(bases):
            path = names.segment_file(self._directory, base, names.LOG)
            report.note(f"{path}: removed, because it is after a torn or corrupt batch")
            report.segments_removed.append(base)
            remove_segment_files(self._disk, self._directory, base)
            self._disk.sync_directory(self._directory)


def _cut_misplaced_batch(segment: ActiveSegment, known_end: int, report: RecoveryReport) -> None:
    """Remove the last batch if its base offset is corrupt. The checksum does not cover base offsets. Those of all other
    batches are confirmed by the batch that follows, but the last batch has none.

    A log that was closed in order left its end in a checkpoint. After a crash, there is no such proof. But offsets in
    the active segment have no gaps, so if there is a single gap, just before the last of several batches and after
    `known_end`, the batch is corrupt. A replica of a compacted log has many gaps. A segment of one or two batches is
    assumed to be valid.
    """
    if not _ends_after_gap(segment):
        return
    followed = gaps = 0
    before = end = segment.base_offset
    last: BatchHeader | None = None
    try:
        for header in segment.walk_headers(0):
            if last is not None:
                followed += header.base_offset == end
                gaps += header.base_offset != end
            last, before, end = header, end, header.next_offset
    except CorruptBatchError:
        return
    if last is None or last.base_offset == known_end:  # appended to a compacted log that was truncated within a gap
        return
    misplaced = gaps == 1 and followed > 0
    if report.clean:
        misplaced = before + last.last_offset_delta + 1 == known_end
    if not misplaced:
        return
    reason = f"offset {last.base_offset} follows {before - 1}, but no other offset in the segment leaves a gap"
    report.cut = Cut(str(segment.path(names.LOG)), segment.size - last.size, last.size, reason)
    report.note(f"{report.cut.file}: removed the last {last.size} bytes, from position {report.cut.position}: {reason}")
    segment.truncate(report.cut.position, before)


def _ends_after_gap(segment: ActiveSegment) -> bool:
    """Return True if no batch contains the offset before the last batch. Needs only two lookups, no walk."""
    try:
        last = segment.locate(segment.next_offset - 1)
        if last is None or last.base_offset == segment.base_offset:
            return False
        before = segment.locate(last.base_offset - 1)
    except CorruptBatchError:
        return False
    return before is not None and before.position == last.position


def _floor(bases: list[int], offset: int) -> int:
    """Return the index of the last base at or before `offset`, or 0."""
    return max((index for index, base in enumerate(bases) if base <= offset), default=0)

"""Opening a partition's directory: which segments it has, where the log ends, and what a crash left behind.

After a clean stop nothing is scanned but the last few kilobytes of the last segment. After any other stop every batch
behind the recovery point is checked; the first that is not sound ends the log: it and all behind it are cut off, and
the report says so. What lies before the recovery point was flushed, and is checked when it is first read.

Order of removal: highest segment first, each made durable, so that a crash in the middle leaves no hole.
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
    """Where a damaged or torn tail was cut off."""

    file: str
    position: int
    bytes: int
    reason: str


@dataclass(slots=True)
class RecoveryReport:
    """What opening the log found and did."""

    clean: bool
    segments_scanned: int = 0
    bytes_scanned: int = 0
    cut: Cut | None = None
    segments_removed: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def note(self, problem: str) -> None:
        logger.warning("%s", problem)
        self.problems.append(problem)


class ScannedEpochs:
    """The leader epochs of the batches that were scanned: all batches at or behind `from_offset`."""

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
    sealed: list[SealedSegment]
    active: ActiveSegment
    report: RecoveryReport
    scanned: ScannedEpochs
    files: frozenset[str]  # the names in the partition's directory


class Loader:
    """One use: open(). Holds what every step needs."""

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
        # A log that was closed in order is only scanned where its indexes turn out wrong; then they count for nothing.
        trusted_offset = 0 if clean else recovery_point
        opened = self._open_tail(sealed, bases[first_to_scan:], sizes, trusted_offset, report)
        if opened.active.next_offset > recovery_point:
            _cut_misplaced_batch(opened.active, recovery_point, report)
        return opened

    def open_active(self, base_offset: int, size: int | None = None) -> ActiveSegment:
        """A new one, or one whose .log has `size` bytes."""
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
        """Base offsets and sizes; leftovers of deletions and of unfinished writes are removed."""
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
                report.note(f"{self._directory / name}: an index without a log; removed")
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
        """Open the segments that may need repair; the last of them becomes the active one."""
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
            report.note(f"closed in order, but damaged since: {error}")
            fits = False
        return fits

    def _recover(
        self, segment: ActiveSegment, trusted_offset: int, following: int | None, report: RecoveryReport
    ) -> bool:
        """Whether the segment is sound to its end; if not, it was cut."""
        report.segments_scanned += 1
        before = segment.size
        limit = 2**63 - 1 if following is None else following
        segment.sync_failed = not report.clean  # for all that can be known of it
        try:
            start = segment.recover(trusted_offset, limit, self._scanned.note)
        except CorruptBatchError as error:
            cut = segment.cut_tail()
            report.bytes_scanned += before
            report.cut = Cut(str(segment.path(names.LOG)), segment.size, cut, error.reason)
            report.note(f"{report.cut.file}: cut off {cut} bytes from position {segment.size}: {error.reason}")
            return False
        report.bytes_scanned += before - start
        return True

    def _remove_following(self, bases: list[int], report: RecoveryReport) -> None:
        for base in reversed(bases):
            report.note(f"{names.segment_file(self._directory, base, names.LOG)}: lies behind the cut; removed")
            report.segments_removed.append(base)
            remove_segment_files(self._disk, self._directory, base)
            self._disk.sync_directory(self._directory)


def _cut_misplaced_batch(segment: ActiveSegment, known_end: int, report: RecoveryReport) -> None:
    """Cut off a last batch whose base offset is damaged. It is outside the checksum, and what proves all others, that
    the next batch goes on from there, is missing.

    A log that was closed in order left its end in a checkpoint. After a crash nothing tells; but offsets in the segment
    that grows have no gaps, so the only one among several batches, just before the last of them and behind `known_end`,
    is damage. (A replica of a compacted log has many, and a segment of one or two batches is given the benefit of the
    doubt.)
    """
    if not _ends_behind_gap(segment):
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
    if last is None or last.base_offset == known_end:  # appended to a compacted log that was cut, in a gap
        return
    misplaced = gaps == 1 and followed > 0
    if report.clean:
        misplaced = before + last.last_offset_delta + 1 == known_end
    if not misplaced:
        return
    reason = f"offset {last.base_offset} follows {before - 1}, where all others follow without a gap"
    report.cut = Cut(str(segment.path(names.LOG)), segment.size - last.size, last.size, reason)
    report.note(f"{report.cut.file}: cut off {last.size} bytes from position {report.cut.position}: {reason}")
    segment.truncate(report.cut.position, before)


def _ends_behind_gap(segment: ActiveSegment) -> bool:
    """Whether the offset before the last batch's is in no batch: found by two look-ups, without a walk."""
    try:
        last = segment.locate(segment.next_offset - 1)
        if last is None or last.base_offset == segment.base_offset:
            return False
        before = segment.locate(last.base_offset - 1)
    except CorruptBatchError:
        return False
    return before is not None and before.position == last.position


def _floor(bases: list[int], offset: int) -> int:
    """The index of the last base at or below `offset`."""
    return max((index for index, base in enumerate(bases) if base <= offset), default=0)

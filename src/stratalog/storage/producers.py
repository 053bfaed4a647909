"""The producer state of a log, and the .snapshot files that save it.

A snapshot is written at each roll and at a clean close; its name is the offset up to which it counts. It has a
checksum: one that a crash spoiled is thrown away, and an older one, or the log itself, tells the same at more cost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from stratalog.clock import Clock
from stratalog.errors import (
    CorruptBatchError,
    CorruptCheckpointError,
    InvalidProducerEpochError,
    StorageError,
    TooManyProducersError,
)
from stratalog.records._framing import BatchHeader
from stratalog.records.batch import Batch
from stratalog.records.format import ControlType
from stratalog.records.reader import read_control
from stratalog.storage import names
from stratalog.storage.disk import Disk
from stratalog.storage.producer_state import ProducerBatch, ProducerState, check_follows
from stratalog.storage.recovery import RecoveryReport
from stratalog.storage.segment import Segment
from stratalog.storage.transaction_index import AbortedTransaction

IDLE_MS = 15 * 60_000
"""A producer that wrote nothing for so long has no batch that it may still send again: producers give up after
delivery.timeout.ms, two minutes by default."""


class ProducerTracker:
    """Keeps at most `max_producers` producers.

    Clients choose producer ids, so they could make a log remember any number of them, in memory and in snapshots. When
    the limit is reached, a new producer replaces the least recently used one that is idle (IDLE_MS) and has no
    transaction open. Without such a producer the new one is refused: to forget an active producer could let a batch
    that it sends again into the log twice, without an error. Idleness is judged by timestamps of batches, as
    producer.id.expiration.ms is.
    """

    def __init__(self, disk: Disk, directory: Path, clock: Clock, max_producers: int) -> None:
        self._clock = clock
        self._max_producers = max_producers
        self._disk = disk
        self._directory = directory
        self.state = ProducerState()
        self.saved_at = -1  # the offset of the newest snapshot that is on disk and durable

    def find_duplicate(self, headers: Sequence[BatchHeader]) -> ProducerBatch | None:
        """The batches in the log that these repeat, as one. None where any of them is new."""
        found: list[ProducerBatch] = []
        for header in headers:
            duplicate = None
            if header.producer_id >= 0 and not header.is_control:
                duplicate = self.state.find_duplicate(header)
            if duplicate is None:
                return None  # if others are duplicates, check() refuses them: none may get lost behind an "I have it"
            found.append(duplicate)
        first, last = found[0], found[-1]
        timestamp = max(batch.timestamp for batch in found)
        return ProducerBatch(last.last_sequence, last.last_offset, last.last_offset - first.base_offset, timestamp)

    def check(self, headers: Sequence[BatchHeader]) -> None:
        """Raise unless each batch follows its producer's last, be that in the log or before it in this append. Raise
        TooManyProducersError if there is no room for new producers."""
        previous: dict[int, BatchHeader] = {}
        for header in headers:
            if header.producer_id < 0 or header.is_control:
                continue
            before = previous.get(header.producer_id)
            if before is None:
                self.state.check(header)
            else:
                check_follows(header, before.producer_epoch, before.last_sequence)
            previous[header.producer_id] = header
        if len(self.state) + len(previous) > self._max_producers:
            new = sum(self.state.get(producer_id) is None for producer_id in previous)
            if new and not self._make_room(new):
                raise TooManyProducersError(
                    f"{self._directory.name} has {len(self.state)} producers that wrote within {IDLE_MS // 60_000} "
                    f"minutes or have a transaction open, so producer id {headers[-1].producer_id} is refused: "
                    f"stratalog.max.producer.ids.per.partition is {self._max_producers}; use fewer producers, or raise "
                    "the setting"
                )

    def _make_room(self, count: int) -> bool:
        return self.state.make_room(count, self._max_producers, self._clock.now_ms() - IDLE_MS)

    def check_epochs(self, headers: Sequence[BatchHeader]) -> None:
        """Raise where a marker, or an offset in a transaction, comes from before a newer instance took over."""
        for header in headers:
            producer = self.state.get(header.producer_id)
            if producer is not None and header.producer_epoch < producer.epoch:
                what = "marker" if header.is_control else "batch"
                raise InvalidProducerEpochError(
                    f"producer {header.producer_id} has epoch {producer.epoch} here; a {what} of epoch "
                    f"{header.producer_epoch} comes too late"
                )

    def note(self, batch: Batch, segment: Segment) -> None:
        """Take note of a batch of a producer that is in the log, in `segment`."""
        header = batch.header
        if not header.is_control:
            self.state.update(header)
            return
        if header.record_count == 0:
            return  # what compaction left of a marker; of its transaction there is nothing left
        control, coordinator_epoch = read_control(batch)
        if control not in (ControlType.ABORT, ControlType.COMMIT):
            return
        aborted = control is ControlType.ABORT
        completed = self.state.complete(header, aborted=aborted, coordinator_epoch=coordinator_epoch)
        if completed is not None and completed.aborted:
            stable = self.state.last_stable_offset_after(completed)
            segment.transaction_index.append(
                AbortedTransaction(completed.producer_id, completed.first_offset, completed.last_offset, stable)
            )

    def load(
        self,
        segments: Sequence[Segment],
        end_offset: int,
        report: RecoveryReport,
        files: Collection[str] | None = None,
    ) -> None:
        """Make the state that `segments` up to `end_offset` imply: all from the one with the log's start on, and none
        before it, which a power cut may have brought back with others missing in between. `files`: the names in the
        directory, where they are known."""
        if files is None:
            files = self._disk.list(self._directory)
        tail = segments[-1]
        rebuild_tail = not report.clean and tail.path(names.TRANSACTION_INDEX).name in files
        at_most = tail.base_offset if rebuild_tail else end_offset
        start = self._load_snapshot(files, segments[0].base_offset, at_most, end_offset, report)
        for segment in segments:
            # A last segment that lost all its batches may still list their transactions.
            if segment.limit > start or (rebuild_tail and segment is tail):
                if segment.base_offset > start:
                    self.save(segment.base_offset, durable=False)  # it was lost; the segments before may go
                self._replay(segment, start, report)

    def _load_snapshot(
        self, files: Iterable[str], at_least: int, at_most: int, end_offset: int, report: RecoveryReport
    ) -> int:
        """Load the newest sound snapshot; where it ends. Those past the log's end, and spoiled ones, are removed."""
        self.state = ProducerState()
        self.saved_at = -1
        start = at_least
        removed = False
        for offset, path in sorted(self._snapshots(files), reverse=True):
            if offset > end_offset:
                self._disk.remove(path)
                removed = True
            elif at_least <= offset <= at_most:
                try:
                    self.state = ProducerState.from_snapshot(path.read_bytes(), str(path))
                except CorruptCheckpointError as error:
                    report.note(f"snapshot is not used: {error}")
                    self._disk.remove(path)
                else:
                    start = offset
                    self.saved_at = offset if report.clean else -1
                    break
        if removed:
            # For good: the log may grow past that offset again, with other batches.
            self._disk.sync_directory(self._directory)
        return start

    def _replay(self, segment: Segment, start: int, report: RecoveryReport) -> None:
        try:
            segment.transaction_index.truncate(start)
        except StorageError as error:
            report.note(f"made again from the log: {error}")
            segment.transaction_index.reset()
        try:
            first = segment.locate(start)
            for chunk in segment.scan(0 if first is None else first.position):
                for header in chunk.headers:
                    if header.producer_id >= 0 and header.base_offset >= start:
                        self.note(Batch(chunk.buffer, header), segment)
                self._make_room(0)  # not only at the end: a segment can have millions of producers
        except CorruptBatchError as error:
            report.note(f"producers behind a damaged batch are not known: {error}")

    def save(self, offset: int, *, durable: bool) -> None:
        path = names.segment_file(self._directory, offset, names.SNAPSHOT)
        self._disk.replace(path, self.state.to_snapshot(), durable=durable)
        self.saved_at = offset if durable else -1

    def forget_snapshots_before(self, offset: int) -> None:
        for at, path in self._snapshots(self._disk.list(self._directory)):
            if at < offset:
                self._disk.remove(path)

    def keep_only_snapshots(self, offsets: set[int]) -> None:
        """Those of the segments' bases and of the end are of use; the rest is left from earlier closings."""
        for at, path in self._snapshots(self._disk.list(self._directory)):
            if at not in offsets:
                self._disk.remove(path)

    def _snapshots(self, files: Iterable[str]) -> list[tuple[int, Path]]:
        parsed = (names.parse_segment_file(name) for name in files if name.endswith(names.SNAPSHOT))
        offsets = (one[0] for one in parsed if one is not None)
        return [(offset, names.segment_file(self._directory, offset, names.SNAPSHOT)) for offset in offsets]

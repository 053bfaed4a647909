"""The producer state of a log, and the .snapshot files that save it.

A snapshot is written at each roll and at a clean close. Its name is the offset before which its state includes all
batches. It has a checksum. A snapshot that a crash made corrupt is removed, and the state is rebuilt from an older one
or from the log, which takes longer.
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
    """Keeps the producer state of one log up to date, and saves and loads it. Keeps at most `max_producers` producers.

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
        self.saved_at = -1  # the offset of the newest snapshot if it is durable, or -1

    def find_duplicate(self, headers: Sequence[BatchHeader]) -> ProducerBatch | None:
        """Return the batches in the log that these batches repeat, merged into one. Return None if any is new."""
        duplicates: list[ProducerBatch] = []
        for header in headers:
            duplicate = None
            if header.producer_id >= 0 and not header.is_control:
                duplicate = self.state.find_duplicate(header)
            if duplicate is None:
                return None  # check() refuses the duplicates, so a new batch is not lost among acknowledged ones
            duplicates.append(duplicate)
        first, last = duplicates[0], duplicates[-1]
        timestamp = max(batch.timestamp for batch in duplicates)
        return ProducerBatch(last.last_sequence, last.last_offset, last.last_offset - first.base_offset, timestamp)

    def check(self, headers: Sequence[BatchHeader]) -> None:
        """Raise unless each batch follows the last batch of its producer, in the log or earlier in this append. Raise
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

    def forget_excess(self) -> None:
        """Forget idle producers above the limit, which batches may have added that could not be refused."""
        if len(self.state) > self._max_producers:
            self._make_room(0)

    def _make_room(self, count: int) -> bool:
        return self.state.make_room(count, self._max_producers, self._clock.now_ms() - IDLE_MS)

    def check_epochs(self, headers: Sequence[BatchHeader]) -> None:
        """Raise InvalidProducerEpochError if a marker, or an offset in a transaction, comes from an instance of the
        producer that was replaced."""
        for header in headers:
            producer = self.state.get(header.producer_id)
            if producer is not None and header.producer_epoch < producer.epoch:
                kind = "marker" if header.is_control else "batch"
                raise InvalidProducerEpochError(
                    f"producer {header.producer_id} has producer epoch {producer.epoch} in this log; a {kind} with "
                    f"producer epoch {header.producer_epoch} comes from an instance that was replaced"
                )

    def note(self, batch: Batch, segment: Segment) -> None:
        """Record a producer's batch that was appended to `segment`, and index the transaction if it aborts one. Raises
        OSError."""
        header = batch.header
        if not header.is_control:
            self.state.update(header)
            return
        if header.record_count == 0:
            return  # compaction has emptied this marker, and no record of its transaction is left
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
        """Load the state at `end_offset` from the newest valid snapshot and from `segments`.

        `segments` start with the segment that contains the log start offset. Earlier segments are not used: a power cut
        may have brought back some of them, and not others. `files` are the names in the directory, if they are known.
        """
        if files is None:
            files = self._disk.list(self._directory)
        tail = segments[-1]
        rebuild_tail = not report.clean and tail.path(names.TRANSACTION_INDEX).name in files
        at_most = tail.base_offset if rebuild_tail else end_offset
        start = self._load_snapshot(files, segments[0].base_offset, at_most, end_offset, report)
        for segment in segments:
            # The last segment may have lost all its batches, while its .txnindex still lists their transactions.
            if segment.limit > start or (rebuild_tail and segment is tail):
                if segment.base_offset > start:
                    self.save(segment.base_offset, durable=False)  # it was missing, and earlier segments may be deleted
                self._replay(segment, start, report)

    def _load_snapshot(
        self, files: Iterable[str], at_least: int, at_most: int, end_offset: int, report: RecoveryReport
    ) -> int:
        """Load the newest valid snapshot between `at_least` and `at_most`, and return its offset, or `at_least` without
        a snapshot. Snapshots after the log end offset and corrupt ones are removed."""
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
                    report.note(f"removed a corrupt snapshot: {error}")
                    self._disk.remove(path)
                else:
                    start = offset
                    self.saved_at = offset if report.clean else -1
                    break
        if removed:
            # Durably, because the log may grow past that offset again, with other batches.
            self._disk.sync_directory(self._directory)
        return start

    def _replay(self, segment: Segment, start: int, report: RecoveryReport) -> None:
        try:
            segment.transaction_index.truncate(start)
        except StorageError as error:
            report.note(f"rebuilding the transaction index from the log: {error}")
            segment.transaction_index.reset()
        try:
            first = segment.locate(start)
            for chunk in segment.scan(0 if first is None else first.position):
                for header in chunk.headers:
                    if header.producer_id >= 0 and header.base_offset >= start:
                        self.note(Batch(chunk.buffer, header), segment)
                self.forget_excess()  # not only at the end: a segment can have millions of producers
        except CorruptBatchError as error:
            report.note(f"the producers of batches after a corrupt batch are unknown: {error}")

    def save(self, offset: int, *, durable: bool) -> None:
        path = names.segment_file(self._directory, offset, names.SNAPSHOT)
        self._disk.replace(path, self.state.to_snapshot(), durable=durable)
        self.saved_at = offset if durable else -1

    def forget_snapshots_before(self, offset: int) -> None:
        for at, path in self._snapshots(self._disk.list(self._directory)):
            if at < offset:
                self._disk.remove(path)

    def keep_only_snapshots(self, offsets: set[int]) -> None:
        """Remove all snapshots except those at `offsets`. Earlier closings leave snapshots within segments, which are
        no longer needed."""
        for at, path in self._snapshots(self._disk.list(self._directory)):
            if at not in offsets:
                self._disk.remove(path)

    def _snapshots(self, files: Iterable[str]) -> list[tuple[int, Path]]:
        parsed = (names.parse_segment_file(name) for name in files if name.endswith(names.SNAPSHOT))
        offsets = (base_and_suffix[0] for base_and_suffix in parsed if base_and_suffix is not None)
        return [(offset, names.segment_file(self._directory, offset, names.SNAPSHOT)) for offset in offsets]

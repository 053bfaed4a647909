"""The leader epochs of a log, and the leader-epoch-checkpoint file that saves them.

An append that begins an epoch touches no file: the entry counts in memory, and `save` makes it durable before the
recovery point moves past its first batch. So at any moment an entry is in the durable file, or its batches lie behind
the recovery point, where the scan after a crash finds them and learns the epoch from their headers. A file that is
damaged or lost is made again from all batches.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from stratalog.errors import CorruptBatchError, CorruptCheckpointError, FencedLeaderEpochError
from stratalog.storage import checkpoints, names
from stratalog.storage.disk import Disk
from stratalog.storage.leader_epochs import LeaderEpochs
from stratalog.storage.recovery import RecoveryReport, ScannedEpochs
from stratalog.storage.segment import Segment

_INT_MAX = 2**31 - 1


class EpochTracker:
    """Threads: changes are the writer's, one at a time; save() may be called beside it. Readers take no lock:
    `epochs` is replaced as a whole."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._path = directory / names.LEADER_EPOCH_CHECKPOINT
        self.file_lock = threading.RLock()  # an interrupt may come between its taking and its giving back
        self.epochs = LeaderEpochs()
        self._saved: LeaderEpochs | None = self.epochs  # what the durable file holds; None where that is not known
        self.current = 0  # what a batch gets whose writer names none

    @property
    def is_saved(self) -> bool:
        return self._saved is self.epochs

    def load(
        self,
        segments: Sequence[Segment],
        end_offset: int,
        scanned: ScannedEpochs,
        report: RecoveryReport,
        *,
        has_file: bool,
    ) -> None:
        """From the file and from the batches that recovery has `scanned`. Nothing is written, but where the file has
        epochs past the log's end: they would count again as soon as the log has grown past that offset."""
        with self.file_lock:
            epochs = self._read(report) if has_file else None
            self._saved = epochs
            if epochs is None:
                epochs = _walk(segments, scanned.from_offset, report)
            if epochs.truncate_end(end_offset) and self._saved is not None:
                self._write(epochs)
            learnt = LeaderEpochs(epochs.entries)
            news = [learnt.learn(*entry) for entry in scanned.epochs.entries if entry[1] < end_offset]
            self.epochs = learnt if any(news) else epochs
            if not self.epochs.entries:
                self._saved = self.epochs  # no file says the same
            self.current = self.epochs.latest or 0

    def begin(self, epoch: int, start_offset: int) -> None:
        """Note that `epoch` writes from `start_offset` on. Raises where a newer one did already. Touches no file: the
        event loop calls this, and save() must follow before the recovery point passes `start_offset`."""
        latest = self.epochs.latest
        if epoch > _INT_MAX:
            raise ValueError(f"leader epoch is {epoch}; it must not be above {_INT_MAX}")
        if epoch < 0 or (latest is not None and epoch < latest):
            raise FencedLeaderEpochError(f"leader epoch is {epoch}; the log has {latest} already")
        epochs = LeaderEpochs(self.epochs.entries)
        if epochs.assign(epoch, start_offset):
            self.epochs = epochs
        self.current = epoch

    def save(self) -> None:
        """Make all epochs durable; free where they are so already. Raises OSError."""
        if self._saved is not self.epochs:
            with self.file_lock:
                # The newest, not those of when the call was made: a later save may have been faster.
                if self._saved is not self.epochs:
                    self._write(self.epochs)

    def truncate_end(self, offset: int) -> None:
        epochs = LeaderEpochs(self.epochs.entries)  # replaced as a whole: readers take no lock
        if epochs.truncate_end(offset):
            with self.file_lock:
                self._write(epochs)
                self.epochs = epochs

    def truncate_start(self, offset: int) -> None:
        """Left to the next save(): the log's start, which is durable, says the same when the log is opened."""
        epochs = LeaderEpochs(self.epochs.entries)
        if epochs.truncate_start(offset):
            with self.file_lock:
                self.epochs = epochs

    def _write(self, epochs: LeaderEpochs) -> None:
        self._saved = None
        self._disk.replace(self._path, checkpoints.format_epochs(epochs.entries))
        self._saved = epochs

    def _read(self, report: RecoveryReport) -> LeaderEpochs | None:
        """What the file holds; None where it is damaged."""
        try:
            return LeaderEpochs(checkpoints.read_epochs(self._path))
        except CorruptCheckpointError as error:
            report.note(f"leader epochs are read from the log again: {error}")
            return None


def _walk(segments: Sequence[Segment], stop: int, report: RecoveryReport) -> LeaderEpochs:
    """The epochs of all batches before offset `stop`. Those of old formats have none: where the newest batches are
    like that, nothing is read."""
    epochs = LeaderEpochs()
    before = [segment for segment in segments if segment.base_offset < stop and segment.size]
    if not _knows_epochs(before):
        return epochs
    for segment in before:
        try:
            for header in segment.walk_headers(0):
                if header.base_offset >= stop:
                    break
                epochs.learn(header.leader_epoch, header.base_offset)
        except CorruptBatchError as error:
            report.note(f"leader epochs behind a damaged batch are not known: {error}")
    return epochs


def _knows_epochs(segments: Sequence[Segment]) -> bool:
    """Whether the newest segment with batches begins with one that has an epoch: those of old formats have none."""
    for segment in reversed(segments):
        try:
            for header in segment.walk_headers(0):
                return header.leader_epoch >= 0
        except CorruptBatchError:
            continue  # an older one tells
    return False

"""The leader epochs of a log, and the leader-epoch-checkpoint file that saves them.

An append that begins an epoch touches no file: the entry is kept in memory, and `save` makes it durable before the
recovery point moves past its first batch. So at any moment, either the durable file has an entry, or its batches are
after the recovery point, where the scan after a crash reads the epoch from their headers. A corrupt or missing file is
rebuilt from all batches.
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
    """Keeps the leader epochs of one log up to date, and saves and loads them.

    Threads: the writer makes all changes, and save() may run at the same time. Readers take no lock, because `epochs`
    is never changed, only replaced.
    """

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._path = directory / names.LEADER_EPOCH_CHECKPOINT
        self.file_lock = threading.RLock()  # reentrant: an interrupt may leave it acquired
        self.epochs = LeaderEpochs()
        self._saved: LeaderEpochs | None = self.epochs  # the content of the durable file; None if unknown
        self.current = 0  # for batches that are appended without a leader epoch

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
        """Load the epochs from the file and from the batches that recovery has `scanned`.

        The file is only written if it has epochs after the log end offset, which would otherwise be valid again as soon
        as the log has grown past them. An epoch that begins at the log end offset stays: its leader has begun it, and
        written nothing yet.
        """
        with self.file_lock:
            epochs = self._read(report) if has_file else None
            self._saved = epochs
            if epochs is None:
                epochs = _walk(segments, scanned.from_offset, report)
            if epochs.truncate_end(end_offset + 1) and self._saved is not None:
                self._write(epochs)
            extended = LeaderEpochs(epochs.entries)
            changes = [extended.learn(*entry) for entry in scanned.epochs.entries if entry[1] < end_offset]
            self.epochs = extended if any(changes) else epochs
            if not self.epochs.entries:
                self._saved = self.epochs  # a missing file means the same
            self.current = self.epochs.latest or 0

    def begin(self, epoch: int, start_offset: int) -> None:
        """Record that `epoch` begins at `start_offset`. Raises FencedLeaderEpochError if the log has a newer epoch.

        Touches no file, because the event loop calls this. save() must follow before the recovery point passes
        `start_offset`.
        """
        latest = self.epochs.latest
        if epoch > _INT_MAX:
            raise ValueError(f"leader epoch is {epoch}; it must not be above {_INT_MAX}")
        if epoch < 0 or (latest is not None and epoch < latest):
            raise FencedLeaderEpochError(f"leader epoch is {epoch}; the log already has leader epoch {latest}")
        epochs = LeaderEpochs(self.epochs.entries)
        if epochs.assign(epoch, start_offset):
            self.epochs = epochs
        self.current = epoch

    def take_back(self, before: LeaderEpochs, appended_from: int, end_offset: int) -> None:
        """Forget the epochs that begin() has recorded for batches that could not be appended. `before` are those from
        before, when the log ended at `appended_from`; now it ends at `end_offset`. Touches no file."""
        epochs = before
        if end_offset != appended_from:  # some of the batches were appended
            epochs = LeaderEpochs(entry for entry in self.epochs.entries if entry[1] < end_offset)
        self.epochs = epochs
        self.current = epochs.latest or 0

    def save(self) -> None:
        """Make all epochs durable. Does nothing if they already are. Raises OSError."""
        if self._saved is not self.epochs:
            with self.file_lock:
                # Save the newest epochs, not those at the time of the call: a later save() may have been faster.
                if self._saved is not self.epochs:
                    self._write(self.epochs)

    def truncate_end(self, offset: int) -> None:
        epochs = LeaderEpochs(self.epochs.entries)  # a copy, because readers take no lock
        if epochs.truncate_end(offset):
            with self.file_lock:
                self._write(epochs)
                self.epochs = epochs

    def truncate_start(self, offset: int) -> None:
        """Forget the epochs before `offset`. The next save() writes the file. Until then, opening the log forgets them
        too, because the log start offset is durable."""
        epochs = LeaderEpochs(self.epochs.entries)
        if epochs.truncate_start(offset):
            with self.file_lock:
                self.epochs = epochs

    def _write(self, epochs: LeaderEpochs) -> None:
        self._saved = None
        self._disk.replace(self._path, checkpoints.format_epochs(epochs.entries))
        self._saved = epochs

    def _read(self, report: RecoveryReport) -> LeaderEpochs | None:
        """Return the epochs in the file, or None if it is corrupt."""
        try:
            return LeaderEpochs(checkpoints.read_epochs(self._path))
        except CorruptCheckpointError as error:
            report.note(f"rebuilding the leader epochs from the log: {error}")
            return None


def _walk(segments: Sequence[Segment], stop: int, report: RecoveryReport) -> LeaderEpochs:
    """Return the leader epochs of all batches before offset `stop`. Batches of magic 0 and 1 have none: if the newest
    batches are such, the log is not read."""
    epochs = LeaderEpochs()
    before = [segment for segment in segments if segment.base_offset < stop and segment.size]
    if not _has_epochs(before):
        return epochs
    for segment in before:
        try:
            for header in segment.walk_headers(0):
                if header.base_offset >= stop:
                    break
                epochs.learn(header.leader_epoch, header.base_offset)
        except CorruptBatchError as error:
            report.note(f"the leader epochs of batches after a corrupt batch are unknown: {error}")
    return epochs


def _has_epochs(segments: Sequence[Segment]) -> bool:
    """Return True if the first batch of the newest readable segment has a leader epoch."""
    for segment in reversed(segments):
        try:
            for header in segment.walk_headers(0):
                return header.leader_epoch >= 0
        except CorruptBatchError:
            continue  # look at the segment before it
    return False

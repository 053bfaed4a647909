"""The leader epochs of a log, and the leader-epoch-checkpoint file that saves them.

An epoch is saved, durably, before the first batch of it is written. A file that is damaged or lost is made again from
the batches, which carry their epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from stratalog.errors import CorruptBatchError, CorruptCheckpointError, FencedLeaderEpochError
from stratalog.storage import checkpoints, names
from stratalog.storage.disk import Disk
from stratalog.storage.leader_epochs import LeaderEpochs
from stratalog.storage.recovery import RecoveryReport
from stratalog.storage.segment import Segment

_INT_MAX = 2**31 - 1


class EpochTracker:
    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._path = directory / names.LEADER_EPOCH_CHECKPOINT
        self.epochs = LeaderEpochs()
        self.current = 0  # what a batch gets whose writer names none

    def load(self, segments: Sequence[Segment], end_offset: int, report: RecoveryReport) -> None:
        self.epochs = self._read(segments, report)
        was_lost = bool(self.epochs.entries) and not self._path.exists()
        if self.epochs.truncate_end(end_offset) or was_lost:
            self._save(self.epochs)
        self.current = self.epochs.latest or 0

    def begin(self, epoch: int, start_offset: int) -> None:
        """Note that `epoch` writes from `start_offset` on. Raises where a newer one did already."""
        latest = self.epochs.latest
        if epoch > _INT_MAX:
            raise ValueError(f"leader epoch is {epoch}; it must not be above {_INT_MAX}")
        if epoch < 0 or (latest is not None and epoch < latest):
            raise FencedLeaderEpochError(f"leader epoch is {epoch}; the log has {latest} already")
        epochs = LeaderEpochs(self.epochs.entries)
        if epochs.assign(epoch, start_offset):
            self._save(epochs)  # before it counts: an epoch that was not saved would never be saved later
            self.epochs = epochs
        self.current = epoch

    def truncate_end(self, offset: int) -> None:
        self._replace(lambda epochs: epochs.truncate_end(offset))

    def truncate_start(self, offset: int) -> None:
        self._replace(lambda epochs: epochs.truncate_start(offset))

    def _replace(self, change: Callable[[LeaderEpochs], bool]) -> None:
        """As a whole: readers take no lock."""
        epochs = LeaderEpochs(self.epochs.entries)
        if change(epochs):
            self._save(epochs)
            self.epochs = epochs

    def _save(self, epochs: LeaderEpochs) -> None:
        self._disk.replace(self._path, checkpoints.format_epochs(epochs.entries))

    def _read(self, segments: Sequence[Segment], report: RecoveryReport) -> LeaderEpochs:
        """From the file, or from the batches where that is damaged or lost."""
        try:
            if self._path.exists() or not _knows_epochs(segments):
                return LeaderEpochs(checkpoints.read_epochs(self._path))
        except CorruptCheckpointError as error:
            report.note(f"leader epochs are read from the log again: {error}")
        epochs = LeaderEpochs()
        for segment in segments:
            try:
                for header in segment.walk_headers(0):
                    epochs.assign(header.leader_epoch, header.base_offset)
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

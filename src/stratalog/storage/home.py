"""What a data directory gives to each of its logs: the disk, the clock, the checkpoints, and the undertaker."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from stratalog.clock import Clock
from stratalog.storage.config import DirectoryConfig
from stratalog.storage.disk import Disk
from stratalog.storage.offset_checkpoint import OffsetCheckpoint
from stratalog.storage.open_segments import OpenSegments

if TYPE_CHECKING:
    from stratalog.storage.log import Log

logger = logging.getLogger(__name__)


class Deletions:
    """Files that are to be removed at a later time, so that nobody who still reads by name is surprised."""

    def __init__(self, disk: Disk, clock: Clock) -> None:
        self._disk = disk
        self._clock = clock
        self._lock = threading.Lock()
        self._due: deque[tuple[float, Path]] = deque()

    def __len__(self) -> int:
        return len(self._due)

    def add(self, paths: Iterable[Path], delay_ms: int) -> None:
        due = self._clock.monotonic() + delay_ms / 1000
        with self._lock:
            self._due.extend((due, path) for path in paths)

    def run(self, *, everything: bool = False) -> int:
        """Remove what is due; how many files that were."""
        now = self._clock.monotonic()
        with self._lock:
            due = [path for time, path in self._due if everything or time <= now]
            self._due = deque(entry for entry in self._due if not everything and entry[0] > now)
        for path in due:
            try:
                self._disk.remove(path)
            except OSError as error:
                # It has the suffix .deleted, so the next opening of the directory tries again.
                logger.warning("%s: can't be removed: %s", path, error)
        return len(due)


@dataclass(frozen=True)
class LogHome:
    disk: Disk
    clock: Clock
    open_segments: OpenSegments  # sealed ones
    active_segments: OpenSegments
    recovery_points: OffsetCheckpoint
    log_start_offsets: OffsetCheckpoint
    cleaner_offsets: OffsetCheckpoint
    deletions: Deletions
    overdue_rolls: set[Log] = field(default_factory=set)
    """Logs whose active segment is full, though the append that found it so could not wait for a roll."""
    max_producer_ids: int = DirectoryConfig.stratalog_max_producer_ids_per_partition

    @property
    def checkpoints(self) -> tuple[OffsetCheckpoint, ...]:
        return self.recovery_points, self.log_start_offsets, self.cleaner_offsets

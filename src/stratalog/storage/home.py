"""The objects that a data directory shares with its logs: disk, clock, checkpoints and delayed deletions."""

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
    """Files to remove after a delay, so that readers that open a file by its name still find it for a while.

    Any thread may call any method.
    """

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
        """Remove the files whose delay is over and return their number. With `everything`, remove all files."""
        now = self._clock.monotonic()
        with self._lock:
            due = [path for time, path in self._due if everything or time <= now]
            self._due = deque(entry for entry in self._due if not everything and entry[0] > now)
        for path in due:
            try:
                self._disk.remove(path)
            except OSError as error:
                logger.warning("%s: can't remove the file; the next start tries again: %s", path, error)
        return len(due)


@dataclass(frozen=True)
class LogHome:
    """The shared objects of one data directory."""

    disk: Disk
    clock: Clock
    open_segments: OpenSegments  # the sealed segments whose files are open
    active_segments: OpenSegments  # the active segments whose files are open
    recovery_points: OffsetCheckpoint
    log_start_offsets: OffsetCheckpoint
    cleaner_offsets: OffsetCheckpoint
    high_watermarks: OffsetCheckpoint
    deletions: Deletions
    overdue_rolls: set[Log] = field(default_factory=set)
    """Logs whose active segment is full, because the append that should have rolled it could not wait."""
    roll_requested: threading.Event = field(default_factory=threading.Event)
    """Set if an append is refused until the housekeeper has rolled its log."""
    max_producer_ids: int = DirectoryConfig.stratalog_max_producer_ids_per_partition

    @property
    def checkpoints(self) -> tuple[OffsetCheckpoint, ...]:
        return self.recovery_points, self.log_start_offsets, self.cleaner_offsets, self.high_watermarks

"""Holds a data directory that no broker has open, so that none can open it while tasks change its partitions.

It uses the broker's lock file. The driver first locks the whole file, so no other process has it, and then keeps only
its first byte. Each task locks the byte of its partition, in its own process. A broker needs the whole file, so it
can't start before the last task has ended, even if the driver has died; two attempts at one partition exclude each
other. The marker of a clean shutdown is removed, and restored only if every task succeeded.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from stratalog.clock import SystemClock
from stratalog.errors import DirectoryLockedError, StorageError
from stratalog.storage import checkpoints, names
from stratalog.storage.config import LogConfig
from stratalog.storage.directory_lock import DirectoryLock
from stratalog.storage.disk import Disk
from stratalog.storage.home import Deletions, LogHome
from stratalog.storage.log import Log
from stratalog.storage.names import TopicPartition
from stratalog.storage.offset_checkpoint import OffsetCheckpoint
from stratalog.storage.open_segments import OpenSegments

_OPEN_SEGMENTS = 256
_CHECKPOINTS = (
    names.RECOVERY_POINT_CHECKPOINT,
    names.LOG_START_OFFSET_CHECKPOINT,
    names.CLEANER_OFFSET_CHECKPOINT,
)


class ColdDirectory:
    """The driver's hold on a directory. `was_clean` is True if the last process that used it shut down cleanly."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._disk = Disk()
        self.was_clean = (path / names.CLEAN_SHUTDOWN).exists()
        self._recovery_points = OffsetCheckpoint(self._disk, path / names.RECOVERY_POINT_CHECKPOINT)
        self._cleaner_offsets = OffsetCheckpoint(self._disk, path / names.CLEANER_OFFSET_CHECKPOINT)

    @classmethod
    @contextmanager
    def held(cls, path: Path) -> Iterator[ColdDirectory]:
        """Hold the directory inside the block. Raises DirectoryLockedError if a broker or another job has it."""
        try:
            lock = DirectoryLock(path)
        except OSError as error:
            raise StorageError(f"{path}: can't be used as a data directory: {error}") from error
        try:
            lock.keep_first_byte()
            directory = cls(path)
            directory._take_marker()
            yield directory
            directory._restore_marker()  # not after an error or an interrupt: a task may have stopped anywhere
        finally:
            lock.release()

    def partitions(self) -> list[TopicPartition]:
        parsed = (names.parse_partition_directory(entry.name) for entry in self.path.iterdir() if entry.is_dir())
        return sorted(each for each in parsed if each is not None and each.topic != names.CLUSTER_METADATA_TOPIC)

    def note(self, clean_up_to: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> None:
        """Save the offsets of logs that tasks have closed cleanly. They are durable when the call returns."""
        self._recovery_points.update(ends)
        self._cleaner_offsets.update(clean_up_to)

    def _take_marker(self) -> None:
        if self.was_clean:
            self._disk.remove(self.path / names.CLEAN_SHUTDOWN)
            self._disk.sync_directory(self.path)

    def _restore_marker(self) -> None:
        if self.was_clean:
            self._disk.replace(self.path / names.CLEAN_SHUTDOWN, checkpoints.format_clean_shutdown())


@contextmanager
def opened_in_task(
    directory: Path, partition: TopicPartition, slot: int, config: LogConfig, *, clean: bool
) -> Iterator[Log]:
    """Open a partition's log for one task. `slot` is a number that no other partition of the directory has.

    The log reads copies of the directory's checkpoints. Its own changes to them stay in the task; the driver writes the
    directory's.
    """
    lock = os.open(directory / names.LOCK, os.O_RDWR | os.O_CLOEXEC)
    scratch = Path(tempfile.mkdtemp(prefix="stratalog-task-"))
    try:
        _lock_byte(lock, slot + 1, directory, partition)
        for name in _CHECKPOINTS:
            if (directory / name).exists():
                shutil.copyfile(directory / name, scratch / name)
        disk, clock = Disk(), SystemClock()
        recovery_points, starts, cleaner_offsets = (OffsetCheckpoint(disk, scratch / name) for name in _CHECKPOINTS)
        open_segments, active_segments = OpenSegments(_OPEN_SEGMENTS), OpenSegments(_OPEN_SEGMENTS)
        deletions = Deletions(disk, clock)
        home = LogHome(
            disk,
            clock,
            open_segments,
            active_segments,
            recovery_points,
            starts,
            cleaner_offsets,
            OffsetCheckpoint(disk, scratch / names.REPLICATION_OFFSET_CHECKPOINT),  # empty: nothing is truncated
            deletions,
        )
        with Log(partition, directory / str(partition), config, home).load(clean=clean) as log:
            yield log
        deletions.run(everything=True)
    except OSError as error:
        raise StorageError(f"{directory / str(partition)}: {error}") from error
    finally:
        os.close(lock)
        shutil.rmtree(scratch, ignore_errors=True)


def _lock_byte(lock: int, byte: int, path: Path, partition: TopicPartition) -> None:
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
    except OSError as error:
        raise DirectoryLockedError(
            f"{path}: another task has {partition} open, or a broker has started; run the job again when that has ended"
        ) from error

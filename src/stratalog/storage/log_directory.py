"""A data directory: many logs, one lock, Kafka's checkpoint files, and a housekeeper.

    with LogDirectory.open("data") as directory:
        log = directory.log("orders", 7)

Logs are opened when first asked for (`open_all` for a broker, which wants them all). The clean-shutdown marker says
that every log was closed in order: it is taken away, durably, before anything is changed, and written again only
when nothing is left that a crash could have touched.
"""

from __future__ import annotations

import logging
import os
import resource
import threading
import uuid
import weakref
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from stratalog.clock import Clock, SystemClock
from stratalog.errors import InvalidTopicError, LogAlreadyOpenError, LogClosedError, StorageError
from stratalog.storage import checkpoints, directory_lock, names
from stratalog.storage.compaction.cleaner import LogCleaner
from stratalog.storage.compaction.config import CleanerConfig
from stratalog.storage.config import DirectoryConfig, LogConfig
from stratalog.storage.directory_lock import DirectoryLock
from stratalog.storage.disk import Disk
from stratalog.storage.home import Deletions, LogHome
from stratalog.storage.housekeeper import Housekeeper
from stratalog.storage.log import Log
from stratalog.storage.names import TopicPartition
from stratalog.storage.offset_checkpoint import OffsetCheckpoint
from stratalog.storage.open_segments import OpenSegments

logger = logging.getLogger(__name__)

_LONGEST_DOOMED = 200  # a name has room for 255, and a suffix of 40 follows
_live: weakref.WeakSet[LogDirectory] = weakref.WeakSet()

Configs = LogConfig | Mapping[str, object] | None


class LogDirectory:
    def __init__(
        self,
        path: Path,
        default_config: LogConfig,
        config: DirectoryConfig,
        cleaner_config: CleanerConfig,
        *,
        disk: Disk,
        clock: Clock,
        background: bool,
    ) -> None:
        self.path = path
        self._default_config = default_config
        self._disk = disk
        self._lock = threading.RLock()
        self._logs: dict[TopicPartition, Log] = {}
        self._closed = False
        try:
            disk.make_directory(path)
            self._directory_lock = DirectoryLock(path)
        except OSError as error:
            raise StorageError(f"{path}: can't be used as a data directory: {error}") from error
        try:
            self._home = LogHome(
                disk,
                clock,
                OpenSegments(min(config.max_open_segments, _share_of_descriptors())),
                OffsetCheckpoint(disk, path / names.RECOVERY_POINT_CHECKPOINT),
                OffsetCheckpoint(disk, path / names.LOG_START_OFFSET_CHECKPOINT),
                OffsetCheckpoint(disk, path / names.CLEANER_OFFSET_CHECKPOINT),
                Deletions(disk, clock),
            )
            self.high_watermarks = OffsetCheckpoint(disk, path / names.REPLICATION_OFFSET_CHECKPOINT)
            self.was_clean = self._take_clean_marker()
            self._housekeeper = Housekeeper(config, self._open_logs, self._home)
            self.cleaner = LogCleaner(cleaner_config, self._open_logs, self._home)
            if background:
                self._housekeeper.start()
                self.cleaner.start()
        except OSError as error:
            self._directory_lock.release()
            raise StorageError(f"{path}: can't be opened: {error}") from error
        except BaseException:
            self._directory_lock.release()
            raise
        _live.add(self)

    @classmethod
    def open(
        cls,
        path: str | Path,
        config: Configs = None,
        *,
        directory_config: DirectoryConfig | None = None,
        cleaner_config: CleanerConfig | None = None,
        disk: Disk | None = None,
        clock: Clock | None = None,
        background: bool = True,
    ) -> Self:
        """Open a data directory, made where it is missing. `config` is for logs that get none of their own.

        Without `background` no thread is started: turn() does what is due.
        """
        return cls(
            Path(path).expanduser(),
            as_config(config),
            directory_config or DirectoryConfig(),
            cleaner_config or CleanerConfig(),
            disk=disk or Disk(),
            clock=clock or SystemClock(),
            background=background,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def partitions(self) -> list[TopicPartition]:
        """The partitions that have a directory here, opened or not."""
        found = []
        for entry in self.path.iterdir():
            partition = names.parse_partition_directory(entry.name)
            if partition is not None and partition.topic != names.CLUSTER_METADATA_TOPIC and entry.is_dir():
                found.append(partition)
        return sorted(found)

    def log(self, topic: str, partition: int, config: Configs = None, *, topic_id: uuid.UUID | None = None) -> Log:
        """The log of a partition, opened or made where it is not yet. A config counts when it is opened."""
        names.check_topic(topic)
        names.check_partition(partition)
        if topic == names.CLUSTER_METADATA_TOPIC:
            raise InvalidTopicError(f"{topic} is Apache Kafka's own; it is not opened here")
        key = TopicPartition(topic, partition)
        with self._lock:
            if self._closed:
                raise LogClosedError(f"{self.path}: the data directory is closed")
            log = self._logs.get(key)
            if log is None or log.is_closed:
                clean = self.was_clean and (log is None or log.closed_in_order)
                log = self._logs[key] = self._open_log(key, config, topic_id, clean=clean)
            return log

    def open_all(self, progress: Callable[[int, int], None] | None = None) -> list[Log]:
        """Open every log; `progress(done, total)` is called after each."""
        partitions = self.partitions()
        logs = []
        for done, partition in enumerate(partitions, start=1):
            logs.append(self.log(*partition))
            if progress is not None:
                progress(done, len(partitions))
        return logs

    def make_all(self, partitions: Iterable[TopicPartition], topic_id: uuid.UUID) -> None:
        """Make the directories of a topic's new partitions, durably, several at a time: log() then finds them."""
        with self._lock:
            if self._closed:
                raise LogClosedError(f"{self.path}: the data directory is closed")
            paths = [path for partition in partitions if not (path := self.path / str(partition)).exists()]
            try:
                with ThreadPoolExecutor(self._disk.waits_at_once, thread_name_prefix="stratalog-make") as pool:
                    for _ in pool.map(lambda path: self._make_partition(path, topic_id), paths):
                        pass
                self._disk.sync_directory(self.path)
            except OSError as error:
                raise StorageError(f"{self.path}: partitions can't be made: {error}") from error

    def delete(self, topic: str, partition: int) -> None:
        """Delete a partition with all its records. Its directory is renamed first: half of it is never served."""
        self.delete_all([TopicPartition(topic, partition)])

    def delete_all(self, partitions: Iterable[TopicPartition]) -> None:
        """delete() for many, at the cost of one where it waits for the disk. Those that do not exist are fine."""
        with self._lock:
            if self._closed:
                raise LogClosedError(f"{self.path}: the data directory is closed")
            try:
                doomed = [(key, self._doom(key)) for key in partitions]
                self._disk.sync_directory(self.path)
                for checkpoint in (*self._home.checkpoints, self.high_watermarks):
                    checkpoint.update(dict.fromkeys(key for key, _ in doomed))
                for _, path in doomed:
                    if path is not None:
                        self._remove_partition(path)
            except OSError as error:
                raise StorageError(f"{self.path}: partitions can't be deleted: {error}") from error

    def _doom(self, key: TopicPartition) -> Path | None:
        """Close the log, and rename its directory; None where there is no such directory."""
        path = self.path / str(key)
        log = self._logs.get(key)
        if log is not None:
            log.discard()
        doomed = None
        if path.exists():
            doomed = self.path / f"{str(key)[:_LONGEST_DOOMED]}.{uuid.uuid4().hex}-delete"
            self._disk.rename(path, doomed)
        self._logs.pop(key, None)
        return doomed

    def turn(self) -> None:
        """Do now what the housekeeper finds due; for use without `background`."""
        self._housekeeper.turn()
        while self.cleaner.turn() is not None:
            pass

    def close(self) -> None:
        """Close all logs, and say so in the marker if every one was closed in order. Closing twice is fine."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self.cleaner.stop()
        self._housekeeper.stop()
        try:
            self._close_logs()
            self._home.deletions.run(everything=True)
            in_order = all(log.closed_in_order for log in self._logs.values())
            if in_order and (self.was_clean or set(self.partitions()) <= set(self._logs)):
                self._disk.replace(self.path / names.CLEAN_SHUTDOWN, checkpoints.format_clean_shutdown())
        except OSError as error:
            raise StorageError(f"{self.path}: was not closed in order: {error}") from error
        finally:
            self._directory_lock.release()

    def abandon(self) -> None:
        """For the child of a fork: the directory is the parent's, with everything in it."""
        self._closed = True
        self._lock = threading.RLock()
        for log in self._logs.values():
            log.abandon()

    def _close_logs(self) -> None:
        """Several at a time, as each waits for the disk, which serves many at the cost of one."""
        logs = [log for log in self._logs.values() if not log.is_closed]
        failures = [error for log in logs if log.is_held_here and (error := _close(log)) is not None]
        with ThreadPoolExecutor(self._disk.waits_at_once, thread_name_prefix="stratalog-close") as pool:
            failures += [error for error in pool.map(_close, logs) if error is not None]
        closed = {log.partition: log.log_end_offset for log in logs if log.closed_in_order}
        self._home.recovery_points.update(closed)
        for error in failures:
            logger.error("%s", error)
        if failures:
            raise failures[0]

    def _open_logs(self) -> list[Log]:
        with self._lock:
            return [log for log in self._logs.values() if not log.is_closed]

    def _open_log(self, key: TopicPartition, config: Configs, topic_id: uuid.UUID | None, *, clean: bool) -> Log:
        path = self.path / str(key)
        try:
            if not path.exists():
                self._make_partition(path, topic_id or uuid.uuid4())
                self._disk.sync_directory(self.path)
            log_config = self._default_config if config is None else as_config(config)
            return Log(key, path, log_config, self._home, clean=clean)
        except OSError as error:
            raise StorageError(f"{path}: can't be opened: {error}") from error

    def _make_partition(self, path: Path, topic_id: uuid.UUID) -> None:
        self._disk.make_directory(path)
        self._disk.replace(path / names.PARTITION_METADATA, checkpoints.format_partition_metadata(topic_id))

    def _take_clean_marker(self) -> bool:
        marker = self.path / names.CLEAN_SHUTDOWN
        for entry in self.path.iterdir():
            if names.is_doomed_directory(entry.name) and entry.is_dir():
                try:
                    self._remove_partition(entry)
                except OSError as error:
                    logger.warning("%s: can't be removed: %s", entry, error)  # no reason not to open the others
        if not marker.exists():
            return False
        self._disk.remove(marker)
        self._disk.sync_directory(self.path)
        return True

    def _remove_partition(self, path: Path) -> None:
        for entry in path.iterdir():
            self._disk.remove(entry)
        path.rmdir()


def _close(log: Log) -> StorageError | None:
    try:
        log.close(save_recovery_point=False)
    except StorageError as error:
        return error
    return None


def _share_of_descriptors() -> int:
    """Half of what the process may open: the rest is for active segments, and for the program around."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(soft // 2, 1)


def as_config(config: Configs) -> LogConfig:
    if config is None:
        return LogConfig()
    return config if isinstance(config, LogConfig) else LogConfig.parse(config)


def _abandon_all() -> None:
    """In the child of a fork: nothing that was open is the child's to write to, to close or to unlock."""
    global _shared_lock
    _shared_lock = threading.Lock()
    _shared.clear()
    directory_lock.forget_all()
    for directory in list(_live):
        directory.abandon()


os.register_at_fork(after_in_child=_abandon_all)

_shared: dict[Path, tuple[LogDirectory, int]] = {}
_shared_lock = threading.Lock()


def open_log(path: Path, config: Configs) -> Log:
    """Log.open(): the data directory is opened with the first of its logs, and closed with the last."""
    path = path.expanduser()
    partition = names.parse_partition_directory(path.name)
    if partition is None:
        raise InvalidTopicError(
            f"{path}: a log's directory is called topic-partition, like orders-0: a topic of letters, digits, '.', '_' "
            "and '-', and a number without leading zeros"
        )
    names.check_topic(partition.topic)
    parsed = as_config(config)
    home = path.parent.resolve()
    with _shared_lock:
        directory, uses = _shared.get(home) or (LogDirectory.open(home), 0)
        try:
            log = directory.log(*partition, parsed)
            if log.has_owner:
                raise LogAlreadyOpenError(f"{path}: is open in this process already; use that Log, or close it first")
        except BaseException:
            if uses == 0:
                directory.close()
            raise
        _shared[home] = (directory, uses + 1)
        log.on_close(lambda: _release(home))
    return log


def _release(home: Path) -> None:
    with _shared_lock:
        directory, uses = _shared.pop(home)
        if uses > 1:
            _shared[home] = (directory, uses - 1)
        else:
            directory.close()  # with the lock held: who opens it now waits, and is not refused

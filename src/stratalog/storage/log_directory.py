"""A data directory: many logs, one lock, Kafka's checkpoint files, and a housekeeper.

    with LogDirectory.open("data") as directory:
        log = directory.log("orders", 7)

`log` opens a log at its first use, `open_all` opens all of them, as a broker needs. The clean-shutdown marker means
that every log was closed in order. Opening the directory removes it, durably, before anything is changed. Closing
writes it again only if every log in the directory was closed in order.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import uuid
import weakref
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from stratalog.clock import Clock, SystemClock
from stratalog.errors import (
    CorruptCheckpointError,
    InvalidTopicError,
    LogClosedError,
    StorageError,
    StratalogError,
    UnusablePartitionError,
)
from stratalog.storage import checkpoints, directory_lock, limits, names
from stratalog.storage.boot_note import BootNote
from stratalog.storage.compaction.cleaner import LogCleaner
from stratalog.storage.compaction.config import CleanerConfig
from stratalog.storage.config import DirectoryConfig, LogConfig
from stratalog.storage.directory_lock import DirectoryLock
from stratalog.storage.disk import Disk
from stratalog.storage.doomed_directories import DoomedDirectories
from stratalog.storage.home import Deletions, LogHome
from stratalog.storage.housekeeper import Housekeeper
from stratalog.storage.log import Log
from stratalog.storage.names import TopicPartition
from stratalog.storage.offset_checkpoint import OffsetCheckpoint
from stratalog.storage.open_segments import OpenSegments
from stratalog.storage.unopened_log import UnopenedLog, check_entries

logger = logging.getLogger(__name__)

_OF_ONE_PARTITION = (errno.EACCES, errno.EPERM, errno.EIO, errno.EISDIR, errno.ENOTDIR, errno.ELOOP)
_live: weakref.WeakSet[LogDirectory] = weakref.WeakSet()

Configs = LogConfig | Mapping[str, object] | None


class LogDirectory:
    """The logs of one data directory, which is locked until close()."""

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
        in_cluster: bool,
    ) -> None:
        self.path = path
        self._default_config = default_config
        self._disk = disk
        self._lock = threading.RLock()
        self._logs: dict[TopicPartition, Log] = {}
        self._closed = False
        self._in_cluster = in_cluster
        self._doomed = DoomedDirectories(disk, background=background)
        try:
            disk.make_directory(path)
            self._directory_lock = DirectoryLock(path)
        except OSError as error:
            raise StorageError(f"{path}: can't be used as a data directory: {error}") from error
        try:
            self._home = LogHome(
                disk,
                clock,
                OpenSegments(limits.sealed_segments(config.max_open_segments)),
                OpenSegments(limits.active_segments()),
                OffsetCheckpoint(disk, path / names.RECOVERY_POINT_CHECKPOINT),
                OffsetCheckpoint(disk, path / names.LOG_START_OFFSET_CHECKPOINT),
                OffsetCheckpoint(disk, path / names.CLEANER_OFFSET_CHECKPOINT),
                OffsetCheckpoint(disk, path / names.REPLICATION_OFFSET_CHECKPOINT),
                Deletions(disk, clock),
                max_producer_ids=config.stratalog_max_producer_ids_per_partition,
            )
            self._boot_note: BootNote | None = None
            if in_cluster:  # before the marker is taken: else a kill in between would count as a loss
                marker = path / names.CLEAN_SHUTDOWN
                self._boot_note = BootNote(disk, path, was_clean=marker.exists(), has_logs=bool(self.partitions()))
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
        in_cluster: bool = False,
    ) -> Self:
        """Open a data directory, and create it if it is missing. `config` is for logs that are opened without a config
        of their own.

        Without `background`, no thread is started, and the caller calls turn() instead. With `in_cluster`, for one of
        several brokers, `lost_tail` is known, and the topic ids of new partitions are durable.
        """
        return cls(
            Path(path).expanduser(),
            as_config(config),
            directory_config or DirectoryConfig(),
            cleaner_config or CleanerConfig(),
            disk=disk or Disk(),
            clock=clock or SystemClock(),
            background=background,
            in_cluster=in_cluster,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def high_watermarks(self) -> OffsetCheckpoint:
        """The high watermarks, which the broker of a cluster updates. A single broker has no such file."""
        return self._home.high_watermarks

    @property
    def lost_tail(self) -> bool:
        """True if the logs may have lost batches at their ends, because the machine went down while the directory was
        open. Stays true, also after another start, until forget_lost_tail(). Always false without `in_cluster`."""
        return self._boot_note is not None and self._boot_note.is_lost

    def forget_lost_tail(self) -> None:
        """Record that the cluster knows of the loss. From here on, `lost_tail` is false until the machine goes down
        again."""
        if self._boot_note is not None:
            try:
                self._boot_note.forget_loss()
            except OSError as error:
                raise StorageError(f"{self.path}: can't note the boot id: {error}") from error

    def partitions(self) -> list[TopicPartition]:
        """Return the partitions that have a directory here, sorted, whether they are open or not."""
        partitions = []
        for entry in self.path.iterdir():
            partition = names.parse_partition_directory(entry.name)
            if partition is not None and partition.topic != names.CLUSTER_METADATA_TOPIC and entry.is_dir():
                partitions.append(partition)
        return sorted(partitions)

    def log(self, topic: str, partition: int, config: Configs = None, *, topic_id: uuid.UUID | None = None) -> Log:
        """Return the log of a partition. Open it if it is not open, and create it if it is missing. An open log keeps
        its config."""
        names.check_topic(topic)
        names.check_partition(partition)
        if topic == names.CLUSTER_METADATA_TOPIC:
            raise InvalidTopicError(f"{topic} is internal to Apache Kafka and can't be opened")
        key = TopicPartition(topic, partition)
        with self._lock:
            self._check_open()
            log = self._logs.get(key)
            if log is None or log.is_closed:
                clean = self.was_clean and (log is None or log.closed_in_order)
                log = self._logs[key] = self._open_log(key, config, topic_id, clean=clean)
            return log

    def unopened_log(self, topic: str, partition: int, config: Configs, reason: StorageError) -> UnopenedLog:
        """Return a replacement for a log that log() could not open: all its operations fail with `reason`."""
        key = TopicPartition(topic, partition)
        log_config = self._default_config if config is None else as_config(config)
        return UnopenedLog(key, self.path / str(key), log_config, self._home, reason)

    def open_all(self, progress: Callable[[int, int], None] | None = None) -> list[Log]:
        """Open and return every log. `progress(done, total)` is called after each."""
        partitions = self.partitions()
        logs = []
        for done, partition in enumerate(partitions, start=1):
            logs.append(self.log(*partition))
            if progress is not None:
                progress(done, len(partitions))
        return logs

    def make_all(self, partitions: Mapping[TopicPartition, uuid.UUID]) -> dict[TopicPartition, StorageError]:
        """Create the directories of new partitions, with the ids of their topics. log() then opens them. Return the
        partitions whose directories could not be created, with the errors. Raises StorageError if the names of the new
        directories can't be made durable.

        One sync makes all the names durable. The small file with the topic id is synced in a cluster only: without it,
        log() writes the file again if a power cut removes it.
        """
        failures = {}
        with self._lock:
            self._check_open()
            for key, topic_id in partitions.items():
                path = self.path / str(key)
                try:
                    self._make_partition(path, topic_id)
                except OSError as error:
                    failures[key] = StorageError(f"{path}: can't create the partition: {error}")
            try:
                self._disk.sync_directory(self.path)
            except OSError as error:
                raise StorageError(f"{self.path}: can't create partitions: {error}") from error
        return failures

    def delete(self, topic: str, partition: int) -> None:
        """Delete a partition with all its records. Its directory is renamed first, so a partly deleted partition is
        never served."""
        self.delete_all([TopicPartition(topic, partition)])

    def delete_all(self, partitions: Iterable[TopicPartition]) -> None:
        """Delete partitions like delete(), but wait for the disk only once. Partitions that don't exist are ignored.

        When it returns, the directories are durably renamed, so no partition comes back. The files are removed in the
        background.
        """
        doomed: dict[TopicPartition, Path | None] = {}
        with self._lock:
            self._check_open()
            try:
                for key in partitions:
                    doomed[key] = self._doom(key)
                self._disk.sync_directory(self.path)
                for checkpoint in self._home.checkpoints:
                    checkpoint.update(dict.fromkeys(doomed))
            except OSError as error:
                raise StorageError(f"{self.path}: can't delete partitions: {error}") from error
            finally:  # after an error, remove the directories that were already renamed
                self._doomed.add(path for path in doomed.values() if path is not None)

    def set_aside(self, topic: str, partition: int) -> Path | None:
        """Close a partition and rename its directory to Kafka's name for a stray one, durably. No log is opened in it
        any more, and its records stay until an operator removes them. Return the new path, or None if there is no such
        partition."""
        key = TopicPartition(topic, partition)
        path, stray = self.path / str(key), self.path / names.stray_directory(key, uuid.uuid4().hex)
        with self._lock:
            self._check_open()
            log = self._logs.get(key)
            if log is not None and (failure := _close(log)) is not None:
                logger.warning("%s: is set aside, but could not be closed in order: %s", path, failure)
            try:
                if not path.exists():
                    return None
                self._disk.rename(path, stray)
                self._disk.sync_directory(self.path)
                for checkpoint in self._home.checkpoints:
                    checkpoint.update({key: None})
                self._logs.pop(key, None)
            except OSError as error:
                raise StorageError(f"{path}: can't be set aside: {error}") from error
        return stray

    def topic_id(self, topic: str, partition: int) -> uuid.UUID | None:
        """Return the topic id that a partition was created with, or None if its file is missing or not valid, as a
        power cut may leave it."""
        try:
            return checkpoints.read_partition_metadata(self.path / f"{topic}-{partition}" / names.PARTITION_METADATA)
        except CorruptCheckpointError as error:
            logger.warning("%s; the topic id is unknown", error)
            return None

    def advance_starts(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, StratalogError]:
        """Call Log.advance_start() for many open logs, but wait for the disk only a few times. Return the partitions
        that failed, with the errors. The new offsets of all others are durable."""
        with self._lock:
            self._check_open()
            logs = {key: log for key in offsets if (log := self._logs.get(key)) is not None}
        missing = LogClosedError(f"{self.path}: the partition is not open")
        failures: dict[TopicPartition, StratalogError] = {key: missing for key in offsets if key not in logs}
        with ThreadPoolExecutor(self._disk.waits_at_once, thread_name_prefix="stratalog-start") as pool:
            outcomes = pool.map(lambda key: _failure(partial(logs[key].prepare_start, offsets[key])), logs)
            failures |= {key: error for key, error in zip(logs, outcomes, strict=True) if error is not None}
        ready = {key: offset for key, offset in offsets.items() if key not in failures}
        try:
            self._home.log_start_offsets.raise_to(ready)
        except OSError as error:
            unsaved = StorageError(f"{self.path}: can't save log start offsets: {error}")
            return {**failures, **dict.fromkeys(ready, unsaved)}
        for key, offset in ready.items():
            failure = _failure(partial(logs[key].begin_at, offset))
            if failure is not None:
                failures[key] = failure
        return failures

    def _doom(self, key: TopicPartition) -> Path | None:
        """Close the log and rename its directory. Return the new path, or None if there is no such directory."""
        path = self.path / str(key)
        log = self._logs.get(key)
        if log is not None:
            log.discard()
        doomed = None
        if path.exists():
            doomed = self.path / names.doomed_directory(key, uuid.uuid4().hex)
            self._disk.rename(path, doomed)
        self._logs.pop(key, None)
        return doomed

    def _check_open(self) -> None:
        if self._closed:
            raise LogClosedError(f"{self.path}: the data directory is closed")

    def turn(self) -> None:
        """Do the work of the housekeeper and the cleaner that is due now. For use without `background`."""
        self._housekeeper.turn()
        while self.cleaner.turn() is not None:
            pass

    def close(self) -> None:
        """Close all logs, and write the clean-shutdown marker if every log was closed in order. Does nothing if the
        directory is closed."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self.cleaner.stop()
        self._housekeeper.stop()
        self._doomed.stop()
        try:
            self._close_logs()
            self._home.deletions.run(everything=True)
            in_order = all(log.closed_in_order for log in self._logs.values())
            if in_order and (self.was_clean or set(self.partitions()) <= set(self._logs)):
                if self._boot_note is not None:
                    self._boot_note.remove()  # writing the marker also syncs the directory
                self._disk.replace(self.path / names.CLEAN_SHUTDOWN, checkpoints.format_clean_shutdown())
        except OSError as error:
            raise StorageError(f"{self.path}: can't close the data directory in order: {error}") from error
        finally:
            self._directory_lock.release()

    def abandon(self) -> None:
        """Close the directory in the child of a fork. It belongs to the parent, so no file is touched."""
        self._closed = True
        self._lock = threading.RLock()
        for log in self._logs.values():
            log.abandon()

    def _close_logs(self) -> None:
        """Close the logs, several at a time: each waits for the disk, which serves many requests at the cost of one."""
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
            if path.exists():
                check_entries(path)
                if topic_id is not None:
                    self._keep_topic_id(path, topic_id)
            else:
                self._make_partition(path, topic_id or uuid.uuid4())
                self._disk.sync_directory(self.path)
            log_config = self._default_config if config is None else as_config(config)
            return Log(key, path, log_config, self._home).load(clean=clean)
        except OSError as error:
            error_class = UnusablePartitionError if error.errno in _OF_ONE_PARTITION else StorageError
            raise error_class(f"{path}: can't open the log: {error}") from error

    def _make_partition(self, path: Path, topic_id: uuid.UUID) -> None:
        self._disk.make_directory(path)
        self._write_topic_id(path, topic_id)

    def _write_topic_id(self, path: Path, topic_id: uuid.UUID) -> None:
        content = checkpoints.format_partition_metadata(topic_id)
        self._disk.replace(path / names.PARTITION_METADATA, content, durable=self._in_cluster)

    def _keep_topic_id(self, path: Path, topic_id: uuid.UUID) -> None:
        """Write the file with the topic id again if a power cut removed or emptied it. A different id is kept."""
        try:
            stored_id = checkpoints.read_partition_metadata(path / names.PARTITION_METADATA)
        except CorruptCheckpointError as error:
            logger.warning("%s; the file is written again", error)
            stored_id = None
        if stored_id is None:
            self._write_topic_id(path, topic_id)
        elif stored_id != topic_id:
            logger.warning(
                "%s: the topic id is %s, but %s in the broker's metadata; was the directory copied here?",
                path / names.PARTITION_METADATA,
                stored_id,
                topic_id,
            )

    def _take_clean_marker(self) -> bool:
        marker = self.path / names.CLEAN_SHUTDOWN
        self._doomed.add(
            entry for entry in self.path.iterdir() if names.is_doomed_directory(entry.name) and entry.is_dir()
        )
        if not marker.exists():
            return False
        self._disk.remove(marker)
        self._disk.sync_directory(self.path)
        return True


def _failure(call: Callable[[], object]) -> StratalogError | None:
    try:
        call()
    except StratalogError as error:
        return error
    return None


def _close(log: Log) -> StratalogError | None:
    return _failure(lambda: log.close(save_recovery_point=False))


def as_config(config: Configs) -> LogConfig:
    if config is None:
        return LogConfig()
    return config if isinstance(config, LogConfig) else LogConfig.parse(config)


def _abandon_all() -> None:
    """Close all logs and directories in the child of a fork, without writing to, closing or unlocking any file."""
    directory_lock.forget_all()
    for directory in list(_live):
        directory.abandon()


os.register_at_fork(after_in_child=_abandon_all)

"""The life cycle of a log: open it from its files, load it again after an interrupt, close, discard or abandon it.

A log is in one of three conditions (`Condition`). An exception that is not one of ours, such as a signal handler's, may
come at any line. It leaves the log HALF_CHANGED, and the next call loads the log again from its files, which show how
far the interrupted call got. A step that would leave the log inconsistent if it failed runs in `_half_changed`.

In the child of a fork, every log is closed, and none of its files is touched.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

from stratalog.errors import LogClosedError, StorageError, StratalogError
from stratalog.storage import names
from stratalog.storage.active_segment import ActiveSegment
from stratalog.storage.appending import AppendRules, WouldWaitError
from stratalog.storage.config import LogConfig
from stratalog.storage.disk import Disk
from stratalog.storage.epochs import EpochTracker
from stratalog.storage.home import LogHome
from stratalog.storage.leader_epochs import LeaderEpochs
from stratalog.storage.names import TopicPartition
from stratalog.storage.producer_state import ProducerState
from stratalog.storage.producers import ProducerTracker
from stratalog.storage.readable_log import CLOSED, HALF_CHANGED, OPEN, Condition, ReadableLog, SegmentList
from stratalog.storage.recovery import Loader, RecoveryReport
from stratalog.storage.segment import Segment

logger = logging.getLogger(__name__)


class LogLifeCycle(ReadableLog):
    """The fields of a log, and the operations that load and release them."""

    _active: ActiveSegment

    def __init__(self, partition: TopicPartition, path: Path, config: LogConfig, home: LogHome) -> None:
        """Create an empty, closed log, which load() opens. The caller holds the lock of the data directory."""
        self.partition = partition
        self.path = path
        self.config = config
        self._home = home
        self._disk = home.disk
        self._clock = home.clock
        self._rules = AppendRules(config, home.clock)
        self._write_lock = threading.RLock()
        self._flush_lock = threading.RLock()
        self._condition: Condition = CLOSED
        self._generation = 0
        self._segments = SegmentList([], [])
        self._end_offset = self.log_start_offset = self._warm_from = 0
        self._cooled_at_end = 0  # the log end offset when _warm_from was last moved
        self._grew_ms = 0  # when it was seen that the log had grown
        self._refused_bytes = 0  # the size of a coordinator's append that has to wait for a roll
        self.recovery_point = 0  # everything before it is durable
        self.recovery = RecoveryReport(clean=False)
        self._epochs = EpochTracker(home.disk, path)
        self._producers = self._new_tracker()
        self._names_changed = 1  # counts changes of file names
        self._names_synced = 0  # the last of these changes that is durable
        self._last_flush_ms = 0
        self.closed_in_order = False
        self._on_close: Callable[[], None] | None = None

    def load(self, *, clean: bool) -> Self:
        """Open the log from its files and return it. `clean` means that it was closed in order, so nothing is
        scanned."""
        with self._write_lock:  # or OpenSegments could close the active segment while it is recovered
            self._load(clean=clean)
        self._condition = OPEN
        return self

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self.is_closed else ""
        return f"Log({self.partition}, offsets {self.log_start_offset}..{self.log_end_offset}{state})"

    @property
    def is_closed(self) -> bool:
        return self._condition is CLOSED

    @property
    def is_held_here(self) -> bool:
        """True if this thread holds one of the log's locks. An interrupt between acquiring and releasing a lock leaves
        it held, and then no other thread can close the log."""
        locks = (self._write_lock, self._flush_lock, self._epochs.file_lock)
        return any(lock._is_owned() for lock in locks)  # type: ignore[attr-defined]

    @property
    def has_owner(self) -> bool:
        """True if a callback is registered with on_close()."""
        return self._on_close is not None

    def on_close(self, call: Callable[[], None]) -> None:
        self._on_close = call

    @property
    def disk(self) -> Disk:
        return self._disk

    @property
    def generation(self) -> int:
        """A number that changes whenever the log is truncated or loaded again. What was read from its segments before
        the change is no longer valid."""
        return self._generation

    @property
    def producers(self) -> ProducerState:
        return self._producers.state

    @property
    def leader_epochs(self) -> LeaderEpochs:
        return self._epochs.epochs

    # Half changed, and loaded again

    def _check_open(self) -> None:
        if self._condition is HALF_CHANGED:
            with self._write_lock, self._storage_errors("load"):
                if self._condition is HALF_CHANGED:  # still: it may have been a truncation, which has ended
                    self._active.cut_torn_tail()
                    for segment in self._segments.all:
                        segment.retire()
                    self._load(clean=False)
                    self._condition = OPEN
        if self._condition is CLOSED:
            raise LogClosedError(f"{self.path}: the log is closed")

    @contextlib.contextmanager
    def _half_changed(self) -> Iterator[None]:
        """Mark the log as half changed while the block runs. If the block raises, the mark stays, and the next call
        loads the log again."""
        self._condition = HALF_CHANGED
        yield
        self._condition = OPEN

    @contextlib.contextmanager
    def _storage_errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._raise_failure(error, f"can't {doing} the log")

    def _raise_failure(self, error: BaseException, message: str) -> NoReturn:
        """Raise an OSError as a StorageError, and any other error unchanged. An error that is not one of ours is an
        interrupt, which may have come at any line, so it marks the log as half changed."""
        if isinstance(error, OSError):
            raise StorageError(f"{self.path}: {message}: {error}") from error
        if not isinstance(error, (StratalogError, WouldWaitError)) and self._condition is OPEN:
            self._condition = HALF_CHANGED
        raise error

    # Opening

    def _load(self, *, clean: bool) -> None:
        checkpointed_start = self._home.log_start_offsets.get(self.partition)
        recovery_point = self._home.recovery_points.get(self.partition)
        loader = self._loader(self._clock.now_ms())
        opened = loader.open(clean=clean, recovery_point=recovery_point, log_start_offset=checkpointed_start)
        self.recovery = opened.report
        self._generation += 1
        self._names_changed, self._names_synced = 1, 0
        self._last_flush_ms = self._clock.now_ms()
        self._publish(list(opened.sealed), opened.active)
        self._end_offset = self._warm_from = opened.active.next_offset
        self._load_start(checkpointed_start)
        self._load_recovery_point(recovery_point, is_whole=clean and not opened.report.problems)
        if self._home.cleaner_offsets.get(self.partition) > self._end_offset:
            self._home.cleaner_offsets.update({self.partition: self._end_offset})  # later records there are dirty
        has_epochs = names.LEADER_EPOCH_CHECKPOINT in opened.files
        self._epochs.load(self._segments.all, self._end_offset, opened.scanned, self.recovery, has_file=has_epochs)
        self._epochs.truncate_start(self.log_start_offset)
        self._producers = self._new_tracker()
        self._load_producers(opened.files)

    def _load_start(self, checkpointed: int) -> None:
        self.log_start_offset = self._segments.bases[0]
        if checkpointed > self._end_offset:
            self.recovery.note(
                f"{self.path}: the checkpoint's log start offset, {checkpointed}, is after the log end offset, "
                f"{self._end_offset}; it is ignored"
            )
            # Otherwise it would take effect as soon as the log has grown past it.
            self._home.log_start_offsets.update({self.partition: None})
        else:
            self.log_start_offset = max(self.log_start_offset, checkpointed)

    def _load_recovery_point(self, checkpointed: int, *, is_whole: bool) -> None:
        self.recovery_point = self._end_offset if is_whole else min(checkpointed, self._end_offset)
        if checkpointed > self._end_offset:
            logger.error(
                "%s: the log ends at offset %d, but it was flushed up to %d: flushed records are missing; a crash of "
                "this process can't cause that",
                self.path,
                self._end_offset,
                checkpointed,
            )
            self._home.recovery_points.update({self.partition: self._end_offset})

    def _new_tracker(self) -> ProducerTracker:
        return ProducerTracker(self._disk, self.path, self._clock, self._home.max_producer_ids)

    def _load_producers(self, files: Collection[str] | None = None) -> None:
        """Load the producers' state. `files` are the names in the partition directory, if they are known."""
        first = max(bisect_right(self._segments.bases, self.log_start_offset) - 1, 0)
        self._producers.load(self._segments.all[first:], self._end_offset, self.recovery, files)

    def _loader(self, now: int) -> Loader:
        home = self._home
        return Loader(
            self._disk, self.path, self.config, home.open_segments, home.active_segments, now, self._write_lock
        )

    def _publish(self, sealed: list[Segment], active: ActiveSegment) -> None:
        self._active = active
        segments: list[Segment] = [*sealed, active]
        self._segments = SegmentList([segment.base_offset for segment in segments], segments)

    # Closing

    def close(self, *, save_recovery_point: bool = True) -> None:
        """Flush, save what makes the next opening quick, and close the files. Does nothing if the log is closed.

        A data directory that closes all its logs saves their recovery points itself, in one write.
        """
        if self._condition is CLOSED:
            return
        try:
            self._close(save_recovery_point)
        finally:
            self._notify_owner()

    def discard(self) -> None:
        """Close a log that is about to be deleted: nothing is flushed or saved."""
        with self._flush_lock, self._write_lock:
            self._condition = CLOSED
            self._release_files()
        self._notify_owner()

    def abandon(self) -> None:
        """Close the log in the child of a fork. It belongs to the parent, so no file is touched."""
        self._condition = CLOSED
        self._on_close = None
        self._write_lock, self._flush_lock = threading.RLock(), threading.RLock()

    def _close(self, save_recovery_point: bool) -> None:
        with self._flush_lock, self._write_lock:
            if self._condition is CLOSED:
                return
            try:
                with self._storage_errors("close"):
                    self._check_open()
                    if self._is_saved():
                        self._active.finish()
                    else:
                        self._save()
                    if save_recovery_point:
                        self._home.recovery_points.update({self.partition: self._end_offset})
                    self.closed_in_order = True
            finally:
                self._condition = CLOSED
                self._release_files()

    def _is_saved(self) -> bool:
        """Return True if _save() has nothing left to make durable."""
        if self._end_offset == 0:
            return True
        return self._end_offset == self.recovery_point == self._producers.saved_at and self._epochs.is_saved

    def _save(self) -> None:
        self._flush()
        self._active.finish()
        self._active.index.sync()
        self._producers.save(self._end_offset, durable=True)
        self._producers.keep_only_snapshots({*self._segments.bases, self._end_offset})

    @abstractmethod
    def _flush(self) -> None:
        """Make everything appended so far durable. Raises OSError."""

    def _release_files(self) -> None:
        """Close the segments' files. The files of a deleted log would take up space for as long as they are open."""
        for segment in self._segments.all:
            segment.retire()
            segment.release()

    def _notify_owner(self) -> None:
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()

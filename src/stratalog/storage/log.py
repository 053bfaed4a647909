"""A partition's log: ordered segments, one of which grows. The engine can be used without a broker:

    with Log.open("data/orders-0") as log:
        log.append(build_batch([(b"key", b"value")]))

What survives: an append that returned survives kill -9. It survives a power cut once flush() returned, or the log
rolled, or flush.messages or flush.ms saw to it. An append that raises has left the log as it was.

Threads: any number of readers, which take no lock, beside one writer at a time. Lock order: the flush lock, the write
lock, a checkpoint's lock. Syncing holds the flush lock only, but for the sync at a roll.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from stratalog.errors import (
    BatchLargerThanSegmentError,
    InflatedTooLargeError,
    LogClosedError,
    OffsetOutOfRangeError,
    StorageError,
    StratalogError,
)
from stratalog.records import validation
from stratalog.records._framing import BatchHeader, stamp
from stratalog.records.batch import DEFAULT_MAX_INFLATED, Batch
from stratalog.records.reader import read_control
from stratalog.settings import LONG_MAX
from stratalog.storage import names, retention
from stratalog.storage.active_segment import ActiveSegment
from stratalog.storage.appending import (
    QUICK_BYTES,
    QUICK_INFLATED_BYTES,
    Appended,
    AppendRules,
    Origin,
    PreparedBatches,
    WouldWaitError,
    writable,
)
from stratalog.storage.compaction import swap
from stratalog.storage.compaction.cleaned_segment import CleanedSegment
from stratalog.storage.config import LogConfig
from stratalog.storage.disk import Disk
from stratalog.storage.epochs import EpochTracker
from stratalog.storage.home import LogHome
from stratalog.storage.leader_epochs import LeaderEpochs
from stratalog.storage.names import TopicPartition
from stratalog.storage.producer_state import ProducerState
from stratalog.storage.producers import ProducerTracker
from stratalog.storage.readable_log import ReadableLog, SegmentList
from stratalog.storage.recovery import Loader, RecoveryReport
from stratalog.storage.sealed_segment import SealedSegment
from stratalog.storage.segment import Segment
from stratalog.storage.segment_files import mark_segment_deleted, remove_segment_files

if TYPE_CHECKING:
    from typing_extensions import Buffer

logger = logging.getLogger(__name__)

_HIGHEST_BASE_OFFSET = 2**63 - 2**40


def _offset_count(headers: list[BatchHeader]) -> int:
    return sum(header.last_offset_delta + 1 for header in headers)


class Log(ReadableLog):
    """One partition. Append record batches, read them by offset (`read`, `records`) or time (`find_timestamp`), make
    them durable (`flush`), forget them (`advance_start`, `truncate`, `apply_retention`). Opened with `Log.open` or
    `LogDirectory.log`; a context manager that closes it."""

    recovery_point: int  # everything before it is durable
    recovery: RecoveryReport  # what opening the log found and did
    _active: ActiveSegment
    _producers: ProducerTracker
    _names_changed: int  # counts; what of it is durable is in _names_synced
    _names_synced: int
    _truncations: int
    _last_flush_ms: int

    def __init__(self, partition: TopicPartition, path: Path, config: LogConfig, home: LogHome, *, clean: bool) -> None:
        """For LogDirectory, which holds the lock on the files. Others call Log.open() or LogDirectory.log()."""
        self.partition = partition
        self.path = path
        self.config = config
        self._home = home
        self._disk = home.disk
        self._clock = home.clock
        self._rules = AppendRules(config, home.clock)
        self._epochs = EpochTracker(home.disk, path)
        self._write_lock = threading.RLock()
        self._flush_lock = threading.RLock()
        self._closed = False
        self.closed_in_order = False
        self._must_reload = False
        self._truncations = 0
        self._on_close: Callable[[], None] | None = None
        with self._write_lock:  # or its segment could be let go for another log's while it is recovered
            self._load(clean=clean)

    @classmethod
    def open(cls, path: str | Path, config: LogConfig | Mapping[str, object] | None = None) -> Log:
        """Open data/topic-N, made where it is missing; its data directory is locked until the log is closed."""
        from stratalog.storage.log_directory import open_log  # that module imports this one

        return open_log(Path(path), config)

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        return f"Log({self.partition}, offsets {self.log_start_offset}..{self.log_end_offset}{state})"

    # What it holds

    @property
    def is_closed(self) -> bool:
        return self._closed

    @property
    def is_held_here(self) -> bool:
        """Whether this thread has one of the log's locks: an interrupt may have come between its taking and its giving
        back, and then no other thread can close the log."""
        locks = (self._write_lock, self._flush_lock, self._epochs.file_lock)
        return any(lock._is_owned() for lock in locks)  # type: ignore[attr-defined]

    @property
    def has_owner(self) -> bool:
        """Whether somebody waits for close()."""
        return self._on_close is not None

    def on_close(self, call: Callable[[], None]) -> None:
        self._on_close = call

    @property
    def disk(self) -> Disk:
        return self._disk

    @property
    def generation(self) -> int:
        """Another one whenever the log was cut or loaded again: what was learnt of its segments counts no more."""
        return self._truncations

    @property
    def producers(self) -> ProducerState:
        return self._producers.state

    @property
    def first_unstable_offset(self) -> int:
        """Where the oldest open transaction begins; without one, the log's end. From any thread."""
        with self._write_lock:
            first_open = self.producers.first_open_transaction
            return self._end_offset if first_open is None else first_open

    def last_batches(self) -> dict[int, tuple[int | None, int]]:
        """By producer: the last offset of its last batch, None where it has only written markers, and its epoch. From
        any thread."""
        with self._write_lock:
            return {
                one.producer_id: (one.batches[-1].last_offset if one.batches else None, one.epoch)
                for one in self.producers
            }

    @property
    def leader_epochs(self) -> LeaderEpochs:
        return self._epochs.epochs

    # Writing

    def append(self, data: Buffer, *, leader_epoch: int | None = None, origin: Origin = Origin.CLIENT) -> Appended:
        """Add one or more record batches, which get the next offsets.

        Offsets and leader epoch are written into `data` itself where it can be written to; else into a copy. So one
        buffer must not be given to two logs, or to one from two threads, at the same time. A batch
        of an idempotent producer that is in the log already is not added again: its first offsets are returned.
        If the flush that flush.messages asks for fails, the error says so, and the batches are in the log.
        """
        appended = self._append_locked(self.prepare(data, origin), leader_epoch, origin)
        if self.flush_is_due():
            self.flush()
        return appended

    def append_at_once(self, data: Buffer, leader_epoch: int | None = None) -> Appended:
        """append() of a client's batches for a thread that must not wait. Raises WouldWaitError, and has changed
        nothing, where the append would wait for a disk or a lock, or cost much more than the bytes it is given: then
        another thread calls prepare(), and this one append_prepared()."""
        if type(data) is not bytearray:
            data = writable(data)
        if len(data) > QUICK_BYTES:
            raise WouldWaitError(f"{len(data)} bytes of records have to be checked")
        rules = self._rules
        headers = validation.parse_for_append(data, rules.max_message_bytes)
        try:
            data, headers = rules.apply(data, headers, QUICK_INFLATED_BYTES, False)
        except InflatedTooLargeError as error:
            raise WouldWaitError(str(error)) from None
        return self._append_locked(
            (data, headers, rules), leader_epoch, Origin.CLIENT, False, self.config.flush_messages
        )

    def append_prepared(self, prepared: PreparedBatches, leader_epoch: int | None = None) -> Appended:
        """Append what prepare() gave, without waiting. Raises WouldWaitError until get_ready() was called. Unlike
        append(), leaves it to the caller to flush() where flush_is_due()."""
        return self._append_locked(prepared, leader_epoch, Origin.CLIENT, False)

    def prepare(
        self, data: Buffer, origin: Origin = Origin.CLIENT, max_inflated: int = DEFAULT_MAX_INFLATED
    ) -> PreparedBatches:
        """Check batches as append() does, and compress them again where compression.type says so. Takes no lock and
        touches no file. Raises InflatedTooLargeError past `max_inflated` bytes a batch."""
        if type(data) is not bytearray:
            data = writable(data)
        rules = self._rules
        headers = validation.parse_for_append(data, rules.max_message_bytes)
        if origin is Origin.CLIENT:
            data, headers = rules.apply(data, headers, max_inflated, True)
        else:
            for header in headers:
                if header.is_control:
                    read_control(Batch(data, header))  # raises where it can't be read: it will be, once it is written
        return data, headers, rules

    def get_ready(self, prepared: PreparedBatches) -> None:
        """Wait for what append_prepared() would have to wait for: the thread that holds the lock, or a roll."""
        with self._storage_errors("roll"):
            self._roll_where(lambda: self._must_roll_before(prepared))

    def flush_is_due(self) -> bool:
        """Whether flush.messages asks for a flush before what was appended is acknowledged."""
        return self._end_offset - self.recovery_point >= self.config.flush_messages

    def _append_locked(
        self,
        prepared: PreparedBatches,
        leader_epoch: int | None,
        origin: Origin,
        may_wait: bool = True,
        most_unflushed: int = LONG_MAX,
    ) -> Appended:
        if not self._write_lock.acquire(may_wait):
            raise WouldWaitError(f"another thread holds the lock of {self.partition}")
        try:
            return self._append(prepared, leader_epoch, origin, may_wait, most_unflushed)
        except OSError as error:
            raise StorageError(f"{self.path}: nothing was appended: {error}") from error
        except (StratalogError, WouldWaitError):
            raise
        except BaseException:
            self._must_reload = True  # an interrupt may have come anywhere; the files know how far it got
            raise
        finally:
            self._write_lock.release()

    def _append(
        self,
        prepared: PreparedBatches,
        leader_epoch: int | None,
        origin: Origin,
        may_wait: bool,
        most_unflushed: int,
    ) -> Appended:
        if self._closed or self._must_reload:
            if self._must_reload and not may_wait:
                raise WouldWaitError(f"{self.path} has to be loaded again")
            self._check_open()
        data, headers, rules = prepared
        last = headers[-1]
        timestamp = last.max_timestamp
        knows_producers = last.producer_id >= 0
        count = last.last_offset_delta + 1
        if len(headers) > 1:
            count = _offset_count(headers)
            timestamp = max(header.max_timestamp for header in headers)
            knows_producers = any(header.producer_id >= 0 for header in headers)
        if knows_producers:
            if origin is Origin.CLIENT:
                duplicate = self._producers.find_duplicate(headers)
                if duplicate is not None:
                    if self._end_offset - self.recovery_point >= most_unflushed:  # the flush before may have failed
                        raise WouldWaitError(f"flush.messages asks for a flush of {self.partition}")
                    return Appended(duplicate.base_offset, duplicate.last_offset, duplicate.timestamp, duplicate=True)
                self._producers.check(headers)
            else:
                self._producers.check_epochs(headers)  # what a coordinator writes has no sequence
        size = len(data)
        if size > self.config.segment_bytes:
            raise BatchLargerThanSegmentError(f"{size} bytes do not fit segment.bytes, {self.config.segment_bytes}")
        if rules.stamps_time:
            timestamp = self._clock.now_ms()
        base_offset = self._end_offset
        if base_offset > _HIGHEST_BASE_OFFSET:
            raise StorageError(f"{self.path}: offset {base_offset} is too near the highest there is")
        last_offset = base_offset + count - 1
        if last_offset + 1 - self.recovery_point >= most_unflushed:
            raise WouldWaitError(f"flush.messages asks for a flush of {self.partition}")
        if self._active.must_roll_before(size, last_offset, timestamp, self._clock):
            if origin is Origin.COORDINATOR and self._active.has_slack(size, last_offset):
                self._home.overdue_rolls.add(self)  # a coordinator appends on the event loop, which must not wait
            elif may_wait:
                self._roll(self._clock.now_ms())
            else:
                raise WouldWaitError(f"{self.partition} has to begin a new segment")
        epoch = self._epochs.current if leader_epoch is None else leader_epoch
        if epoch != self._epochs.epochs.latest:
            self._epochs.begin(epoch, base_offset)
        end_offset = stamp(data, headers, base_offset, epoch, timestamp if rules.stamps_time else -1)
        position = self._active.size
        self._active.append(data, size, headers)
        if knows_producers:
            try:
                self._note_producers(data, headers)
            except (OSError, StratalogError):
                self._must_reload = True  # until all is undone: the state is half changed
                self._active.take_back(position, base_offset)
                self._load_producers()
                self._must_reload = False
                raise
        self._end_offset = end_offset
        return Appended(base_offset, end_offset - 1, timestamp)

    def _must_roll_before(self, prepared: PreparedBatches) -> bool:
        data, headers, rules = prepared
        timestamp = self._clock.now_ms() if rules.stamps_time else max(header.max_timestamp for header in headers)
        last_offset = self._end_offset + _offset_count(headers) - 1
        return self._active.must_roll_before(len(data), last_offset, timestamp, self._clock)

    def _note_producers(self, data: Buffer, headers: list[BatchHeader]) -> None:
        for header in headers:
            if header.producer_id >= 0:
                self._producers.note(Batch(data, header), self._active)
                self._names_changed += header.is_control  # a .txnindex may be new

    def reconfigure(self, config: LogConfig) -> None:
        """Go by other settings from now on. An append that is under way keeps to the old ones. What is about to be
        appended, rolled, flushed or deleted goes by the new ones, the growing segment too; but segment.index.bytes
        counts from the next segment on."""
        with self._write_lock:
            self.config = config
            self._rules = AppendRules(config, self._clock)
            self._active.reconfigure(config)

    def roll(self) -> None:
        """Seal the active segment and begin a new one; nothing where the active one is empty."""
        with self._storage_errors("roll"):
            self._roll_where(lambda: True)

    def roll_if_due(self) -> None:
        """Roll a quiet log by wall-clock time, for retention's sake: segment.ms is otherwise looked at by appends."""
        with self._storage_errors("roll"):
            self._roll_where(lambda: self._active.is_due_by_time(self._clock.now_ms(), self._clock))

    def roll_if_overdue(self) -> None:
        """Roll where a coordinator's append would have done it, had it been able to wait."""
        with self._storage_errors("roll"):
            self._roll_where(self._is_overdue)

    def _is_overdue(self) -> bool:
        return self._active.must_roll_before(1, self._end_offset, self._clock.now_ms(), self._clock)

    def _roll_where(self, is_due: Callable[[], bool]) -> None:
        """Most of the old segment is synced before the write lock is taken: appends don't have to wait for that."""
        with self._write_lock:
            self._check_open()
            if not is_due() or self._active.size == 0:
                return
        with self._flush_lock:
            self._flush()
        with self._write_lock:
            self._check_open()
            if is_due():
                self._roll(self._clock.now_ms())

    def _roll(self, now: int) -> None:
        """The old segment is made durable, its name too, before the new one exists: after a power cut, a segment that
        has a successor is whole, and none is missing between two others."""
        old = self._active
        if old.size == 0:
            return
        old.cut_torn_tail()
        old.flush()
        self._epochs.save()  # before the recovery point moves past their batches, here and in _flush()
        self._sync_names()
        self._producers.save(self._end_offset, durable=False)
        try:
            new = self._loader(now).open_active(self._end_offset)
        except OSError:
            self._must_reload = True  # if its files stay, it is the last segment, and the old one must not grow
            remove_segment_files(self._disk, self.path, self._end_offset)
            self._must_reload = False
            raise
        sealed = old.seal(self._home.open_segments, limit=self._end_offset)
        self._publish([*self._segments.all[:-1], sealed], new)
        old.retire()
        self.recovery_point = max(self.recovery_point, self._end_offset)
        self._names_changed += 1

    def flush(self) -> None:
        """Make everything appended so far durable: it survives a power cut from here on."""
        with self._flush_lock, self._storage_errors("flush"):
            self._check_open()
            self._flush()

    def _flush(self) -> None:
        with self._write_lock:
            active, end, generation = self._active, self._end_offset, self._truncations
            active.cut_torn_tail()
            if active.sync_failed:
                active.flush()  # writes pages again, which must not meet a truncation half way
        active.flush()
        self._epochs.save()
        self._sync_names()
        with self._write_lock:
            if generation == self._truncations:
                self.recovery_point = max(self.recovery_point, end)
        self._last_flush_ms = self._clock.now_ms()

    def _sync_names(self) -> None:
        """Make the names of new files durable. A name that is new while this runs is left to the next call."""
        changed = self._names_changed
        if changed != self._names_synced:
            self._disk.sync_directory(self.path)
            self._names_synced = changed

    def flush_if_due(self) -> None:
        """What flush.ms asks for; and a nudge to the kernel to begin writing what a later flush will wait for."""
        if self._end_offset > self.recovery_point:
            if self._clock.now_ms() - self._last_flush_ms >= self.config.flush_ms:
                self.flush()
            else:
                with self._storage_errors("write back"):
                    self._active.start_writeback()

    def save_recovery_point(self) -> None:
        with self._storage_errors("save the recovery point"):
            self._home.recovery_points.update(lambda: {self.partition: self.recovery_point})

    # Forgetting

    def truncate(self, offset: int) -> int:
        """Cut off everything from `offset` on; a batch that spans it goes whole. Returns the new end.

        Durable when it returns. Slices that reach past the cut must not be used any more.
        """
        with self._flush_lock, self._write_lock, self._storage_errors("truncate"):
            self._check_open()
            if offset >= self._end_offset:
                return self._end_offset
            if offset < self.log_start_offset:
                raise OffsetOutOfRangeError(f"offset {offset} lies before the log's start, {self.log_start_offset}")
            slot = max(bisect_right(self._segments.bases, offset) - 1, 0)
            spanning = self._segments.all[slot].locate(offset)
            end = offset if spanning is None else min(offset, spanning.base_offset)
            self._must_reload = True  # until all is done: what fails half way is sorted out by loading again
            self._truncations += 1
            # First: data written at these offsets later is not flushed, whatever the checkpoint said of the old.
            self.recovery_point = min(self.recovery_point, end)
            self._home.recovery_points.update({self.partition: self.recovery_point})
            if self._home.cleaner_offsets.get(self.partition) > end:
                self._home.cleaner_offsets.update({self.partition: end})  # what comes in its place is dirty
            if end < self.log_start_offset:  # in the middle of the batch that goes: no log starts behind its end
                self._home.log_start_offsets.update({self.partition: end})
                self.log_start_offset = end
            self._end_offset = end
            self._truncate_segments(offset, slot)
            self._must_reload = False
            return self._end_offset

    def _truncate_segments(self, offset: int, slot: int) -> None:
        for segment in reversed(self._segments.all[slot + 1 :]):
            segment.retire()
            remove_segment_files(self._disk, self.path, segment.base_offset)
            self._disk.sync_directory(self.path)
        last = self._segments.all[slot]
        if isinstance(last, SealedSegment):
            last.retire()
            active = self._loader(self._clock.now_ms()).open_active(last.base_offset, last.size)
            if not active.adopt():
                active.recover(active.base_offset, last.limit)
        else:
            active = self._active
        header = active.locate(offset)
        if header is not None:
            active.truncate(header.position, min(offset, header.base_offset))
        else:
            active.next_offset = offset
        active.flush()
        self._publish(self._segments.all[:slot], active)
        self._end_offset = active.next_offset
        self._epochs.truncate_end(self._end_offset)
        self._load_producers()

    def advance_start(self, offset: int) -> None:
        """Forget everything before `offset`, for good: durable when it returns. Files go with retention."""
        with self._storage_errors("advance the start of"):
            self.prepare_start(offset)
            self._home.log_start_offsets.raise_to({self.partition: offset})
            self.begin_at(offset)

    def prepare_start(self, offset: int) -> None:
        """Make durable what must be before the log may begin at `offset`. For whoever advances many logs: the start is
        to be saved next, and then told to begin_at()."""
        with self._flush_lock, self._storage_errors("advance the start of"):
            self._check_open()
            if offset > self._end_offset:
                raise OffsetOutOfRangeError(f"offset {offset} lies past the log's end, {self._end_offset}")
            if offset > self.recovery_point:
                self._flush()  # or a power cut could leave a log that ends before it starts
            with self._write_lock:
                self._save_producers(offset)

    def begin_at(self, offset: int) -> None:
        """Begin at `offset`, which is prepared and saved as the log's start."""
        with self._write_lock, self._storage_errors("advance the start of"):
            self._check_open()
            if offset > self._end_offset:  # the log was cut since
                offset = self._end_offset
                self._home.log_start_offsets.update({self.partition: max(offset, self.log_start_offset)})
            if offset > self.log_start_offset:
                self._begin_at(offset)

    def _save_producers(self, offset: int) -> None:
        """What lies before a log's start is not replayed any more."""
        if offset > self.log_start_offset and len(self._producers.state):
            self._producers.save(self._end_offset, durable=True)

    def _begin_at(self, offset: int) -> None:
        self.log_start_offset = offset
        self._epochs.truncate_start(offset)

    def _advance_start(self, offset: int) -> None:
        if offset <= self.log_start_offset:
            return
        self._save_producers(offset)
        self._home.log_start_offsets.raise_to({self.partition: offset})
        self._begin_at(offset)

    def apply_retention(self, upper_bound: int | None = None) -> list[retention.Doomed]:
        """Delete the segments that may go, none with offsets at or past `upper_bound` or with records of a transaction
        that is open, as its commit must not lack them; which, and why."""
        with self._write_lock, self._storage_errors("delete segments of"):
            self._check_open()
            verdicts = retention.doomed(
                [segment.retention_facts() for segment in self._segments.all],
                self.config,
                log_start_offset=self.log_start_offset,
                upper_bound=min(self.first_unstable_offset, self._end_offset if upper_bound is None else upper_bound),
                now_ms=self._clock.now_ms(),
            )
            doomed = self._forget_oldest(len(verdicts)) if verdicts else []
            self.producers.forget_before(self._clock.now_ms() - self.config.producer_id_expiration_ms)
        if doomed:
            # Without the lock: there may be thousands, and appends don't have to wait for them.
            with self._storage_errors("delete segments of"):
                self._delete_files(doomed)
        return verdicts

    def replace_segments(self, old: Sequence[Segment], cleaned: CleanedSegment, generation: int) -> bool:
        """Put a segment that compaction made in the place of those it was made from. False: they are not part of the
        log any more, or it was cut since `generation`, and with it maybe what superseded a record that went; the new
        files are removed."""
        with self._write_lock, self._storage_errors("swap segments of"):
            self._check_open()
            slot = next((at for at, segment in enumerate(self._segments.all) if segment is old[0]), None)
            is_current = slot is not None and self._segments.all[slot : slot + len(old)] == list(old)
            if not is_current or generation != self._truncations or slot is None:
                cleaned.discard()
                return False
            try:
                swap.begin(self._disk, self.path, cleaned.base_offset)
                new = self._cleaned(cleaned, old[-1].limit)
            except OSError:
                self._must_reload = True  # if it can't be undone, it counts, and the log has to know
                swap.undo(self._disk, self.path, cleaned.base_offset)
                self._must_reload = False
                raise
            # Readers get the new list before the old files lose their names: who comes too late to open one of those
            # finds that the list has changed, and looks again.
            self._publish([*self._segments.all[:slot], new, *self._segments.all[slot + len(old) : -1]], self._active)
            self._must_reload = True  # if a rename fails, opening the log again does the rest
            for segment in old:
                segment.retire()
            replaced = [segment.base_offset for segment in old]
            deleted = swap.finish(self._disk, self.path, cleaned.base_offset, replaced)
            new.settled()
            self._must_reload = False
        with self._storage_errors("swap segments of"):
            self._disk.sync_directory(self.path)  # before the old files go for good
        self._home.deletions.add(deleted, self.config.file_delete_delay_ms)
        return True

    def note_clean(self, offset: int, generation: int) -> bool:
        """Save that compaction is done up to `offset`. False: the log was cut or closed since `generation`."""
        counts = False

        def changes() -> dict[TopicPartition, int | None]:
            # Asked with the checkpoint's lock held: who cuts the log lowers the offset behind this, or is seen here.
            nonlocal counts
            counts = not self._closed and generation == self._truncations
            return {self.partition: offset} if counts else {}

        with self._storage_errors("save what is clean of"):
            self._home.cleaner_offsets.update(changes)
        return counts

    def _cleaned(self, cleaned: CleanedSegment, limit: int) -> SealedSegment:
        new = SealedSegment(
            self._disk,
            self.path,
            cleaned.base_offset,
            cleaned.size,
            limit,
            self.config,
            self._home.open_segments,
            checked_from=0,
            max_timestamp=cleaned.max_timestamp,
        )
        new.open_before_rename(names.SWAP, cleaned.aborted)
        return new

    def _forget_oldest(self, count: int) -> list[Segment]:
        if count == len(self._segments.all):
            self._roll(self._clock.now_ms())
        doomed, kept = self._segments.all[:count], self._segments.all[count:]
        # The new start first, durable: whichever of the files a power cut brings back, they lie before it.
        self._advance_start(kept[0].base_offset)
        self._publish(kept[:-1], self._active)
        for segment in doomed:
            segment.retire()
        return doomed

    def _delete_files(self, doomed: list[Segment]) -> None:
        for segment in doomed:
            paths = mark_segment_deleted(self._disk, self.path, segment.base_offset)
            self._home.deletions.add(paths, self.config.file_delete_delay_ms)
        self._producers.forget_snapshots_before(doomed[-1].limit)

    # Opening and closing

    def close(self, *, save_recovery_point: bool = True) -> None:
        """Flush, save what saves time at the next opening, and let go. Closing twice is fine.

        A data directory that closes all its logs saves their recovery points itself, at once.
        """
        if self._closed:
            return
        try:
            self._close(save_recovery_point)
        finally:
            self._tell_closed()

    def discard(self) -> None:
        """Close a log that is about to be deleted: nothing is flushed or saved."""
        with self._flush_lock, self._write_lock:
            self._closed = True
            self._let_go_of_files()
        self._tell_closed()

    def _let_go_of_files(self) -> None:
        """Or those of a deleted log would take up room for as long as they are open."""
        for segment in self._segments.all:
            segment.retire()
            segment.release()

    def _tell_closed(self) -> None:
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()

    def _close(self, save_recovery_point: bool) -> None:
        with self._flush_lock, self._write_lock:
            if self._closed:
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
                self._closed = True
                self._let_go_of_files()

    def _is_saved(self) -> bool:
        """Whether all that _save() would make durable is so already, or is nothing."""
        if self._end_offset == 0:
            return True
        return self._end_offset == self.recovery_point == self._producers.saved_at and self._epochs.is_saved

    def _save(self) -> None:
        self._flush()
        self._active.finish()
        self._active.index.sync()
        self._producers.save(self._end_offset, durable=True)
        self._producers.keep_only_snapshots({*self._segments.bases, self._end_offset})

    def abandon(self) -> None:
        """For the child of a fork: the log is the parent's. Here it is closed, and no file is touched."""
        self._closed = True
        self._on_close = None
        self._write_lock, self._flush_lock = threading.RLock(), threading.RLock()

    def _load(self, *, clean: bool) -> None:
        checkpointed_start = self._home.log_start_offsets.get(self.partition)
        recovery_point = self._home.recovery_points.get(self.partition)
        loader = self._loader(self._clock.now_ms())
        opened = loader.open(clean=clean, recovery_point=recovery_point, log_start_offset=checkpointed_start)
        self.recovery = opened.report
        self._truncations += 1
        self._names_changed, self._names_synced = 1, 0
        self._last_flush_ms = self._clock.now_ms()
        self._publish(list(opened.sealed), opened.active)
        self._end_offset = opened.active.next_offset
        self.log_start_offset = self._segments.bases[0]
        if checkpointed_start > self._end_offset:
            self.recovery.note(
                f"{self.path}: log start offset {checkpointed_start} of the checkpoint lies past the log's end, "
                f"{self._end_offset}; not used"
            )
            # Or it would count again as soon as the log has grown past it.
            self._home.log_start_offsets.update({self.partition: None})
        else:
            self.log_start_offset = max(self.log_start_offset, checkpointed_start)
        self.recovery_point = (
            self._end_offset if clean and not opened.report.problems else min(recovery_point, self._end_offset)
        )
        if recovery_point > self._end_offset:
            logger.error(
                "%s: the log ends at %d, but %d was durable: what lay between is gone, by no crash of this program",
                self.path,
                self._end_offset,
                recovery_point,
            )
            self._home.recovery_points.update({self.partition: self._end_offset})
        if self._home.cleaner_offsets.get(self.partition) > self._end_offset:
            self._home.cleaner_offsets.update({self.partition: self._end_offset})  # what will come there is dirty
        has_epochs = names.LEADER_EPOCH_CHECKPOINT in opened.files
        self._epochs.load(self._segments.all, self._end_offset, opened.scanned, self.recovery, has_file=has_epochs)
        self._epochs.truncate_start(self.log_start_offset)
        self._producers = ProducerTracker(self._disk, self.path)
        self._load_producers(opened.files)

    def _load_producers(self, files: Collection[str] | None = None) -> None:
        """`files`: what is in the directory, where that is known."""
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

    def _check_open(self) -> None:
        if self._closed:
            raise LogClosedError(f"{self.path}: the log is closed")
        if self._must_reload:
            with self._write_lock, self._storage_errors("load"):
                if self._must_reload:  # still: it may have been a truncation that was under way, and is done
                    self._active.cut_torn_tail()
                    for segment in self._segments.all:
                        segment.retire()
                    self._load(clean=False)
                    self._must_reload = False

    @contextlib.contextmanager
    def _storage_errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(f"{self.path}: can't {doing} the log: {error}") from error
        except StratalogError:
            raise
        except BaseException:
            self._must_reload = True  # an interrupt may have come anywhere; the files know how far it got
            raise

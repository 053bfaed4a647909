"""A partition's log: ordered segments, the last of which grows. The engine can be used without a broker:

    with Log.open("data/orders-0") as log:
        log.append(build_batch([(b"key", b"value")]))

What survives: an append that returned survives kill -9. It survives a power cut once flush() returned, the log rolled,
or flush.messages or flush.ms caused a flush. An append that raises has left the log as it was.

Threads: any number of readers, which take no lock, and one writer at a time. Lock order: the flush lock, the write
lock, a checkpoint's lock.

This module appends. The layers below it: replica_log.py follows another broker, trimmable_log.py removes records,
durable_log.py flushes and rolls, log_life_cycle.py opens and closes, readable_log.py reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from stratalog.errors import BatchLargerThanSegmentError, DecompressedTooLargeError, StorageError, StratalogError
from stratalog.records import validation
from stratalog.records._framing import BatchHeader, stamp
from stratalog.records.batch import DEFAULT_MAX_DECOMPRESSED, Batch
from stratalog.records.reader import read_control
from stratalog.settings import LONG_MAX
from stratalog.storage.appending import (
    QUICK_BYTES,
    QUICK_DECOMPRESSED_BYTES,
    Appended,
    AppendRules,
    Origin,
    PreparedBatches,
    WouldWaitError,
    writable,
)
from stratalog.storage.config import LogConfig
from stratalog.storage.readable_log import CLOSED, HALF_CHANGED, OPEN
from stratalog.storage.replica_log import HIGHEST_BASE_OFFSET, ReplicaLog

if TYPE_CHECKING:
    from typing_extensions import Buffer

_LOCK_SECONDS = 0.002  # longer than a thread holds the lock that doesn't wait for a disk


class Log(ReplicaLog):
    """One partition. Append record batches, read them by offset (`read`, `records`) or time (`find_timestamp`), make
    them durable (`flush`), remove them (`advance_start`, `truncate`, `apply_retention`). Opened with `Log.open` or
    `LogDirectory.log`; a context manager that closes it."""

    @classmethod
    def open(cls, path: str | Path, config: LogConfig | Mapping[str, object] | None = None) -> Log:
        """Open data/topic-N, created where it is missing; its data directory is locked until the log is closed."""
        from stratalog.storage.single_logs import open_log  # that module imports this one

        return open_log(Path(path), config)

    def reconfigure(self, config: LogConfig) -> None:
        """Use other settings from now on. An append that is in progress keeps the old ones. The active segment follows
        the new ones too, except for segment.index.bytes, which counts from the next segment on."""
        with self._write_lock:
            self.config = config
            self._rules = AppendRules(config, self._clock)
            if self._condition is not CLOSED:
                self._active.reconfigure(config)

    def last_batches(self) -> dict[int, tuple[int | None, int]]:
        """Return by producer id: the last offset of the producer's last batch, None if it has only written markers, and
        its producer epoch. Safe in any thread."""
        with self._write_lock:
            return {
                producer.producer_id: (producer.batches[-1].last_offset if producer.batches else None, producer.epoch)
                for producer in self.producers
            }

    def append(self, data: Buffer, *, leader_epoch: int | None = None, origin: Origin = Origin.CLIENT) -> Appended:
        """Append one or more record batches, which get the next offsets.

        Offsets and leader epoch are written into `data` itself if it is writable, else into a copy. So one buffer must
        not be given to two logs, or to one from two threads, at the same time. A batch of an idempotent producer that
        is in the log already is not appended again: its first offsets are returned. If the flush that flush.messages
        requires fails, the error says so, and the batches are in the log.
        """
        appended = self._append_locked(self.prepare(data, origin), leader_epoch, origin)
        if self.flush_is_due():
            self.flush()
        return appended

    def append_at_once(self, data: Buffer, leader_epoch: int | None = None) -> Appended:
        """append() of a client's batches for a thread that must not wait. Raises WouldWaitError, and has changed
        nothing, if the append would wait for a disk or a lock, or would take much longer than its size suggests: then
        another thread calls prepare(), and this one append_prepared()."""
        if type(data) is not bytearray:
            data = writable(data)
        if len(data) > QUICK_BYTES:
            raise WouldWaitError(f"{len(data)} bytes of records have to be checked")
        rules = self._rules
        headers = validation.parse_for_append(data, rules.max_message_bytes)
        try:
            data, headers = rules.apply(data, headers, QUICK_DECOMPRESSED_BYTES, False)
        except DecompressedTooLargeError as error:
            raise WouldWaitError(str(error)) from None
        return self._append_locked(
            (data, headers, rules), leader_epoch, Origin.CLIENT, False, self.config.flush_messages
        )

    def append_for_coordinator(self, data: Buffer, leader_epoch: int, *, may_wait: bool = False) -> Appended:
        """append() for a coordinator, on the event loop. Leaves a roll that is due to the housekeeper, and a flush to
        the caller if flush_is_due().

        Raises WouldWaitError, and has changed nothing, if another thread holds the log for some milliseconds, or if
        the segment is an eighth too large and must roll first. A thread that `may_wait` appends as append() does.
        """
        if may_wait:
            return self.append(data, leader_epoch=leader_epoch, origin=Origin.COORDINATOR)
        prepared = self.prepare(data, Origin.COORDINATOR)
        return self._append_locked(prepared, leader_epoch, Origin.COORDINATOR, False, lock_seconds=_LOCK_SECONDS)

    def append_prepared(self, prepared: PreparedBatches, leader_epoch: int | None = None) -> Appended:
        """Append what prepare() returned, without waiting. Raises WouldWaitError until get_ready() was called. Unlike
        append(), leaves it to the caller to flush() if flush_is_due()."""
        return self._append_locked(prepared, leader_epoch, Origin.CLIENT, False)

    def prepare(
        self, data: Buffer, origin: Origin = Origin.CLIENT, max_decompressed: int = DEFAULT_MAX_DECOMPRESSED
    ) -> PreparedBatches:
        """Check batches as append() does, and compress them again if compression.type requires it. Takes no lock and
        touches no file. Raises DecompressedTooLargeError if a batch has more than `max_decompressed` bytes after
        decompression."""
        if type(data) is not bytearray:
            data = writable(data)
        rules = self._rules
        headers = validation.parse_for_append(data, rules.max_message_bytes)
        if origin is Origin.CLIENT:
            data, headers = rules.apply(data, headers, max_decompressed, True)
        else:
            for header in headers:
                if header.is_control:
                    read_control(Batch(data, header))  # raises if it can't be read: it will be, once it is written
        return data, headers, rules

    def get_ready(self, prepared: PreparedBatches) -> None:
        """Wait for what append_prepared() would have to wait for: the thread that holds the lock, or a roll."""
        with self._storage_errors("roll"):
            self._roll_where(lambda: self._must_roll_before(prepared))

    def _append_locked(
        self,
        prepared: PreparedBatches,
        leader_epoch: int | None,
        origin: Origin,
        may_wait: bool = True,
        most_unflushed: int = LONG_MAX,
        lock_seconds: float = 0,
    ) -> Appended:
        if not self._write_lock.acquire(timeout=-1 if may_wait else lock_seconds):
            raise WouldWaitError(f"another thread holds the lock of {self.partition}")
        try:
            return self._append(prepared, leader_epoch, origin, may_wait, most_unflushed)
        except BaseException as error:
            self._raise_failure(error, "nothing was appended")
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
        if self._condition is not OPEN:
            if self._condition is HALF_CHANGED and not may_wait:
                if origin is Origin.COORDINATOR:
                    self._request_roll(1)  # for which the housekeeper loads the log again
                raise WouldWaitError(f"{self.path} has to be loaded again")
            self._check_open()
        data, headers, rules = prepared
        last = headers[-1]
        timestamp = last.max_timestamp
        has_producers = last.producer_id >= 0
        count = last.last_offset_delta + 1
        if len(headers) > 1:
            count = _offset_count(headers)
            timestamp = max(header.max_timestamp for header in headers)
            has_producers = any(header.producer_id >= 0 for header in headers)
        if has_producers:
            if origin is Origin.CLIENT:
                duplicate = self._producers.find_duplicate(headers)
                if duplicate is not None:
                    if self._end_offset - self.recovery_point >= most_unflushed:  # the flush before may have failed
                        raise WouldWaitError(f"flush.messages requires a flush of {self.partition}")
                    return Appended(duplicate.base_offset, duplicate.last_offset, duplicate.timestamp, duplicate=True)
                self._producers.check(headers)
            else:
                self._producers.check_epochs(headers)  # batches of a coordinator have no sequence
        size = len(data)
        if size > self.config.segment_bytes:
            raise BatchLargerThanSegmentError(
                f"the batches have {size} bytes, more than segment.bytes, {self.config.segment_bytes}"
            )
        if rules.stamps_time:
            timestamp = self._clock.now_ms()
        base_offset = self._end_offset
        if base_offset > HIGHEST_BASE_OFFSET:
            raise StorageError(f"{self.path}: offset {base_offset} is too close to the highest possible one")
        last_offset = base_offset + count - 1
        if last_offset + 1 - self.recovery_point >= most_unflushed:
            raise WouldWaitError(f"flush.messages requires a flush of {self.partition}")
        if self._active.must_roll_before(size, last_offset, timestamp, self._clock):
            if origin is Origin.COORDINATOR and self._active.has_slack(size, last_offset):
                self._home.overdue_rolls.add(self)  # a coordinator appends on the event loop, which must not wait
            elif may_wait:
                self._roll(self._clock.now_ms())
            else:
                if origin is Origin.COORDINATOR:
                    self._request_roll(size)
                raise WouldWaitError(f"{self.partition} has to roll")
        epoch = self._epochs.current if leader_epoch is None else leader_epoch
        if epoch != self._epochs.epochs.latest:
            self._epochs.begin(epoch, base_offset)
        end_offset = stamp(data, headers, base_offset, epoch, timestamp if rules.stamps_time else -1)
        position = self._active.size
        self._active.append(data, size, headers)
        if has_producers:
            try:
                self._note_producers(data, headers)
            except (OSError, StratalogError):
                with self._half_changed():  # some of the batches are noted
                    self._active.take_back(position, base_offset)
                    self._load_producers()
                raise
        self._end_offset = end_offset
        return Appended(base_offset, end_offset - 1, timestamp)

    def _request_roll(self, size: int) -> None:
        """Have the housekeeper roll at once, for an append of this size that is refused until then."""
        self._refused_bytes = max(self._refused_bytes, size)
        self._home.overdue_rolls.add(self)
        self._home.roll_requested.set()

    def _must_roll_before(self, prepared: PreparedBatches) -> bool:
        data, headers, rules = prepared
        timestamp = self._clock.now_ms() if rules.stamps_time else max(header.max_timestamp for header in headers)
        last_offset = self._end_offset + _offset_count(headers) - 1
        return self._active.must_roll_before(len(data), last_offset, timestamp, self._clock)


def _offset_count(headers: list[BatchHeader]) -> int:
    return sum(header.last_offset_delta + 1 for header in headers)

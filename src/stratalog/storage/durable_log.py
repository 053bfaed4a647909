"""Making a log durable: flush, and roll, which flushes the segment that it seals.

A sync holds the flush lock only, so that appends continue, except for the sync at a roll and after a failed sync.
Before the recovery point moves, everything that a recovery could no longer find is made durable: the segment, the
leader epochs, and the names of new files.
"""

from __future__ import annotations

from collections.abc import Callable

from stratalog.storage.log_life_cycle import LogLifeCycle
from stratalog.storage.segment_files import remove_segment_files

_WARM_BYTES = 32 * 1024 * 1024
_WARM_MS = 60_000


class DurableLog(LogLifeCycle):
    """Everything before `recovery_point` survives a power cut."""

    def flush(self) -> None:
        """Make everything appended so far durable: it survives a power cut from here on."""
        with self._flush_lock, self._storage_errors("flush"):
            self._check_open()
            self._flush()

    def flush_is_due(self) -> bool:
        """Return whether flush.messages requires a flush before the last append is acknowledged."""
        return self._end_offset - self.recovery_point >= self.config.flush_messages

    def flush_if_due(self) -> None:
        """Flush if flush.ms requires it; else have the kernel start to write, so that a later flush waits less."""
        self._let_cool()
        if self._end_offset > self.recovery_point:
            if self._clock.now_ms() - self._last_flush_ms >= self.config.flush_ms:
                self.flush()
            else:
                with self._storage_errors("write back"):
                    self._active.start_writeback()

    def _let_cool(self) -> None:
        """Assume only of the batches that were written last, and not long ago, that they are in the page cache."""
        end, now_ms = self._end_offset, self._clock.now_ms()
        if end == self._cooled_at_end:
            if now_ms - self._grew_ms > _WARM_MS:
                self._warm_from = end
            return
        self._cooled_at_end, self._grew_ms = end, now_ms
        active, size = self._active, 0
        for segment in reversed(self._segments.all):
            size += segment.size
            if size > _WARM_BYTES:
                # Of sealed segments the names are enough: their files may be closed, deleted, or lack an index.
                first = active.offset_behind(size - _WARM_BYTES) if segment is active else segment.base_offset
                self._warm_from = max(self._warm_from, first)
                return

    def save_recovery_point(self) -> None:
        with self._storage_errors("save the recovery point of"):
            self._home.recovery_points.update(lambda: {self.partition: self.recovery_point})

    def roll(self) -> None:
        """Seal the active segment and begin a new one, unless the active one is empty."""
        with self._storage_errors("roll"):
            self._roll_where(lambda: True)

    def roll_if_due(self) -> None:
        """Roll a quiet log by wall-clock time, so that retention can delete the segment: otherwise only an append
        checks segment.ms."""
        with self._storage_errors("roll"):
            self._roll_where(lambda: self._active.is_due_by_time(self._clock.now_ms(), self._clock))

    def roll_if_overdue(self) -> None:
        """Roll where a coordinator's append found a roll due but could not wait for it."""
        with self._storage_errors("roll"):
            self._roll_where(self._is_overdue)

    def _is_overdue(self) -> bool:
        needed = max(self._refused_bytes, 1)
        return self._active.must_roll_before(needed, self._end_offset, self._clock.now_ms(), self._clock)

    def _roll_where(self, is_due: Callable[[], bool]) -> None:
        """Roll if `is_due`. Most of the old segment is synced before the write lock is taken, so that appends don't
        wait for it."""
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
        """Make the old segment and its name durable before the new one exists: after a power cut, a segment that has a
        successor is whole, and none is missing between two others."""
        old = self._active
        if old.size == 0:
            return
        old.cut_torn_tail()
        old.flush()
        self._epochs.save()
        self._sync_names()
        self._producers.save(self._end_offset, durable=False)
        try:
            new = self._loader(now).open_active(self._end_offset)
        except OSError:
            with self._half_changed():  # if its files stay, it is the last segment, and the old one must not grow
                remove_segment_files(self._disk, self.path, self._end_offset)
            raise
        sealed = old.seal(self._home.open_segments, limit=self._end_offset)
        self._publish([*self._segments.all[:-1], sealed], new)
        self._refused_bytes = 0
        old.retire()
        self.recovery_point = max(self.recovery_point, self._end_offset)
        self._names_changed += 1

    def _flush(self) -> None:
        with self._write_lock:
            active, end, generation = self._active, self._end_offset, self._generation
            active.cut_torn_tail()
            if active.sync_failed:
                active.flush()  # writes pages again, which a truncation must not interleave with
        active.flush()
        self._epochs.save()
        self._sync_names()
        with self._write_lock:
            if generation == self._generation:
                self.recovery_point = max(self.recovery_point, end)
        self._last_flush_ms = self._clock.now_ms()

    def _sync_names(self) -> None:
        """Make the names of new files durable. A name that is new while this runs is left to the next call."""
        changed = self._names_changed
        if changed != self._names_synced:
            self._disk.sync_directory(self.path)
            self._names_synced = changed

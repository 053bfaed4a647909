"""Removes records from a log: at its end (truncate), at its start (advance_start, retention), and within it (segments
that compaction replaces).

A power cut may bring removed files back, and their records must not count again. So the recovery point is lowered
before a truncation, the log start offset is saved before segments are deleted, and a compacted segment is durable
before the old segments lose their names.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

from stratalog.errors import OffsetOutOfRangeError
from stratalog.storage import names, retention
from stratalog.storage.compaction import swap
from stratalog.storage.compaction.cleaned_segment import CleanedSegment
from stratalog.storage.durable_log import DurableLog
from stratalog.storage.names import TopicPartition
from stratalog.storage.readable_log import CLOSED
from stratalog.storage.sealed_segment import SealedSegment
from stratalog.storage.segment import Segment
from stratalog.storage.segment_files import mark_segment_deleted, remove_segment_files


class TrimmableLog(DurableLog):
    """A log from which records can be removed durably."""

    high_watermark: int | None = None
    """Set by the broker of a cluster. Retention, compaction and advance_start() remove nothing at or after it, because
    the other replicas may not have it. None without other replicas: then all records are committed."""

    @property
    def first_unstable_offset(self) -> int:
        """The first offset of the oldest open transaction, or the log end offset if no transaction is open. Safe in any
        thread."""
        with self._write_lock:
            first_open = self.producers.first_open_transaction
            return self._end_offset if first_open is None else first_open

    @property
    def first_kept_offset(self) -> int:
        """The offset from which on retention and compaction remove nothing: that of an open transaction, or the high
        watermark. Safe in any thread."""
        unstable, high_watermark = self.first_unstable_offset, self.high_watermark
        return unstable if high_watermark is None else min(unstable, high_watermark)

    # From the end

    def truncate(self, offset: int) -> int:
        """Remove all records from `offset` on and return the new log end offset. A batch that spans `offset` is removed
        completely.

        Durable when it returns. A FileSlice that reaches past the new end must not be used any more.
        """
        with self._flush_lock, self._write_lock, self._storage_errors("truncate"):
            self._check_open()
            if offset >= self._end_offset:
                self._epochs.truncate_end(self._end_offset)  # its leader began it here, and another leader did not
                return self._end_offset
            if offset < self.log_start_offset:
                raise OffsetOutOfRangeError(f"offset {offset} is before the log start offset, {self.log_start_offset}")
            slot = max(bisect_right(self._segments.bases, offset) - 1, 0)
            spanning = self._segments.all[slot].locate(offset)
            end = offset if spanning is None else min(offset, spanning.base_offset)
            with self._half_changed():
                self._generation += 1
                if self.recovery_point < end:
                    self._flush()  # recovery would remove the last batch that stays if it is not flushed, after a gap
                self._truncate_checkpoints(end)
                self._end_offset = end
                self._truncate_segments(offset, slot)
            return self._end_offset

    def _truncate_checkpoints(self, end: int) -> None:
        # First of all: later records at these offsets are not flushed, though the checkpoint says so of the old ones.
        self.recovery_point = min(self.recovery_point, end)
        self._home.recovery_points.update({self.partition: self.recovery_point})
        if self._home.cleaner_offsets.get(self.partition) > end:
            self._home.cleaner_offsets.update({self.partition: end})  # later records at these offsets are dirty
        if self._home.high_watermarks.get(self.partition) > end:
            self._home.high_watermarks.update({self.partition: end})
        if end < self.log_start_offset:  # it was inside the removed batch, and must not be after the log end offset
            self._home.log_start_offsets.update({self.partition: end})
            self.log_start_offset = end

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

    # From the start

    def advance_start(self, offset: int) -> None:
        """Move the log start offset to `offset`, durably. Retention deletes the segments before it."""
        with self._storage_errors("advance the start of"):
            self.prepare_start(offset)
            self._home.log_start_offsets.raise_to({self.partition: offset})
            self.begin_at(offset)

    def prepare_start(self, offset: int) -> None:
        """Make durable what must be durable before the log may start at `offset`. A caller that advances many logs then
        saves all the offsets at once and calls begin_at() on each log."""
        with self._flush_lock, self._storage_errors("advance the start of"):
            self._check_open()
            if offset > self._end_offset:
                raise OffsetOutOfRangeError(f"offset {offset} is after the log end offset, {self._end_offset}")
            if self.high_watermark is not None and offset > self.high_watermark:
                raise OffsetOutOfRangeError(f"offset {offset} is after the high watermark, {self.high_watermark}")
            if offset > self.recovery_point:
                self._flush()  # or a power cut could leave a log that ends before its start
            with self._write_lock:
                self._save_producers(offset)

    def begin_at(self, offset: int) -> None:
        """Make `offset` the log start offset. It was passed to prepare_start() and saved before."""
        with self._write_lock, self._storage_errors("advance the start of"):
            self._check_open()
            if offset > self._end_offset:  # the log was truncated in the meantime
                offset = self._end_offset
                self._home.log_start_offsets.update({self.partition: max(offset, self.log_start_offset)})
            if offset > self.log_start_offset:
                self._begin_at(offset)

    def _save_producers(self, offset: int) -> None:
        """Save a snapshot if the log start offset advances: records before it are not replayed any more."""
        if offset > self.log_start_offset and len(self._producers.state):
            self._producers.save(self._end_offset, durable=True)

    def _begin_at(self, offset: int) -> None:
        self.log_start_offset = offset
        self._epochs.truncate_start(offset)

    def apply_retention(self) -> list[retention.Doomed]:
        """Delete the segments that the retention settings no longer keep, and return them with the reasons. A segment
        stays if it has offsets at or after the high watermark, or records of an open transaction, which may still
        commit."""
        with self._write_lock, self._storage_errors("delete segments of"):
            self._check_open()
            verdicts = retention.doomed(
                [segment.retention_facts() for segment in self._segments.all],
                self.config,
                log_start_offset=self.log_start_offset,
                upper_bound=self.first_kept_offset,
                now_ms=self._clock.now_ms(),
            )
            doomed = self._drop_oldest(len(verdicts)) if verdicts else []
            self.producers.forget_before(self._clock.now_ms() - self.config.producer_id_expiration_ms)
        if doomed:
            # Without the lock: there may be thousands of files, and appends don't have to wait for them.
            with self._storage_errors("delete segments of"):
                self._delete_files(doomed)
        return verdicts

    def _drop_oldest(self, count: int) -> list[Segment]:
        if count == len(self._segments.all):
            self._roll(self._clock.now_ms())
        doomed, kept = self._segments.all[:count], self._segments.all[count:]
        start = kept[0].base_offset
        # First the new start, durably: whichever files a power cut brings back, they are before it.
        if start > self.log_start_offset:
            self._save_producers(start)
            self._home.log_start_offsets.raise_to({self.partition: start})
            self._begin_at(start)
        self._publish(kept[:-1], self._active)
        for segment in doomed:
            segment.retire()
        return doomed

    def _delete_files(self, doomed: list[Segment]) -> None:
        for segment in doomed:
            paths = mark_segment_deleted(self._disk, self.path, segment.base_offset)
            self._home.deletions.add(paths, self.config.file_delete_delay_ms)
        self._producers.forget_snapshots_before(doomed[-1].limit)

    # From within

    def replace_segments(self, old: Sequence[Segment], cleaned: CleanedSegment, generation: int) -> bool:
        """Replace segments by the segment that compaction wrote from them, and return True.

        Remove the new files and return False if the segments are no longer part of the log, or if the log was truncated
        since `generation`: the truncation may have removed the record that superseded one that compaction left out.
        """
        # The flush lock keeps truncations out. The new names are synced before the write lock is taken, so that appends
        # don't wait for the disk.
        with self._flush_lock, self._storage_errors("swap segments of"):
            with self._write_lock:
                self._check_open()
                is_current = self._slot_of(old, generation) is not None
            if not is_current:
                cleaned.discard()
                return False
            try:
                swap.begin(self._disk, self.path, cleaned.base_offset)
                new = self._cleaned(cleaned, old[-1].limit)
            except OSError:
                self._undo_swap(cleaned)
                raise
            deleted = self._put_in_place(old, new, generation)
            if deleted is None:
                self._undo_swap(cleaned)
                return False
            self._disk.sync_directory(self.path)  # before the old files are removed
        self._home.deletions.add(deleted, self.config.file_delete_delay_ms)
        return True

    def _slot_of(self, segments: Sequence[Segment], generation: int) -> int | None:
        """Return the index of the first of these segments in the log's list. Return None if they are no longer in it,
        or if the log was truncated since `generation`."""
        slot = next((at for at, segment in enumerate(self._segments.all) if segment is segments[0]), None)
        if slot is None or generation != self._generation:
            return None
        return slot if self._segments.all[slot : slot + len(segments)] == list(segments) else None

    def _put_in_place(self, old: Sequence[Segment], new: SealedSegment, generation: int) -> list[Path] | None:
        """Publish `new` and rename the files. Return the files to remove later, or None if retention deleted one of the
        old segments in the meantime."""
        with self._write_lock:
            self._check_open()
            slot = self._slot_of(old, generation)
            if slot is None:
                new.retire()
                new.release()
                return None
            # Readers get the new list before the old files lose their names. A reader that is too late to open an old
            # file finds that the list has changed, and starts again.
            self._publish([*self._segments.all[:slot], new, *self._segments.all[slot + len(old) : -1]], self._active)
            with self._half_changed():  # if a rename fails, loading the log again finishes the swap
                for segment in old:
                    segment.retire()
                replaced = [segment.base_offset for segment in old]
                deleted = swap.finish(self._disk, self.path, new.base_offset, replaced)
                new.renamed()
            return deleted

    def _undo_swap(self, cleaned: CleanedSegment) -> None:
        # If undoing fails, the swap may be in effect, and the log has to load its files again.
        with self._write_lock, self._half_changed():
            swap.undo(self._disk, self.path, cleaned.base_offset)

    def note_clean(self, offset: int, generation: int) -> bool:
        """Save that the log is compacted up to `offset` and return True. Return False and save nothing if the log was
        truncated or closed since `generation`."""
        is_current = False

        def changes() -> dict[TopicPartition, int | None]:
            # Called with the checkpoint's lock held: a truncation either lowers the offset after this, or is seen here.
            nonlocal is_current
            is_current = self._condition is not CLOSED and generation == self._generation
            return {self.partition: offset} if is_current else {}

        with self._storage_errors("save the cleaner offset of"):
            self._home.cleaner_offsets.update(changes)
        return is_current

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

"""Taking records out of a log: from its end (truncate), from its start (advance_start, retention), and from within
(segments that compaction replaces).

What a power cut could bring back must not count again. So the recovery point is lowered before a truncation, the log
start offset is saved before segments are deleted, and a compacted segment is durable before the old ones lose their
names.
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
    """A log that can lose records, durably and in order."""

    @property
    def first_unstable_offset(self) -> int:
        """The first offset of the oldest open transaction; without one, the log end offset. Safe in any thread."""
        with self._write_lock:
            first_open = self.producers.first_open_transaction
            return self._end_offset if first_open is None else first_open

    # From the end

    def truncate(self, offset: int) -> int:
        """Remove everything from `offset` on and return the new log end offset; a batch that spans `offset` is removed
        as a whole.

        Durable when it returns. A FileSlice that reaches past the new end must not be used any more.
        """
        with self._flush_lock, self._write_lock, self._storage_errors("truncate"):
            self._check_open()
            if offset >= self._end_offset:
                return self._end_offset
            if offset < self.log_start_offset:
                raise OffsetOutOfRangeError(f"offset {offset} is before the log start offset, {self.log_start_offset}")
            slot = max(bisect_right(self._segments.bases, offset) - 1, 0)
            spanning = self._segments.all[slot].locate(offset)
            end = offset if spanning is None else min(offset, spanning.base_offset)
            with self._half_changed():
                self._generation += 1
                self._truncate_checkpoints(end)
                self._end_offset = end
                self._truncate_segments(offset, slot)
            return self._end_offset

    def _truncate_checkpoints(self, end: int) -> None:
        # First: what is written at these offsets later is not flushed, whatever the checkpoint says of the old records.
        self.recovery_point = min(self.recovery_point, end)
        self._home.recovery_points.update({self.partition: self.recovery_point})
        if self._home.cleaner_offsets.get(self.partition) > end:
            self._home.cleaner_offsets.update({self.partition: end})  # what is written in its place is dirty
        if end < self.log_start_offset:  # within the batch that is removed: no log starts behind its end
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
        """Move the log start offset to `offset`, durably. Retention deletes the files before it."""
        with self._storage_errors("advance the start of"):
            self.prepare_start(offset)
            self._home.log_start_offsets.raise_to({self.partition: offset})
            self.begin_at(offset)

    def prepare_start(self, offset: int) -> None:
        """Make durable what must be before the log may start at `offset`. A caller that advances many logs saves all
        the offsets next, and then calls begin_at() of each."""
        with self._flush_lock, self._storage_errors("advance the start of"):
            self._check_open()
            if offset > self._end_offset:
                raise OffsetOutOfRangeError(f"offset {offset} is past the log end offset, {self._end_offset}")
            if offset > self.recovery_point:
                self._flush()  # or a power cut could leave a log that ends before it starts
            with self._write_lock:
                self._save_producers(offset)

    def begin_at(self, offset: int) -> None:
        """Start at `offset`, which is prepared and saved as the log start offset."""
        with self._write_lock, self._storage_errors("advance the start of"):
            self._check_open()
            if offset > self._end_offset:  # the log was truncated since
                offset = self._end_offset
                self._home.log_start_offsets.update({self.partition: max(offset, self.log_start_offset)})
            if offset > self.log_start_offset:
                self._begin_at(offset)

    def _save_producers(self, offset: int) -> None:
        """Save a snapshot where the log start offset advances: records before it are not replayed any more."""
        if offset > self.log_start_offset and len(self._producers.state):
            self._producers.save(self._end_offset, durable=True)

    def _begin_at(self, offset: int) -> None:
        self.log_start_offset = offset
        self._epochs.truncate_start(offset)

    def apply_retention(self, upper_bound: int | None = None) -> list[retention.Doomed]:
        """Delete the segments that the retention settings give up; return which, and why. None goes that has offsets at
        or past `upper_bound`, or records of an open transaction, whose commit must not lack them."""
        with self._write_lock, self._storage_errors("delete segments of"):
            self._check_open()
            verdicts = retention.doomed(
                [segment.retention_facts() for segment in self._segments.all],
                self.config,
                log_start_offset=self.log_start_offset,
                upper_bound=min(self.first_unstable_offset, self._end_offset if upper_bound is None else upper_bound),
                now_ms=self._clock.now_ms(),
            )
            doomed = self._drop_oldest(len(verdicts)) if verdicts else []
            self.producers.forget_before(self._clock.now_ms() - self.config.producer_id_expiration_ms)
        if doomed:
            # Without the lock: there may be thousands, and appends don't have to wait for them.
            with self._storage_errors("delete segments of"):
                self._delete_files(doomed)
        return verdicts

    def _drop_oldest(self, count: int) -> list[Segment]:
        if count == len(self._segments.all):
            self._roll(self._clock.now_ms())
        doomed, kept = self._segments.all[:count], self._segments.all[count:]
        start = kept[0].base_offset
        # The new start first, durably: whichever of the files a power cut brings back, they lie before it.
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
        """Replace segments by the one that compaction made from them. False, and the new files are removed, if they are
        no longer part of the log, or if it was truncated since `generation`: that may have removed what superseded a
        record that compaction left out."""
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
        """Return where these segments are in the log's list; None if they are no longer, or the log was truncated."""
        slot = next((at for at, segment in enumerate(self._segments.all) if segment is segments[0]), None)
        if slot is None or generation != self._generation:
            return None
        return slot if self._segments.all[slot : slot + len(segments)] == list(segments) else None

    def _put_in_place(self, old: Sequence[Segment], new: SealedSegment, generation: int) -> list[Path] | None:
        """Return the files to be removed later; None if retention took one of the old segments meanwhile."""
        with self._write_lock:
            self._check_open()
            slot = self._slot_of(old, generation)
            if slot is None:
                new.retire()
                new.release()
                return None
            # Readers get the new list before the old files lose their names: a reader that is too late to open one of
            # those finds that the list has changed, and looks again.
            self._publish([*self._segments.all[:slot], new, *self._segments.all[slot + len(old) : -1]], self._active)
            with self._half_changed():  # if a rename fails, loading the log again does the rest
                for segment in old:
                    segment.retire()
                replaced = [segment.base_offset for segment in old]
                deleted = swap.finish(self._disk, self.path, new.base_offset, replaced)
                new.settled()
            return deleted

    def _undo_swap(self, cleaned: CleanedSegment) -> None:
        # If it can't be undone, it is in effect, and the log has to find it.
        with self._write_lock, self._half_changed():
            swap.undo(self._disk, self.path, cleaned.base_offset)

    def note_clean(self, offset: int, generation: int) -> bool:
        """Save that the log is compacted up to `offset`. False if it was truncated or closed since `generation`."""
        counts = False

        def changes() -> dict[TopicPartition, int | None]:
            # Called with the checkpoint's lock held: a truncation lowers the offset after this, or is seen here.
            nonlocal counts
            counts = self._condition is not CLOSED and generation == self._generation
            return {self.partition: offset} if counts else {}

        with self._storage_errors("save the cleaner offset of"):
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

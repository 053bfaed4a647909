"""The log of a replica: a follower's appends, the leader epoch of a new leader, and a restart at another offset.

A follower appends the leader's batches byte for byte: offsets, leader epochs and timestamps are inside. What a crash
leaves is a log that the leader had, or a beginning of it. A single broker calls nothing of this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.errors import (
    CorruptBatchError,
    FencedLeaderEpochError,
    OffsetOutOfRangeError,
    StratalogError,
    UnsupportedMagicError,
)
from stratalog.records._framing import BatchHeader, count_valid, parse_headers
from stratalog.records.batch import Batch
from stratalog.records.format import CURRENT_MAGIC
from stratalog.records.reader import read_control
from stratalog.storage.appending import WouldWaitError
from stratalog.storage.readable_log import OPEN
from stratalog.storage.scan import reason
from stratalog.storage.segment_files import remove_segment_files
from stratalog.storage.trimmable_log import TrimmableLog

if TYPE_CHECKING:
    from typing_extensions import Buffer

HIGHEST_BASE_OFFSET = 2**63 - 2**40


class ReplicaLog(TrimmableLog):
    """A log that can follow another broker's log."""

    _gaps_noted = (-1, -1, 0)  # the generation, the active segment, and how many of its gaps were noted

    def append_from_leader(self, data: Buffer) -> int:
        """Append batches as the leader has them, and return the new log end offset. An incomplete batch at the end of
        `data` is left out.

        Offsets rise from the log end offset on, and may leave gaps, because the leader's log may be compacted. A new
        leader epoch is durable before its first batch is written. max.message.bytes is not applied, and a batch that is
        larger than segment.bytes gets a segment of its own: the leader has it already.

        Raises CorruptBatchError, UnsupportedMagicError, OffsetOutOfRangeError for batches before the log end offset, or
        FencedLeaderEpochError if leader epochs go down; then the log is as it was. If the disk fails, the batches that
        are complete may be in the log.
        """
        data, headers, size = _complete_batches(data, self._end_offset)
        if not headers:
            return self._end_offset
        try:
            with self._write_lock:
                ends_after_gap = self._append_from_leader(data, headers, size)
                end = self._end_offset
        except BaseException as error:
            self._raise_failure(error, "can't append the leader's batches")
        if ends_after_gap:
            self.flush()
            self.save_recovery_point()
        elif end - self.recovery_point >= self.config.flush_messages:
            self.flush()
        return end

    def append_from_leader_at_once(self, data: Buffer) -> int:
        """append_from_leader() for a thread that must not wait. Raises WouldWaitError, and has changed nothing, if it
        would wait for a disk or a lock: for a roll, a flush, or a new leader epoch."""
        data, headers, size = _complete_batches(data, self._end_offset)
        if not headers:
            return self._end_offset
        if not self._write_lock.acquire(blocking=False):
            raise WouldWaitError(f"another thread holds the lock of {self.partition}")
        try:
            self._check_at_once(headers)
            self._append_from_leader(data, headers, size)
        except BaseException as error:
            self._raise_failure(error, "can't append the leader's batches")
        finally:
            self._write_lock.release()
        return self._end_offset

    def _check_at_once(self, headers: list[BatchHeader]) -> None:
        latest, before = self._epochs.epochs.latest, self._end_offset
        for header in headers:
            if header.leader_epoch != latest or header.base_offset != before:
                raise WouldWaitError(f"{self.partition} has to note a leader epoch, or a gap in the offsets")
            before = header.next_offset
        if self._condition is not OPEN or self._active.size == 0 or self._fitting(headers, 0) < len(headers):
            raise WouldWaitError(f"{self.partition} has to roll")
        if before - self.recovery_point >= self.config.flush_messages:
            raise WouldWaitError(f"flush.messages requires a flush of {self.partition}")

    def begin_epoch(self, epoch: int) -> None:
        """Make durable that the leader epoch `epoch` begins at the log end offset, as a new leader does before its
        first append. Does nothing if it is the log's newest epoch already. Raises FencedLeaderEpochError if the log has
        a newer one."""
        with self._storage_errors("begin a leader epoch of"):
            with self._write_lock:
                self._check_open()
                self._epochs.begin(epoch, self._end_offset)
            self._epochs.save()

    def restart_at(self, offset: int) -> None:
        """Remove all records, leader epochs and producers, and continue with an empty log that starts at `offset`. For
        a follower whose log has nothing in common with the leader's.

        Durable when it returns. A crash in between leaves the log as it was, or an empty log that starts at the old log
        end offset or at `offset`.
        """
        if not 0 <= offset <= HIGHEST_BASE_OFFSET:
            raise OffsetOutOfRangeError(f"offset {offset} is not one at which a log can start")
        with self._flush_lock, self._write_lock, self._storage_errors("restart"):
            self._check_open()
            self._flush()  # a power cut must not move the log end offset back: it becomes the log start offset
            with self._half_changed():
                self._generation += 1
                self._home.log_start_offsets.raise_to({self.partition: self._end_offset})
                self.log_start_offset = self._end_offset
                self._home.recovery_points.update({self.partition: min(offset, self._end_offset)})
                self._home.cleaner_offsets.update({self.partition: None})
                self._home.high_watermarks.update({self.partition: None})
                self._remove_all_segments()
                self._epochs.truncate_end(0)
                self._home.log_start_offsets.update({self.partition: offset})
                self._begin_empty(offset)

    def _remove_all_segments(self) -> None:
        segments = self._segments.all
        for segment in segments:
            segment.retire()
        # The last segment has the log end offset, which a crash must not lose before the others are gone.
        for group in (segments[:-1], segments[-1:]):
            for segment in group:
                remove_segment_files(self._disk, self.path, segment.base_offset)
            self._disk.sync_directory(self.path)
        self._producers.keep_only_snapshots(set())
        self._disk.sync_directory(self.path)

    def _begin_empty(self, offset: int) -> None:
        active = self._loader(self._clock.now_ms()).open_active(offset)
        self._names_changed += 1
        self._sync_names()
        self._producers = self._new_tracker()
        self._end_offset = self.log_start_offset = self.recovery_point = offset
        self._warm_from = self._cooled_at_end = offset
        self._publish([], active)

    # A follower's append

    def _append_from_leader(self, data: Buffer, headers: list[BatchHeader], size: int) -> bool:
        """Append checked batches, and return whether they require a flush before they are acknowledged."""
        if self._condition is not OPEN:
            self._check_open()
        first, last, end = headers[0], headers[-1], self._end_offset
        if first.base_offset < end:
            raise OffsetOutOfRangeError(
                f"{self.path}: the leader's batch has offsets {first.base_offset} to {first.last_offset}, and the log "
                f"ends at offset {end}; the log has to be truncated before it can follow this leader"
            )
        before = headers[-2].next_offset if len(headers) > 1 else end
        ends_after_gap = last.base_offset != before and self._is_new_gap()
        epochs = self._epochs.epochs
        try:
            if not first.leader_epoch == last.leader_epoch == epochs.latest or len(headers) > 2:
                self._begin_epochs(headers)
            self._append_parts(data, headers, size)
        except (OSError, StratalogError):
            if self._epochs.epochs is not epochs:
                self._epochs.take_back(epochs, end, self._end_offset)
            raise
        self._producers.forget_excess()
        return ends_after_gap

    def _append_parts(self, data: Buffer, headers: list[BatchHeader], size: int) -> None:
        """Append batches, and roll where a batch does not belong in the active segment."""
        start = 0
        while start < len(headers):
            stop = self._fitting(headers, start)
            if stop == start:
                self._roll(self._clock.now_ms())
            elif stop - start == len(headers):
                self._append_part(data, size, headers)
                break
            else:
                part = headers[start:stop]
                position, part_end = part[0].position, part[-1].position + part[-1].size
                self._append_part(memoryview(data).cast("B")[position:part_end], part_end - position, part, data)
                start = stop

    def _begin_epochs(self, headers: list[BatchHeader]) -> None:
        """Check that leader epochs don't go down, and make new ones durable."""
        latest = self._epochs.epochs.latest
        epoch = -1 if latest is None else latest
        begun: list[BatchHeader] = []
        for header in headers:
            if header.leader_epoch != epoch:
                if header.leader_epoch < epoch:
                    raise FencedLeaderEpochError(
                        f"{self.path}: the leader's batch at offset {header.base_offset} has leader epoch "
                        f"{header.leader_epoch}, but a batch before it, or this log, has {epoch}"
                    )
                epoch = header.leader_epoch
                begun.append(header)
        for header in begun:
            self._epochs.begin(header.leader_epoch, header.base_offset)
        if begun:
            self._epochs.save()

    def _is_new_gap(self) -> bool:
        """Note a gap before the last batch, and return whether the log must be flushed after that batch.

        Recovery removes such a batch if it is after the recovery point and no other batch in the segment follows a gap:
        its base offset, which the checksum does not cover, is probably corrupt.
        """
        segment, noted = (self._generation, self._active.base_offset), self._gaps_noted
        count = noted[2] + 1 if noted[:2] == segment else 1
        self._gaps_noted = (*segment, count)
        return count <= 2

    def _fitting(self, headers: list[BatchHeader], start: int) -> int:
        """Return the end of the batches from headers[start] on that belong in the active segment."""
        active, clock, last = self._active, self._clock, headers[-1]
        if active.size == 0:
            return start + 1  # it always fits, and decides by size and time whether the next ones do
        size = last.position + last.size - headers[start].position
        timestamp = max([header.max_timestamp for header in headers]) if len(headers) > 1 else last.max_timestamp
        if not active.must_roll_before(size, last.last_offset, timestamp, clock):
            return len(headers)
        size = 0
        for index in range(start, len(headers)):
            header = headers[index]
            size += header.size
            if active.must_roll_before(size, header.last_offset, header.max_timestamp, clock):
                return index
        return len(headers)

    def _append_part(self, part: Buffer, size: int, headers: list[BatchHeader], data: Buffer | None = None) -> None:
        """Append batches of `size` bytes to the active segment. The headers' positions count from the start of `data`,
        or of `part`."""
        position, base_offset = self._active.size, self._end_offset
        self._active.append(part, size, headers)
        try:
            self._note_producers(part if data is None else data, headers)
        except (OSError, StratalogError):
            with self._half_changed():  # some of the batches are noted
                self._active.take_back(position, base_offset)
                self._load_producers()
            raise
        self._end_offset = headers[-1].next_offset

    def _note_producers(self, data: Buffer, headers: list[BatchHeader]) -> None:
        for header in headers:
            if header.producer_id >= 0:
                self._producers.note(Batch(data, header), self._active)
                self._names_changed += header.is_control  # a .txnindex may be new


def _complete_batches(data: Buffer, end_offset: int) -> tuple[Buffer, list[BatchHeader], int]:
    """Return the complete batches, their headers and their size. Checks every batch."""
    headers, size = _parse(data, end_offset)
    return (memoryview(data).cast("B")[:size] if size < memoryview(data).nbytes else data), headers, size


def _parse(data: Buffer, end_offset: int) -> tuple[list[BatchHeader], int]:
    """Return the headers of the complete batches, and the size of these batches. Checks every batch."""
    headers, size, error = parse_headers(data)
    if error is not None:
        offset = headers[-1].next_offset if headers else end_offset
        raise CorruptBatchError(
            f"the leader's bytes for offset {offset} are not a record batch: {reason(error)}", position=size
        ) from error
    if not headers:
        return headers, size
    previous, index = headers[0].base_offset - 1, 0
    while True:
        index += count_valid(data, headers, index, previous, HIGHEST_BASE_OFFSET, True)
        if index:
            previous = max(previous, headers[index - 1].last_offset)
        if index == len(headers):
            break
        header = headers[index]
        following = headers[index + 1] if index + 1 < len(headers) else None
        _check_batch(data, header, previous, following)
        previous = header.last_offset
        index += 1
    for header in headers:
        if header.is_control and header.record_count > 0:
            read_control(Batch(data, header))  # raises if it can't be read: it will be, once it is written
    return headers, size


def _check_batch(data: Buffer, header: BatchHeader, previous: int, following: BatchHeader | None) -> None:
    """Check a batch that follows a gap, or is not valid."""
    offset = header.base_offset
    if header.magic != CURRENT_MAGIC:
        raise UnsupportedMagicError(
            f"the leader's batch at offset {offset} has magic {header.magic}; a follower can only take magic 2"
        )
    problem = None
    if header.last_offset_delta < 0 or not previous < offset < HIGHEST_BASE_OFFSET - header.last_offset_delta:
        problem = f"offsets {offset}..{header.last_offset} follow offset {previous}"
    elif not Batch(data, header).crc_matches():
        problem = f"the checksum of the batch at offset {offset} does not match its header"
    elif following is not None and following.base_offset <= header.last_offset:
        problem = f"offset {offset} follows {previous}, and {following.base_offset} comes next"
    if problem is not None:
        raise CorruptBatchError(problem, position=header.position)

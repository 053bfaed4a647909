"""Compacts one log. A run maps the keys of the dirty part to their last offsets, and then writes the records that stay.

Memory is limited: when the map has no room for more keys, the run stops at that offset, and the next run continues
there. A run never changes the active segment, and takes locks only for the swaps. It may be stopped at any time, and
then segments that are not swapped in yet are discarded. A corrupt batch ends the run with CorruptBatchError, before any
record is lost.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stratalog.errors import CorruptBatchError, StratalogError
from stratalog.records._framing import BatchHeader, parse_header
from stratalog.records._key_map import SLOT_SIZE, KeyMap
from stratalog.records.batch import Batch
from stratalog.records.format import CURRENT_MAGIC, HEADER_SIZE, Codec
from stratalog.records.reader import records_of
from stratalog.storage import names
from stratalog.storage.compaction.cleaned_segment import CleanedSegment
from stratalog.storage.compaction.plan import Dirt, SegmentSize, groups
from stratalog.storage.compaction.survivors import LastBatch, Survivors
from stratalog.storage.compaction.transactions import CleanedTransactions
from stratalog.storage.log import Log
from stratalog.storage.scan import Chunk, check
from stratalog.storage.segment import Segment

if TYPE_CHECKING:
    from typing_extensions import Buffer

FEWEST_SLOTS = 1024
SMALLEST_CHUNK = 16 * 1024
MOST_LIST_BYTES = 16 * 1024**2  # for one bit per offset of the dirty part, in addition to the map of keys


class CleaningStoppedError(StratalogError):
    """A run was stopped. No record is lost: the log is unchanged or partly compacted."""


@dataclass(frozen=True)
class Budget:
    """The limits of a run."""

    memory: int = 128 * 1024**2  # bytes for the map of keys
    load_factor: float = 0.9
    chunk: int = 256 * 1024  # bytes per read and write
    account: Callable[[int], None] = lambda _: None  # called with the bytes of each read and write; may wait
    stop: threading.Event | None = None


@dataclass
class Cleaned:
    """The result of a run."""

    first_dirty_offset: int  # where the next run continues
    bytes_read: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    batches_before: int = 0
    batches_after: int = 0
    keys: int = 0
    segments_before: int = 0
    segments_after: int = 0
    is_complete: bool = True  # False if the map was too small for the whole dirty part


class Compactor:
    """Compacts one log with run(), which is called once."""

    def __init__(self, log: Log, dirt: Dirt, budget: Budget, now_ms: int, generation: int) -> None:
        """Prepare a run. `generation` is the log's generation before `dirt` was determined."""
        self._log = log
        self._dirt = dirt
        self._generation = generation
        self._budget = budget
        self._now_ms = now_ms
        self._result = Cleaned(dirt.first_dirty_offset)
        self._segments: list[Segment] = []

    def run(self, *, dry: bool = False) -> Cleaned:
        """Compact the log and return the result. With `dry`, only count what would be saved. Raises CorruptBatchError,
        OSError, and CleaningStoppedError."""
        try:
            return self._run(dry)
        except (OSError, CorruptBatchError):
            self._check_current()  # it is no failure if a segment was truncated or deleted in the meantime
            raise

    def _run(self, dry: bool) -> Cleaned:
        log, dirt, result = self._log, self._dirt, self._result
        self._segments = [segment for segment in log.segments[:-1] if segment.limit <= dirt.first_uncleanable_offset]
        segments = self._segments
        dirty = [segment for segment in segments if segment.limit > dirt.first_dirty_offset]
        if not dirty:
            return result
        keys = self._map_keys(dirty)
        result.keys = len(keys)
        keys.list_last(dirt.first_dirty_offset, MOST_LIST_BYTES)
        end = dirt.first_uncleanable_offset if result.is_complete else keys.latest + 1
        affected = [segment for segment in segments if segment.base_offset < end]
        survivors = Survivors(
            keys,
            CleanedTransactions(log.aborted_transactions(affected[0].base_offset, affected[-1].limit)),
            self._live_producers(),
            now_ms=self._now_ms,
            delete_retention_ms=log.config.delete_retention_ms,
        )
        for group in self._groups(affected):
            self._clean(group, survivors, dry=dry)
        result.first_dirty_offset = end
        return result

    def _check_current(self) -> None:
        """Raise CleaningStoppedError if the segments that were read are no longer part of the log."""
        log = self._log
        if log.is_closed or log.generation != self._generation:
            raise CleaningStoppedError(f"{log.path}: the log was truncated or closed while it was compacted")
        if not {*self._segments} <= {*log.segments}:
            raise CleaningStoppedError(f"{log.path}: segments were deleted while they were compacted")

    # The map of keys

    def _map_keys(self, segments: Sequence[Segment]) -> KeyMap:
        start = self._dirt.first_dirty_offset
        # There are at least as many offsets as records, and as many records as keys.
        needed = int((segments[-1].limit - max(start, segments[0].base_offset)) / self._budget.load_factor) + 2
        slots = max(min(needed, self._budget.memory // SLOT_SIZE), FEWEST_SLOTS)
        keys = KeyMap(slots, self._budget.load_factor, os.urandom(16))
        transactions = CleanedTransactions(self._log.aborted_transactions(start, segments[-1].limit))
        for segment in segments:
            # With checksums, because a corrupt key would remove a valid record.
            for chunk in self._chunks(segment, start, checksums=True):
                if not self._map_chunk(chunk, keys, transactions):
                    self._result.is_complete = False
                    return keys
        return keys

    def _map_chunk(self, chunk: Chunk, keys: KeyMap, transactions: CleanedTransactions) -> bool:
        """Add the keys of a chunk. Return False if the map has no room for all of them."""
        start, headers = self._dirt.first_dirty_offset, chunk.headers
        index = 0
        while True:
            index += keys.add_batches(chunk.buffer, headers, index, start)
            if index == len(headers):
                return True
            batch = Batch(chunk.buffer, headers[index])
            may_go = (batch.header.is_control or batch.header.is_transactional) and transactions.may_go(batch)
            if not may_go and not batch.header.is_control and not _add(keys, batch, start):
                return False
            index += 1

    def _chunks(self, segment: Segment, start_offset: int, *, checksums: bool) -> Iterator[Chunk]:
        position, previous = 0, segment.base_offset - 1
        if start_offset > segment.base_offset:
            first = segment.locate(start_offset)
            if first is None:
                return
            position, previous = first.position, first.base_offset - 1
        for chunk in check(
            segment.file,
            position,
            segment.size,
            previous=previous,
            limit=segment.limit,
            checksums=checksums,
            chunk_size=self._budget.chunk,
        ):
            self._account(len(chunk.buffer))
            yield chunk

    def _account(self, size: int) -> None:
        if self._budget.stop is not None and self._budget.stop.is_set():
            raise CleaningStoppedError(f"{self._log.path}: the cleaner is stopping")
        self._result.bytes_read += size
        self._budget.account(size)

    def _live_producers(self) -> dict[int, LastBatch]:
        return {producer: LastBatch(*last) for producer, last in self._log.last_batches().items()}

    # The new segments

    def _groups(self, segments: Sequence[Segment]) -> list[list[Segment]]:
        config = self._log.config
        by_base = {segment.base_offset: segment for segment in segments}
        sizes = [
            SegmentSize(segment.base_offset, segment.limit, segment.size, segment.index_size) for segment in segments
        ]
        grouped = groups(sizes, config.segment_bytes, config.segment_index_bytes)
        return [[by_base[size.base_offset] for size in group] for group in grouped]

    def _clean(self, group: list[Segment], survivors: Survivors, *, dry: bool) -> None:
        log, result = self._log, self._result
        budget = self._budget
        cleaned = CleanedSegment(log.disk, log.path, group[0].base_offset, log.config, budget.chunk, budget.account)
        changed = len(group) > 1
        before = result.batches_after
        try:
            for segment in group:
                for chunk in self._chunks(segment, 0, checksums=False):
                    if self._copy(chunk, segment, survivors, cleaned):
                        changed = True
                    if log.is_closed:
                        raise CleaningStoppedError(f"{log.path}: the log was closed")
            size_before = sum(segment.size for segment in group)
            size_after = cleaned.size
            if dry or not changed:
                survivors.take_kept_aborted()
                cleaned.close()
                cleaned.discard()
            else:
                modified_ns = group[-1].path(names.LOG).stat().st_mtime_ns
                cleaned.finish(survivors.take_kept_aborted(), modified_ns)
                if log.replace_segments(group, cleaned, self._generation):
                    self._replaced(group)
                else:
                    self._check_current()
                    size_after, result.batches_after = size_before, before
        except BaseException:
            cleaned.abandon()
            raise
        result.bytes_before += size_before
        result.bytes_after += size_after
        result.segments_before += len(group)
        result.segments_after += 1

    def _copy(self, chunk: Chunk, segment: Segment, survivors: Survivors, cleaned: CleanedSegment) -> bool:
        """Copy the records of a chunk that stay. Return True if any was removed or changed."""
        result, headers = self._result, chunk.headers
        index, copied, changed = 0, 0, False
        while True:
            kept: list[BatchHeader] = []
            index, any_removed = survivors.copy_plain(chunk.buffer, headers, index, cleaned.unwritten, kept)
            cleaned.note(kept)
            copied += len(kept)
            changed = changed or any_removed
            if index == len(headers):
                break
            header = headers[index]
            batch = Batch(chunk.buffer, header)
            if not batch.crc_matches():  # it may get a new checksum, which would hide the corruption
                reason = f"the checksum of the batch at offset {header.base_offset} does not match its header"
                raise CorruptBatchError(reason, file=str(segment.file.path), position=chunk.origin + header.position)
            left = survivors.of(batch)
            if isinstance(left, memoryview):
                cleaned.append(left, header)
                copied += 1
            elif left is not None:
                cleaned.append(left, _header(left))
                copied += 1
                changed = True
            index += 1
        result.batches_before += len(headers)
        result.batches_after += copied
        return changed or copied < len(headers)

    def _replaced(self, group: list[Segment]) -> None:
        self._segments = [segment for segment in self._segments if segment not in group]


def _header(batch: Buffer) -> BatchHeader:
    header = parse_header(batch)
    assert header is not None
    return header


def _add(keys: KeyMap, batch: Batch, from_offset: int) -> bool:
    header = batch.header
    if header.magic == CURRENT_MAGIC and header.codec == Codec.NONE:
        position = header.position
        return keys.add(batch.buffer, header, from_offset, position + HEADER_SIZE, position + header.size)
    if header.magic == CURRENT_MAGIC:
        return keys.add(batch.payload(), header, from_offset)
    return all(keys.put(record.key, record.offset) for record in records_of(batch) if record.offset >= from_offset)

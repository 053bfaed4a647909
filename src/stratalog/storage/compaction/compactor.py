"""Compacts one log: a run maps the keys of its dirty part to their last offsets, then writes what survives.

Memory is bounded: where the map has no room for more keys, the run ends there, and the next goes on from that offset. A
run never changes the segment that grows, takes no lock but for the swaps, and may be stopped at any time: what is not
swapped in counts for nothing. A batch that is damaged ends the run with CorruptBatchError, before anything is lost.
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
from stratalog.storage.compaction.plan import Dirt, Sized, groups
from stratalog.storage.compaction.survivors import LastBatch, Survivors
from stratalog.storage.compaction.transactions import CleanedTransactions
from stratalog.storage.log import Log
from stratalog.storage.scan import Chunk, check
from stratalog.storage.segment import Segment

if TYPE_CHECKING:
    from typing_extensions import Buffer

FEWEST_SLOTS = 1024
SMALLEST_CHUNK = 16 * 1024
MOST_LIST_BYTES = 16 * 1024**2  # for a bit an offset of the dirty part, beside the map of keys


class CleaningStoppedError(StratalogError):
    """The cleaner was told to stop. Nothing is lost: the log is as it was, or partly compacted."""


@dataclass(frozen=True)
class Budget:
    """What a run may take."""

    memory: int = 128 * 1024**2  # bytes for the map of keys
    load_factor: float = 0.9
    chunk: int = 256 * 1024  # bytes that are read and written at a time
    account: Callable[[int], None] = lambda _: None  # told of bytes read and written; may wait
    stop: threading.Event | None = None


@dataclass
class Cleaned:
    """What a run did."""

    first_dirty_offset: int  # from where the next run goes on
    bytes_read: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    batches_before: int = 0
    batches_after: int = 0
    keys: int = 0
    segments_before: int = 0
    segments_after: int = 0
    is_complete: bool = True  # False: the map was too small for all of the dirty part


class Compactor:
    """One use: run()."""

    def __init__(self, log: Log, dirt: Dirt, budget: Budget, now_ms: int, generation: int) -> None:
        """`generation`: the log's, from before `dirt` was found out."""
        self._log = log
        self._dirt = dirt
        self._generation = generation
        self._budget = budget
        self._now_ms = now_ms
        self._result = Cleaned(dirt.first_dirty_offset)
        self._segments: list[Segment] = []

    def run(self, *, dry: bool = False) -> Cleaned:
        """`dry`: count what would be saved, and change nothing."""
        try:
            return self._run(dry)
        except (OSError, CorruptBatchError):
            self._check_current()  # a segment that was cut or deleted meanwhile is no failure
            raise

    def _run(self, dry: bool) -> Cleaned:
        log, dirt, result = self._log, self._dirt, self._result
        self._segments = [one for one in log.segments[:-1] if one.limit <= dirt.first_uncleanable_offset]
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
        """Raise CleaningStoppedError where what was read is not the log any more."""
        log = self._log
        if log.is_closed or log.generation != self._generation:
            raise CleaningStoppedError(f"{log.path}: the log was cut or closed while it was compacted")
        if not {*self._segments} <= {*log.segments}:
            raise CleaningStoppedError(f"{log.path}: segments were deleted while they were compacted")

    # Which keys there are

    def _map_keys(self, segments: Sequence[Segment]) -> KeyMap:
        start = self._dirt.first_dirty_offset
        # Offsets are no fewer than records, and records no fewer than keys.
        needed = int((segments[-1].limit - max(start, segments[0].base_offset)) / self._budget.load_factor) + 2
        slots = max(min(needed, self._budget.memory // SLOT_SIZE), FEWEST_SLOTS)
        keys = KeyMap(slots, self._budget.load_factor, os.urandom(16))
        transactions = CleanedTransactions(self._log.aborted_transactions(start, segments[-1].limit))
        for segment in segments:
            # With their checksums checked: a damaged key would make a sound record go.
            for chunk in self._chunks(segment, start, checksums=True):
                if not self._map_chunk(chunk, keys, transactions):
                    self._result.is_complete = False
                    return keys
        return keys

    def _map_chunk(self, chunk: Chunk, keys: KeyMap, transactions: CleanedTransactions) -> bool:
        """False: there is no room for all of it."""
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
            raise CleaningStoppedError(f"{self._log.path}: compaction was told to stop")
        self._result.bytes_read += size
        self._budget.account(size)

    def _live_producers(self) -> dict[int, LastBatch]:
        return {producer: LastBatch(*last) for producer, last in self._log.last_batches().items()}

    # What survives

    def _groups(self, segments: Sequence[Segment]) -> list[list[Segment]]:
        config = self._log.config
        by_base = {segment.base_offset: segment for segment in segments}
        sized = [Sized(segment.base_offset, segment.limit, segment.size, segment.index_size) for segment in segments]
        found = groups(sized, config.segment_bytes, config.segment_index_bytes)
        return [[by_base[one.base_offset] for one in group] for group in found]

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
        """What survives of a chunk; whether that is not all of it."""
        result, headers = self._result, chunk.headers
        index, copied, changed = 0, 0, False
        while True:
            kept: list[BatchHeader] = []
            index, some_went = survivors.copy_plain(chunk.buffer, headers, index, cleaned.unwritten, kept)
            cleaned.note(kept)
            copied += len(kept)
            changed = changed or some_went
            if index == len(headers):
                break
            header = headers[index]
            batch = Batch(chunk.buffer, header)
            if not batch.crc_matches():  # it may get another checksum, which would hide the damage
                reason = f"checksum of the batch at offset {header.base_offset} is not the one in its header"
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

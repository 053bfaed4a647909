"""An explained lookup: the way from an offset or a timestamp to a record, with every comparison.

It reads the same files by the same rules as the storage engine (storage/segment.py), finds the same batch, and records
each step. An index entry that the log refutes is a step, too. Then the segment is walked from its start, with the same
result as the engine's rebuilt index.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from stratalog.clock import Clock, SystemClock
from stratalog.errors import OffsetOutOfRangeError, StorageError
from stratalog.inspect.index_file import IndexEntry, IndexFile
from stratalog.inspect.lookup_steps import (
    BatchSeen,
    Cost,
    EntryCompared,
    Explanation,
    FloorEntry,
    IndexDoubted,
    LargestTimestamp,
    ScanRecorder,
    SegmentChosen,
    SegmentCompared,
    SegmentLeft,
    Step,
)
from stratalog.inspect.partition_files import PartitionFiles, list_partition
from stratalog.inspect.rows import RecordRow, record_row
from stratalog.inspect.segment_reader import Located, SegmentReader

OFFSET, TIME = "offset index", "time index"


def explain_offset(directory: Path, offset: int, clock: Clock | None = None) -> Explanation:
    """Explain the lookup of an offset. Raises OffsetOutOfRangeError, CorruptBatchError, OSError, and StorageError for a
    directory without segments."""
    with Lookup.open(directory, clock) as lookup:
        return lookup.of_offset(offset)


class Lookup:
    """One lookup. Its segments stay open until it ends or releases them."""

    def __init__(self, partition: PartitionFiles, clock: Clock) -> None:
        self.partition = partition
        self.steps: list[Step] = []
        self._clock = clock
        self._stack = ExitStack()
        self._readers: dict[int, SegmentReader] = {}
        self._comparisons = 0
        self._stepped_over = 0
        self._read_by_released = 0
        self.log_start_offset = partition.log_start_offset_or_first()
        self.log_end_offset = partition.segments[-1].base_offset
        self._started = 0.0
        self._read_before = 0

    @classmethod
    @contextmanager
    def open(cls, directory: Path, clock: Clock | None = None) -> Iterator[Lookup]:
        partition = list_partition(directory)
        if not partition.segments:
            raise StorageError(f"{directory}: has no segments; a partition directory has files like {0:020d}.log")
        lookup = cls(partition, clock or SystemClock())
        with lookup._stack:
            lookup._begin()
            yield lookup

    def _begin(self) -> None:
        """Find the log end offset, which the engine has in memory, and start counting the cost of the lookup."""
        self.log_end_offset = self._end_offset()
        self._read_before = self._bytes_read()
        self._started = self._clock.monotonic()

    def of_offset(self, offset: int) -> Explanation:
        start, end = self.log_start_offset, self.log_end_offset
        if not start <= offset <= end:
            raise OffsetOutOfRangeError(
                f"offset {offset} is not in the log, which has offsets {start} to {end - 1}"
                if end > start
                else f"offset {offset} is not in the log, which is empty; its next offset is {end}"
            )
        if offset == end:
            return self.explanation(None, None, None)
        first = self._choose_segment(offset)
        for slot in range(first, len(self.partition.segments)):
            reader = self.reader(slot)
            if slot > first:
                self.choose(slot, "the next segment: the offset fell into a gap")
            located = self.locate(reader, offset)
            if located is not None:
                return self.explanation(reader, located, self._record(reader, located, offset))
            self.steps.append(SegmentLeft(reader.base_offset, f"no batch in it reaches offset {offset}"))
            self.release(slot)
        return self.explanation(None, None, None)

    def reader(self, slot: int) -> SegmentReader:
        reader = self._readers.get(slot)
        if reader is None:
            reader = self._readers[slot] = SegmentReader(self.partition.segments[slot])
            self._stack.callback(reader.close)
        return reader

    def release(self, slot: int) -> None:
        """Close a segment. A log may have more segments than a process may open files."""
        reader = self._readers.pop(slot)
        self._read_by_released += reader.bytes_read
        reader.close()

    def choose(self, slot: int, why: str) -> None:
        segments = self.partition.segments
        self.steps.append(SegmentChosen(slot, len(segments), segments[slot].base_offset, why))

    def locate(self, reader: SegmentReader, offset: int) -> Located | None:
        """Return the first batch that reaches `offset`: from the floor entry of the offset index, batch by batch."""
        position = 0
        floor = self.floor(OFFSET, reader.offset_index, offset)
        if floor is not None:
            mismatch = reader.find_mismatch(floor)
            if mismatch is None:
                position = floor.value
            else:
                self.steps.append(IndexDoubted(OFFSET, mismatch))
        scan = ScanRecorder(position)
        try:
            for located in reader.headers(position):
                is_found = located.header.last_offset >= offset
                self.saw(scan, located, "reaches it" if is_found else "ends before it", is_found)
                if is_found:
                    return located
        finally:
            self.steps.append(scan.step())
        return None

    def saw(self, scan: ScanRecorder, located: Located, verdict: str, is_found: bool) -> None:
        scan.add(batch_seen(located, verdict, is_found))
        self._stepped_over += not is_found

    def floor(self, name: str, index: IndexFile | None, key: int) -> IndexEntry | None:
        """Return the last entry whose key is not greater than `key`, by a binary search whose comparisons are steps."""
        if index is None:
            self.steps.append(IndexDoubted(name, "the file is missing or too large for an index"))
            return None
        low, high = 0, index.count
        floor: IndexEntry | None = None
        while low < high:
            middle = (low + high) // 2
            entry = index.entry(middle)
            goes_right = entry.key <= key
            self.steps.append(EntryCompared(name, entry, goes_right))
            self._comparisons += 1
            if goes_right:
                low, floor = middle + 1, entry
            else:
                high = middle
        self.steps.append(FloorEntry(name, index.count, floor))
        return floor

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Exclude the block from the steps and the cost: the engine has its result in memory."""
        steps, read = len(self.steps), self._bytes_read()
        comparisons, stepped_over = self._comparisons, self._stepped_over
        yield
        del self.steps[steps:]
        self._comparisons, self._stepped_over = comparisons, stepped_over
        self._read_before += self._bytes_read() - read

    def compare_timestamp(self, reader: SegmentReader, largest: int, timestamp: int) -> bool:
        """Return whether a segment's largest timestamp is not before `timestamp`. The comparison is a step."""
        self._comparisons += 1
        self.steps.append(LargestTimestamp(reader.base_offset, largest, largest >= timestamp))
        return largest >= timestamp

    def explanation(
        self, reader: SegmentReader | None, located: Located | None, record: RecordRow | None
    ) -> Explanation:
        cost = Cost(
            self._comparisons,
            self._bytes_read() - self._read_before,
            self._stepped_over,
            self._clock.monotonic() - self._started,
        )
        return Explanation(
            self.partition.path,
            self.log_start_offset,
            self.log_end_offset,
            tuple(self.steps),
            None if reader is None else reader.log.path,
            None if located is None else batch_seen(located, "found", True),
            record,
            cost,
        )

    def _choose_segment(self, offset: int) -> int:
        """Return the slot of the last segment whose base offset is not greater than `offset`, by binary search."""
        bases = self.partition.bases
        low, high = 0, len(bases)
        while low < high:
            middle = (low + high) // 2
            goes_right = bases[middle] <= offset
            self.steps.append(SegmentCompared(middle, bases[middle], goes_right))
            self._comparisons += 1
            if goes_right:
                low = middle + 1
            else:
                high = middle
        slot = max(low - 1, 0)
        self.choose(slot, f"the last one whose base offset is not above {offset}")
        return slot

    def _record(self, reader: SegmentReader, located: Located, offset: int) -> RecordRow | None:
        records = reader.records(located)
        return next((record_row(record) for record in records if record.offset >= offset), None)

    def _end_offset(self) -> int:
        """Return the log end offset, by a walk from the last offset index entry if the log confirms it."""
        reader = self.reader(len(self.partition.segments) - 1)
        position, end = 0, reader.base_offset
        index = reader.offset_index
        if index is not None and index.count:
            last = index.entry(index.count - 1)
            position = last.value if reader.find_mismatch(last) is None else 0
        for located in reader.headers(position):
            end = located.header.next_offset
        return end

    def _bytes_read(self) -> int:
        return self._read_by_released + sum(reader.bytes_read for reader in self._readers.values())


def batch_seen(located: Located, verdict: str, is_found: bool) -> BatchSeen:
    header = located.header
    return BatchSeen(
        located.position,
        header.size,
        header.base_offset,
        header.last_offset,
        header.max_timestamp,
        verdict,
        is_found,
    )

"""The steps of a lookup, as data: the compared values and the results."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from stratalog.inspect.index_file import IndexEntry
from stratalog.inspect.rows import RecordRow

SCAN_HEAD = 8  # batches that are kept from the start of a long scan
SCAN_TAIL = 3  # batches that are kept from its end


@dataclass(frozen=True, slots=True)
class SegmentCompared:
    """A step of the binary search over the segments' base offsets."""

    slot: int
    base_offset: int
    goes_right: bool


@dataclass(frozen=True, slots=True)
class SegmentChosen:
    slot: int
    count: int
    base_offset: int
    why: str


@dataclass(frozen=True, slots=True)
class SegmentLeft:
    """The chosen segment has no such record."""

    base_offset: int
    why: str


@dataclass(frozen=True, slots=True)
class LargestTimestamp:
    """The comparison of a segment's largest timestamp, from its time index."""

    base_offset: int
    timestamp: int
    is_enough: bool


@dataclass(frozen=True, slots=True)
class EntryCompared:
    """A step of the binary search in an index."""

    index: str
    entry: IndexEntry
    goes_right: bool


@dataclass(frozen=True, slots=True)
class FloorEntry:
    """The result of the search in an index. No `entry` means that no entry is small enough."""

    index: str
    count: int
    entry: IndexEntry | None


@dataclass(frozen=True, slots=True)
class IndexDoubted:
    """The index and the log disagree, or the index is missing: the engine would rebuild it."""

    index: str
    why: str


@dataclass(frozen=True, slots=True)
class BatchSeen:
    position: int
    size: int
    base_offset: int
    last_offset: int
    max_timestamp: int
    verdict: str
    is_found: bool


@dataclass(frozen=True, slots=True)
class Scanned:
    """The batches of a scan, in order. The middle of a long scan is left out."""

    start: int
    head: tuple[BatchSeen, ...]
    omitted: int
    tail: tuple[BatchSeen, ...]

    @property
    def batches(self) -> int:
        return len(self.head) + self.omitted + len(self.tail)


Step: TypeAlias = (
    SegmentCompared
    | SegmentChosen
    | SegmentLeft
    | LargestTimestamp
    | EntryCompared
    | FloorEntry
    | IndexDoubted
    | Scanned
)


@dataclass(frozen=True, slots=True)
class Cost:
    comparisons: int
    bytes_read: int
    batches_stepped_over: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """The result of a lookup. Without a `batch`, the record doesn't exist (yet). Without a `record`, compaction removed
    it."""

    partition: Path
    log_start_offset: int
    log_end_offset: int
    steps: tuple[Step, ...]
    file: Path | None
    batch: BatchSeen | None
    record: RecordRow | None
    cost: Cost


class ScanRecorder:
    """A collector of the batches of one scan, with limited memory."""

    def __init__(self, start: int) -> None:
        self._start = start
        self._head: list[BatchSeen] = []
        self._tail: deque[BatchSeen] = deque(maxlen=SCAN_TAIL)
        self._after_head = 0

    def add(self, seen: BatchSeen) -> None:
        if len(self._head) < SCAN_HEAD:
            self._head.append(seen)
        else:
            self._tail.append(seen)
            self._after_head += 1

    def step(self) -> Scanned:
        return Scanned(self._start, tuple(self._head), self._after_head - len(self._tail), tuple(self._tail))

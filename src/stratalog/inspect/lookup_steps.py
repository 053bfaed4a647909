"""The steps of a look-up, as data: what was compared with what, and what followed from it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from stratalog.inspect.index_file import IndexEntry
from stratalog.inspect.rows import RecordRow

SCAN_HEAD = 8  # of a long scan, so many batches are told at its beginning,
SCAN_TAIL = 3  # and so many at its end


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
    """The segment does not have it after all."""

    base_offset: int
    why: str


@dataclass(frozen=True, slots=True)
class LargestTimestamp:
    """What a segment's time index says of its largest timestamp, and whether that is enough."""

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
    """The last entry that is not past what is looked for; None: all are, or there is none."""

    index: str
    count: int
    entry: IndexEntry | None


@dataclass(frozen=True, slots=True)
class IndexDoubted:
    """The index and the log disagree, or the index is missing: the engine would make it again."""

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
    """Batches looked at one behind the other. Of a long scan the middle is left out."""

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
    """`batch` None: there is no such record (yet). `record` None: the batch has lost it to compaction."""

    partition: Path
    log_start_offset: int
    log_end_offset: int
    steps: tuple[Step, ...]
    file: Path | None
    batch: BatchSeen | None
    record: RecordRow | None
    cost: Cost


class ScanRecorder:
    """Collects the batches of one scan in bounded memory."""

    def __init__(self, start: int) -> None:
        self._start = start
        self._head: list[BatchSeen] = []
        self._tail: deque[BatchSeen] = deque(maxlen=SCAN_TAIL)
        self._behind_head = 0

    def add(self, seen: BatchSeen) -> None:
        if len(self._head) < SCAN_HEAD:
            self._head.append(seen)
        else:
            self._tail.append(seen)
            self._behind_head += 1

    def step(self) -> Scanned:
        return Scanned(self._start, tuple(self._head), self._behind_head - len(self._tail), tuple(self._tail))

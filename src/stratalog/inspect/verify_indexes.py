"""An index held against its log, in one pass beside the walk over the batches, without keeping either in memory.

Each check takes the batches in order and judges the entries that belong to them. After the first entry that is out of
order an index is not looked at any further: nothing that follows means anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from stratalog.errors import StorageError
from stratalog.inspect.batch_walk import BatchOnDisk
from stratalog.inspect.findings import Findings
from stratalog.inspect.index_file import IndexEntry, IndexFile
from stratalog.inspect.partition_files import SegmentFiles
from stratalog.inspect.read_only_file import read_small
from stratalog.records import format
from stratalog.storage import names, transaction_index
from stratalog.storage.transaction_index import AbortedTransaction

REBUILD = "delete the file while no process has the log open: it is made again from the log"
REPLAY = (
    "delete it and the .snapshot files beside it while no process has the log open: they are made again from the log"
)


class IndexCheck:
    """What both sparse indexes need: the file, its entries in order, and the one that is due next."""

    suffix = names.OFFSET_INDEX

    def __init__(self, segment: SegmentFiles, findings: Findings, *, is_live: bool) -> None:
        self.path = segment.path(self.suffix)
        self.segment = segment
        self.findings = findings
        self.is_live = is_live
        self.next: IndexEntry | None = None
        self.last: IndexEntry | None = None
        self._index: IndexFile | None = None
        self._entries: Iterator[IndexEntry] = iter(())
        self.is_sound = self._open()
        self.advance()

    def close(self) -> None:
        if self._index is not None:
            self._index.close()
        self.findings.end_of(self.path)

    def advance(self) -> None:
        """Go on to the next entry, as long as they rise."""
        previous, self.next = self.next, next(self._entries, None)
        if previous is not None:
            self.last = previous
        if previous is None or self.next is None:
            return
        if self.next.key <= previous.key or self.next.value < previous.value:
            what = f"entry {self.next.slot} has {_pair(self.next)} behind {_pair(previous)}; both must rise"
            self.findings.warning(self.path, self.next.slot * self.entry_size, what, REBUILD)
            self.is_sound = False
            self.next, self._entries = None, iter(())

    @property
    def entry_size(self) -> int:
        assert self._index is not None, "there are entries only where there is a file"
        return self._index.entry_size

    def complain(self, entry: IndexEntry, what: str) -> None:
        self.is_sound = False
        self.findings.warning(self.path, entry.slot * self.entry_size, what, REBUILD)

    def _open(self) -> bool:
        try:
            index = self._index = IndexFile(self.path)
        except FileNotFoundError:
            if self.is_live or not self.segment.path(names.LOG).exists():
                return False  # the segment is being made, or was deleted just now; whoever reads the log says so
            self.findings.warning(
                self.path, None, "is missing", "nothing to do: it is made from the log when that is read"
            )
            return False
        except (OSError, StorageError) as error:
            self.findings.warning(self.path, None, f"can't be read: {error}", REBUILD)
            return False
        self._entries = iter(index)
        if index.left_over:
            what = f"has {index.size} bytes, not a multiple of {index.entry_size}"
            self.findings.warning(self.path, index.size - index.left_over, what, REBUILD)
        elif index.is_preallocated and not self.segment.is_active and not self.is_live:
            what = "ends in zeros, though its segment does not grow any more"
            self.findings.warning(self.path, index.count * index.entry_size, what, REBUILD)
        return True


class OffsetIndexCheck(IndexCheck):
    """Each entry: position of a batch, and the last offset of that batch."""

    def batch(self, found: BatchOnDisk, previous: int) -> None:
        """The next batch of the log, behind one that ends at offset `previous`."""
        while self.next is not None and self.next.value < found.end:
            self._judge(self.next, found, previous)
            self.advance()

    def finish(self, size: int) -> None:
        """The log ends here. What a writer at work added since is not judged."""
        if self.next is not None and not self.is_live:
            what = f"entry {self.next.slot} points to position {self.next.value}, the log has {size} bytes"
            self.complain(self.next, what)

    def _judge(self, entry: IndexEntry, found: BatchOnDisk, previous: int) -> None:
        header = found.header
        if entry.value != found.position:
            what = f"entry {entry.slot} points to position {entry.value}, inside the batch at {found.position}"
            self.complain(entry, what)
        elif entry.key <= previous:
            what = f"entry {entry.slot} says offset {entry.key}, but batches before position {entry.value} have it"
            self.complain(entry, what)
        elif entry.key != header.last_offset and header.magic == format.CURRENT_MAGIC:
            # Brokers before 4.1 made one entry a request: the offset is the last of another batch. Look-ups work.
            what = f"entry {entry.slot} says offset {entry.key}, the batch there ends at {header.last_offset}"
            self.findings.note(
                self.path,
                entry.slot * self.entry_size,
                f"{what}; look-ups find what they should",
                "nothing to do: older brokers wrote it so",
            )


class TimeIndexCheck(IndexCheck):
    """Each entry: the largest timestamp so far, and the last offset of the batch that has it."""

    suffix = names.TIME_INDEX

    def __init__(self, segment: SegmentFiles, findings: Findings, *, is_live: bool) -> None:
        super().__init__(segment, findings, is_live=is_live)
        self._largest = -1

    def batch(self, found: BatchOnDisk) -> None:
        header = found.header
        before = self._largest
        self._largest = max(before, header.max_timestamp)
        while self.next is not None and self.next.value <= header.last_offset:
            self._judge(self.next, found, before)
            self.advance()

    def _judge(self, entry: IndexEntry, found: BatchOnDisk, before: int) -> None:
        header = found.header
        if entry.key < before:
            what = f"entry {entry.slot} says {entry.key} is the largest timestamp up to offset {entry.value}; "
            self.complain(entry, what + f"{before} comes before it")
        elif entry.key != header.max_timestamp:
            what = f"entry {entry.slot} says timestamp {entry.key} at offset {entry.value}; "
            self.complain(entry, what + f"the batch there has {header.max_timestamp}")
        elif entry.value != header.last_offset and header.magic == format.CURRENT_MAGIC:
            what = f"entry {entry.slot} says offset {entry.value}, the batch there ends at {header.last_offset}"
            self.complain(entry, what)

    def finish(self) -> None:
        if self.next is not None and not self.is_live:
            self.complain(
                self.next, f"entry {self.next.slot} says offset {self.next.value}, which the log does not have"
            )
            return
        last = -1 if self.last is None else self.last.key
        if self.is_sound and not self.segment.is_active and not self.is_live and self._largest > last:
            what = f"ends with timestamp {last}, but the segment's largest is {self._largest}"
            self.findings.warning(self.path, None, what, REBUILD)


class TransactionIndexCheck:
    """Each entry: an aborted transaction, whose last offset is its ABORT marker's, in this segment."""

    def __init__(self, segment: SegmentFiles, findings: Findings) -> None:
        self.path = segment.path(names.TRANSACTION_INDEX)
        self._findings = findings
        self._entries = iter(self._read())
        self._next = next(self._entries, None)

    def batch(self, found: BatchOnDisk) -> None:
        while self._next is not None and self._next.last_offset <= found.header.last_offset:
            self._judge(self._next, found)
            self._next = next(self._entries, None)

    def finish(self) -> None:
        if self._next is not None:
            self._complain(self._next, "the segment ends before its last offset")
        self._findings.end_of(self.path)

    def _judge(self, entry: AbortedTransaction, found: BatchOnDisk) -> None:
        header = found.header
        if not (header.is_control and header.last_offset == entry.last_offset):
            self._complain(entry, "no marker has its last offset")
        elif header.producer_id != entry.producer_id:
            self._complain(entry, f"the marker there is of producer {header.producer_id}")
        elif entry.first_offset > entry.last_offset:
            self._complain(entry, "its first offset lies behind its last")

    def _complain(self, entry: AbortedTransaction, why: str) -> None:
        what = f"aborted transaction {entry.first_offset}..{entry.last_offset} of producer {entry.producer_id}: {why}"
        self._findings.warning(self.path, None, what, REPLAY)

    def _read(self) -> list[AbortedTransaction]:
        try:
            return transaction_index.parse_entries(read_small(self.path), Path(self.path.name))
        except FileNotFoundError:
            return []
        except (OSError, StorageError) as error:
            self._findings.warning(self.path, None, f"can't be read: {error}", REPLAY)
            return []


def _pair(entry: IndexEntry) -> str:
    return f"({entry.key}, {entry.value})"

"""Verification of an index against its log, in one pass together with the walk over the batches.

Each check receives the batches in order and checks the entries that belong to them; neither is kept in memory. The
check of an index ends at the first entry that is out of order, because the entries after it have no meaning.
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

REBUILD = "delete the file while no process has the log open: it is rebuilt from the log"
REPLAY = "delete it and the .snapshot files next to it while no process has the log open: they are rebuilt from the log"


class IndexCheck:
    """The base of both checks of sparse indexes: the file, its entries in order, and the next entry to check."""

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
        self.is_valid = self._open()
        self.advance()

    def close(self) -> None:
        if self._index is not None:
            self._index.close()
        self.findings.end_of(self.path)

    def advance(self) -> None:
        """Move to the next entry. If it doesn't rise, report it and end the check."""
        previous, self.next = self.next, next(self._entries, None)
        if previous is not None:
            self.last = previous
        if previous is None or self.next is None:
            return
        if self.next.key <= previous.key or self.next.value < previous.value:
            what = f"entry {self.next.slot} has {_pair(self.next)} after {_pair(previous)}; both must rise"
            self.findings.warning(self.path, self.next.slot * self.entry_size, what, REBUILD)
            self.is_valid = False
            self.next, self._entries = None, iter(())

    @property
    def entry_size(self) -> int:
        assert self._index is not None, "only a file has entries"
        return self._index.entry_size

    def complain(self, entry: IndexEntry, what: str) -> None:
        self.is_valid = False
        self.findings.warning(self.path, entry.slot * self.entry_size, what, REBUILD)

    def _open(self) -> bool:
        try:
            index = self._index = IndexFile(self.path)
        except FileNotFoundError:
            if self.is_live or not self.segment.path(names.LOG).exists():
                return False  # the segment is new, or was deleted just now, which reading the log reports
            self.findings.warning(
                self.path, None, "is missing", "nothing to do: it is built from the log when that is read"
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
            what = "ends in zeros, though its segment is sealed"
            self.findings.warning(self.path, index.count * index.entry_size, what, REBUILD)
        return True


class OffsetIndexCheck(IndexCheck):
    """The check of an offset index. Each entry has the position of a batch, and its last offset."""

    def check_batch(self, batch: BatchOnDisk, previous: int) -> None:
        """Check the entries of the next batch of the log. The batch before it ends at offset `previous`."""
        while self.next is not None and self.next.value < batch.end:
            self._check_entry(self.next, batch, previous)
            self.advance()

    def finish(self, size: int) -> None:
        """Report an entry after the end of the log, unless a running writer may have added it since."""
        if self.next is not None and not self.is_live:
            what = f"entry {self.next.slot} points to position {self.next.value}, but the log has {size} bytes"
            self.complain(self.next, what)

    def _check_entry(self, entry: IndexEntry, batch: BatchOnDisk, previous: int) -> None:
        header = batch.header
        if entry.value != batch.position:
            what = f"entry {entry.slot} points to position {entry.value}, inside the batch at {batch.position}"
            self.complain(entry, what)
        elif entry.key <= previous:
            what = f"entry {entry.slot} has offset {entry.key}, which is in a batch before position {entry.value}"
            self.complain(entry, what)
        elif entry.key != header.last_offset and header.magic == format.CURRENT_MAGIC:
            # Brokers before 4.1 wrote one entry per request, with the last offset of another batch. Lookups work.
            what = f"entry {entry.slot} has offset {entry.key}, but the batch there ends at {header.last_offset}"
            self.findings.note(
                self.path,
                entry.slot * self.entry_size,
                f"{what}; lookups work",
                "nothing to do: older brokers wrote such entries",
            )


class TimeIndexCheck(IndexCheck):
    """The check of a time index. Each entry has the largest timestamp so far, and the last offset of its batch."""

    suffix = names.TIME_INDEX

    def __init__(self, segment: SegmentFiles, findings: Findings, *, is_live: bool) -> None:
        super().__init__(segment, findings, is_live=is_live)
        self._largest = -1

    def check_batch(self, batch: BatchOnDisk) -> None:
        header = batch.header
        before = self._largest
        self._largest = max(before, header.max_timestamp)
        while self.next is not None and self.next.value <= header.last_offset:
            self._check_entry(self.next, batch, before)
            self.advance()

    def _check_entry(self, entry: IndexEntry, batch: BatchOnDisk, before: int) -> None:
        header = batch.header
        if entry.key < before:
            what = f"entry {entry.slot} has {entry.key} as the largest timestamp up to offset {entry.value}; "
            self.complain(entry, what + f"a batch before it has {before}")
        elif entry.key != header.max_timestamp:
            what = f"entry {entry.slot} has timestamp {entry.key} at offset {entry.value}; "
            self.complain(entry, what + f"the batch there has {header.max_timestamp}")
        elif entry.value != header.last_offset and header.magic == format.CURRENT_MAGIC:
            what = f"entry {entry.slot} has offset {entry.value}, but the batch there ends at {header.last_offset}"
            self.complain(entry, what)

    def finish(self) -> None:
        if self.next is not None and not self.is_live:
            self.complain(
                self.next, f"entry {self.next.slot} has offset {self.next.value}, which the log does not have"
            )
            return
        last = -1 if self.last is None else self.last.key
        if self.is_valid and not self.segment.is_active and not self.is_live and self._largest > last:
            what = f"ends with timestamp {last}, but the segment's largest is {self._largest}"
            self.findings.warning(self.path, None, what, REBUILD)


class TransactionIndexCheck:
    """The check of a transaction index. Each entry has an aborted transaction whose ABORT marker is in this segment, at
    its last offset."""

    def __init__(self, segment: SegmentFiles, findings: Findings) -> None:
        self.path = segment.path(names.TRANSACTION_INDEX)
        self._findings = findings
        self._entries = iter(self._read())
        self._next = next(self._entries, None)

    def check_batch(self, batch: BatchOnDisk) -> None:
        while self._next is not None and self._next.last_offset <= batch.header.last_offset:
            self._check_entry(self._next, batch)
            self._next = next(self._entries, None)

    def finish(self) -> None:
        if self._next is not None:
            self._complain(self._next, "the segment ends before its last offset")
        self._findings.end_of(self.path)

    def _check_entry(self, entry: AbortedTransaction, batch: BatchOnDisk) -> None:
        header = batch.header
        if not (header.is_control and header.last_offset == entry.last_offset):
            self._complain(entry, "there is no marker at its last offset")
        elif header.producer_id != entry.producer_id:
            self._complain(entry, f"the marker there is of producer {header.producer_id}")
        elif entry.first_offset > entry.last_offset:
            self._complain(entry, "its first offset is after its last offset")

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

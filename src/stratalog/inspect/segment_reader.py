"""The three files of a segment, open for a lookup. Headers are read in windows of the size that the engine uses.

The indexes are opened before the log. A writer writes in the opposite order, so each visible entry has its batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from stratalog.errors import CorruptBatchError, DecompressedTooLargeError, StorageError, StratalogError
from stratalog.inspect.batch_walk import LARGEST_DECOMPRESSED, LARGEST_HELD
from stratalog.inspect.index_file import IndexEntry, IndexFile
from stratalog.inspect.partition_files import SegmentFiles
from stratalog.inspect.read_only_file import ReadOnlyFile
from stratalog.records._framing import BatchHeader, parse_header
from stratalog.records._records import Record
from stratalog.records.batch import Batch
from stratalog.records.reader import records_of
from stratalog.storage import names
from stratalog.storage.scan import reason

WINDOW = 8192


class Located(NamedTuple):
    position: int
    header: BatchHeader


class SegmentReader:
    def __init__(self, files: SegmentFiles) -> None:
        self.files = files
        self.base_offset = files.base_offset
        self.offset_index = _open_index(files, names.OFFSET_INDEX)
        self.time_index = _open_index(files, names.TIME_INDEX)
        try:
            self.log = ReadOnlyFile(files.path(names.LOG))
        except BaseException:
            self._close_indexes()
            raise

    def close(self) -> None:
        self.log.close()
        self._close_indexes()

    def _close_indexes(self) -> None:
        for index in (self.offset_index, self.time_index):
            if index is not None:
                index.close()

    @property
    def bytes_read(self) -> int:
        indexes = (self.offset_index, self.time_index)
        return self.log.bytes_read + sum(index.bytes_read for index in indexes if index is not None)

    def headers(self, position: int) -> Iterator[Located]:
        """Yield the headers from the batch at `position` to the end. Raises CorruptBatchError for bytes that are not a
        batch, and for offsets that don't rise. Only the active segment may end inside a batch."""
        end = self.log.size
        previous = -1 if position else self.base_offset - 1
        while position < end:
            buffer = self.log.read(min(WINDOW, end - position), position)
            at = 0
            while at < len(buffer):
                header = self._parse(buffer, at, position)
                if header is None:
                    break
                if position + at + header.size > end:
                    self._torn(position + at, f"batch has {header.size} bytes, but {end - position - at} are left")
                    return
                if header.base_offset <= previous or header.last_offset < header.base_offset:
                    why = f"offsets {header.base_offset}..{header.last_offset} follow offset {previous}"
                    raise self.corrupt(why, position + at)
                previous = header.last_offset
                yield Located(position + at, header)
                at += header.size
            if at == 0:
                self._torn(position, f"{end - position} bytes are less than a batch header")
                return
            position += at

    def records(self, located: Located) -> list[Record]:
        """Return the records of a batch. Raises CorruptBatchError if its checksum is wrong."""
        if located.header.size > LARGEST_HELD:
            raise DecompressedTooLargeError(f"batch has {located.header.size} bytes; the limit is {LARGEST_HELD}")
        data = self.log.read(located.header.size, located.position)
        header = parse_header(data)
        if header is None or len(data) < header.size:
            raise self.corrupt("the file became shorter while it was read", located.position)
        batch = Batch(data, header)
        try:
            batch.check_crc()
            return records_of(batch, LARGEST_DECOMPRESSED)
        except StratalogError as error:
            raise self.corrupt(reason(error), located.position) from error

    def find_mismatch(self, entry: IndexEntry) -> str | None:
        """Return why the log refutes an offset index entry, or None if the batch that it points to ends at its
        offset."""
        if not 0 <= entry.value < self.log.size:
            return f"position {entry.value} is after the end of the log, {self.log.size}"
        try:
            header = parse_header(self.log.read(min(WINDOW, self.log.size - entry.value), entry.value))
        except StratalogError as error:
            return f"there is no batch at position {entry.value}: {reason(error)}"
        if header is None or header.last_offset != entry.key:
            ends = "no complete batch" if header is None else f"a batch that ends at {header.last_offset}"
            return f"position {entry.value} has {ends}, not one that ends at {entry.key}"
        return None

    def corrupt(self, why: str, position: int) -> CorruptBatchError:
        return CorruptBatchError(why, file=str(self.log.path), position=position)

    def _parse(self, buffer: bytes, at: int, origin: int) -> BatchHeader | None:
        try:
            return parse_header(buffer, at)
        except StratalogError as error:
            raise self.corrupt(reason(error), origin + at) from error

    def _torn(self, position: int, why: str) -> None:
        if not self.files.is_active:
            raise self.corrupt(why, position)


def _open_index(files: SegmentFiles, suffix: str) -> IndexFile | None:
    try:
        return IndexFile(files.path(suffix))
    except (FileNotFoundError, StorageError):
        return None

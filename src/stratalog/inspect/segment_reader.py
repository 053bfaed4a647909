"""A segment's three files, open for a look-up. Headers are read in windows of the size that the engine uses.

The indexes are opened before the log: a writer writes in the other order, so every entry that is seen has its batch.
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
        """From the batch at `position` to the end. Raises CorruptBatchError where there is no batch or offsets do
        not rise; only the active segment may end inside a batch."""
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
                    self._torn(position + at, f"batch claims {header.size} bytes, {end - position - at} are left")
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

    def records(self, found: Located) -> list[Record]:
        """The records of a batch whose checksum holds."""
        if found.header.size > LARGEST_HELD:
            raise DecompressedTooLargeError(f"batch has {found.header.size} bytes, more than {LARGEST_HELD}")
        data = self.log.read(found.header.size, found.position)
        header = parse_header(data)
        if header is None or len(data) < header.size:
            raise self.corrupt("the file became shorter while it was read", found.position)
        batch = Batch(data, header)
        try:
            batch.check_crc()
            return records_of(batch, LARGEST_DECOMPRESSED)
        except StratalogError as error:
            raise self.corrupt(reason(error), found.position) from error

    def confirms(self, entry: IndexEntry) -> str | None:
        """Why an offset index entry is not to be believed; None: the batch that it points to ends where it says."""
        if not 0 <= entry.value < self.log.size:
            return f"position {entry.value} lies past the end of the log, {self.log.size}"
        try:
            header = parse_header(self.log.read(min(WINDOW, self.log.size - entry.value), entry.value))
        except StratalogError as error:
            return f"no batch is at position {entry.value}: {reason(error)}"
        if header is None or header.last_offset != entry.key:
            ends = "nothing whole" if header is None else f"a batch that ends at {header.last_offset}"
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

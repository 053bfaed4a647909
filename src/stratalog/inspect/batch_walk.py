"""A walk from batch to batch through a .log file, as far as the framing is valid, and the damage that ended it.

The memory is one chunk, or one batch of up to LARGEST_HELD. The checksum of a larger batch is computed piece by piece,
and its records are not decoded. A wrong checksum does not end the walk, because the length leads to the next batch.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from crc32c import crc32c

from stratalog.errors import DecompressedTooLargeError, StratalogError
from stratalog.inspect.read_only_file import ReadOnlyFile
from stratalog.records import format
from stratalog.records._framing import BatchHeader, parse_header, parse_headers
from stratalog.records._records import Record
from stratalog.records.batch import Batch
from stratalog.records.reader import records_of
from stratalog.storage.scan import reason

CHUNK = 1024 * 1024
LARGEST_HELD = 64 * 1024 * 1024
LARGEST_DECOMPRESSED = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Damage:
    """The position in a .log where batches end, and why. `is_torn`: the bytes there may be the start of a torn
    batch."""

    position: int
    reason: str
    bytes_left: int
    is_torn: bool


class BatchOnDisk:
    """A batch and its position in the file. `header.position` counts from the start of the buffer."""

    __slots__ = ("_buffer", "_file", "header", "position")

    def __init__(self, file: ReadOnlyFile, position: int, header: BatchHeader, buffer: bytes | None) -> None:
        self._file = file
        self.position = position
        self.header = header
        self._buffer = buffer

    @property
    def end(self) -> int:
        return self.position + self.header.size

    @property
    def batch(self) -> Batch:
        """The batch in memory. Raises DecompressedTooLargeError if it is larger than LARGEST_HELD."""
        if self._buffer is None:
            raise DecompressedTooLargeError(
                f"batch has {self.header.size} bytes; records are decoded in batches of up to {LARGEST_HELD} bytes"
            )
        return Batch(self._buffer, self.header)

    def records(self) -> list[Record]:
        """Return the records. Raises StratalogError if they can't be decoded."""
        return records_of(self.batch, LARGEST_DECOMPRESSED)

    def crc_matches(self) -> bool:
        if self._buffer is not None:
            return Batch(self._buffer, self.header).crc_matches()
        return self._streamed_crc() == self.header.crc

    def _streamed_crc(self) -> int:
        is_current = self.header.magic == format.CURRENT_MAGIC
        position = self.position + (format.ATTRIBUTES_POSITION if is_current else format.MAGIC_POSITION)
        crc = 0
        while position < self.end:
            piece = self._file.read(min(CHUNK, self.end - position), position)
            if not piece:
                break  # the file was truncated during the read: the checksum will not match, and is reported
            crc = crc32c(piece, crc) if is_current else zlib.crc32(piece, crc)
            position += len(piece)
        return crc


class BatchWalk:
    """An iterable of the batches, for one iteration. Then `damage` says why the walk ended; None means at the end."""

    def __init__(self, file: ReadOnlyFile, position: int = 0, end: int | None = None, chunk_size: int = CHUNK) -> None:
        self.damage: Damage | None = None
        self.position = position  # after the last batch
        self._file = file
        self._end = file.size if end is None else min(end, file.size)
        self._chunk_size = chunk_size

    def __iter__(self) -> Iterator[BatchOnDisk]:
        while self.position < self._end and self.damage is None:
            origin = self.position
            buffer = self._file.read(min(self._chunk_size, self._end - origin), origin)
            headers, stop, error = parse_headers(buffer)
            for header in headers:
                self.position = origin + header.position + header.size
                yield BatchOnDisk(self._file, origin + header.position, header, buffer)
            if error is not None:
                self._stop(reason(error), is_torn=False)
            elif not headers:
                yield from self._larger_than_chunk(buffer[stop:])

    def _larger_than_chunk(self, start: bytes) -> Iterator[BatchOnDisk]:
        left = self._end - self.position
        try:
            header = parse_header(start)
        except StratalogError as error:
            self._stop(reason(error), is_torn=False)
            return
        if header is None:
            self._stop("less than a batch header", is_torn=True)
            return
        if header.size > left:
            self._stop(f"the batch at offset {header.base_offset} has {header.size} bytes", is_torn=True)
            return
        position = self.position
        buffer = self._file.read(header.size, position) if header.size <= LARGEST_HELD else None
        if buffer is not None and len(buffer) < header.size:
            self._stop("the file became shorter while it was read", is_torn=True)
            return
        self.position += header.size
        yield BatchOnDisk(self._file, position, header, buffer)

    def _stop(self, why: str, *, is_torn: bool) -> None:
        self.damage = Damage(self.position, why, self._end - self.position, is_torn)

"""Walks a .log file from batch to batch, a chunk at a time, and finds the first corrupt batch.

Memory is limited to a chunk or the largest batch, whichever is larger, and a length field can't claim more than the
file has. Errors carry the file and the position.
"""

from __future__ import annotations

from collections.abc import Iterator

from stratalog.errors import CorruptBatchError, StratalogError
from stratalog.records._framing import BatchHeader, count_valid, parse_header, parse_headers
from stratalog.records.batch import Batch
from stratalog.records.format import HEADER_SIZE
from stratalog.storage.file_slice import LogFile

CHUNK = 1024 * 1024


class Chunk:
    """One or more complete batches. Header positions count from the start of `buffer`, which is at `origin` in the
    file."""

    __slots__ = ("buffer", "headers", "origin")

    def __init__(self, buffer: bytes, headers: list[BatchHeader], origin: int) -> None:
        self.buffer = buffer
        self.headers = headers
        self.origin = origin

    @property
    def end(self) -> int:
        """The position in the file after the last batch."""
        last = self.headers[-1]
        return self.origin + last.position + last.size


def scan(file: LogFile, position: int, end: int, chunk_size: int = CHUNK) -> Iterator[Chunk]:
    """Yield all batches from `position`, where a batch starts, to `end`. Checksums are not checked. Raises
    CorruptBatchError at the first bytes that are not a complete batch, after it has yielded everything before them."""
    while position < end:
        buffer = file.read(min(chunk_size, end - position), position)
        headers, consumed, error = parse_headers(buffer)
        if not headers and error is None:
            # The batch is larger than the chunk, or the file ends within it.
            buffer = file.read(_batch_size(file, buffer, position, end), position)
            headers, consumed, error = parse_headers(buffer)
        if headers:
            yield Chunk(buffer, headers, position)
            position += consumed
        if error is not None:
            raise CorruptBatchError(reason(error), file=str(file.path), position=position) from error


def reason(error: StratalogError) -> str:
    """Return the error's message without its position, which counts from the start of a buffer and not of the file."""
    return error.reason if isinstance(error, CorruptBatchError) else str(error)


def _batch_size(file: LogFile, buffer: bytes, position: int, end: int) -> int:
    header = parse_header(buffer)
    if header is None:
        raise CorruptBatchError(
            f"{end - position} bytes at the end are less than a batch header",
            file=str(file.path),
            position=position,
        )
    if header.size > end - position:
        raise CorruptBatchError(
            f"batch at offset {header.base_offset} claims {header.size} bytes, {end - position} are left",
            file=str(file.path),
            position=position,
        )
    return header.size


def check(
    file: LogFile,
    position: int,
    end: int,
    *,
    previous: int,
    limit: int,
    checksums: bool = True,
    chunk_size: int = CHUNK,
) -> Iterator[Chunk]:
    """Yield all batches like scan(), and check them: offsets rise, starting above `previous`, and stay below `limit`,
    and every checksum matches.

    Everything that it yields is valid. Raises CorruptBatchError at the first batch that is not. The checksum does not
    cover the base offset. So if a batch leaves a gap, and the next valid batch starts before the first one ends, the
    first one is corrupt.
    """
    for chunk in scan(file, position, end, chunk_size):
        headers = chunk.headers
        index = 0
        while True:
            index += count_valid(chunk.buffer, headers, index, previous, limit, checksums)
            if index:
                previous = headers[index - 1].last_offset
            if index == len(headers):
                break
            header = headers[index]
            problem = _problem(chunk.buffer, header, previous, limit, checksums)
            if problem is None and header.base_offset != previous + 1:
                following = _valid_batch(file, chunk.origin + header.position + header.size, end)
                if following is not None and following.base_offset <= header.last_offset:
                    problem = f"offset {header.base_offset} follows {previous}, and {following.base_offset} comes next"
            if problem is not None:
                if index:
                    yield Chunk(chunk.buffer, chunk.headers[:index], chunk.origin)
                raise CorruptBatchError(problem, file=str(file.path), position=chunk.origin + header.position)
            previous = header.last_offset
            index += 1
        yield chunk


def _problem(buffer: bytes, header: BatchHeader, previous: int, limit: int, checksums: bool) -> str | None:
    if header.base_offset <= previous or header.last_offset < header.base_offset or header.last_offset >= limit:
        return f"offsets {header.base_offset}..{header.last_offset} are not between {previous} and {limit}"
    if checksums and not Batch(buffer, header).crc_matches():
        return f"the checksum of the batch at offset {header.base_offset} does not match its header"
    return None


def _valid_batch(file: LogFile, position: int, end: int) -> BatchHeader | None:
    """Return the header of the batch at `position`, or None if the batch is torn or its checksum does not match."""
    if position >= end:
        return None
    try:
        header = parse_header(file.read(min(HEADER_SIZE, end - position), position))
        if header is None or header.size > end - position:
            return None
        buffer = file.read(header.size, position)
        return header if Batch(buffer, header).crc_matches() else None
    except StratalogError:
        return None

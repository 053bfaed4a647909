"""One record batch over a buffer: a header, parsed once, and the bytes it describes, never copied.

`batches(buffer)` walks a buffer that holds several. A batch knows whether its checksum holds and hands out its
records or their decompressed bytes; it never changes the buffer.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from stratalog.errors import CorruptBatchError
from stratalog.records import compression, format
from stratalog.records._framing import BatchHeader, crc_matches, parse_headers

if TYPE_CHECKING:
    from typing_extensions import Buffer

DEFAULT_MAX_DECOMPRESSED = 256 * 1024 * 1024


class Batch:
    """A whole batch (or legacy message) at header.position of `buffer`."""

    __slots__ = ("buffer", "header")

    def __init__(self, buffer: Buffer, header: BatchHeader) -> None:
        self.buffer = memoryview(buffer)
        self.header = header

    def __repr__(self) -> str:
        return f"Batch({self.header!r})"

    @property
    def data(self) -> memoryview:
        """The bytes of the batch, as on disk and on the wire."""
        return self.buffer[self.header.position : self.header.position + self.header.size]

    def crc_matches(self) -> bool:
        if self.header.magic == format.CURRENT_MAGIC:
            return crc_matches(self.buffer, self.header)
        return zlib.crc32(self.data[format.MAGIC_POSITION :]) == self.header.crc

    def check_crc(self) -> None:
        if not self.crc_matches():
            raise CorruptBatchError(
                f"checksum of the batch at offset {self.header.base_offset} is not the one in its header, "
                f"{self.header.crc:#010x}",
                position=self.header.position,
            )

    def payload(self, max_decompressed: int = DEFAULT_MAX_DECOMPRESSED) -> Buffer:
        """The records' bytes, decompressed where they are compressed (magic 2 only)."""
        raw = self.data[format.HEADER_SIZE :]
        if self.header.codec == format.Codec.NONE:
            return raw
        return compression.decompress(self.header.codec, raw, max_decompressed)

    def payload_in_pieces(self, max_decompressed: int = DEFAULT_MAX_DECOMPRESSED) -> Iterator[memoryview]:
        """The same piece by piece, each overwritten by the next: for what would take too much memory."""
        return compression.decompress_in_pieces(self.header.codec, self.data[format.HEADER_SIZE :], max_decompressed)


def batches(buffer: Buffer) -> Iterator[Batch]:
    """The whole batches of a buffer, in order; one that is cut off at the end is left out. Bytes that can't be a
    batch raise, after everything before them was yielded."""
    headers, _, error = parse_headers(buffer)
    for header in headers:
        yield Batch(buffer, header)
    if error is not None:
        raise error

"""One record batch over a buffer: its header, which is parsed once, and its bytes, which are never copied or changed.

`batches(buffer)` yields the batches of a buffer. A batch checks its checksum and returns the bytes of its records,
decompressed.
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
    """A complete batch, or a legacy message, at header.position of `buffer`."""

    __slots__ = ("buffer", "header")

    def __init__(self, buffer: Buffer, header: BatchHeader) -> None:
        self.buffer = memoryview(buffer)
        self.header = header

    def __repr__(self) -> str:
        return f"Batch({self.header!r})"

    @property
    def data(self) -> memoryview:
        """The bytes of the batch, as they are on disk and on the wire."""
        return self.buffer[self.header.position : self.header.position + self.header.size]

    def crc_matches(self) -> bool:
        """Return whether the bytes have the checksum that the header states."""
        if self.header.magic == format.CURRENT_MAGIC:
            return crc_matches(self.buffer, self.header)
        return zlib.crc32(self.data[format.MAGIC_POSITION :]) == self.header.crc

    def check_crc(self) -> None:
        """Raise CorruptBatchError if the checksum is wrong."""
        if not self.crc_matches():
            raise CorruptBatchError(
                f"checksum of the batch at offset {self.header.base_offset} is not the one in its header, "
                f"{self.header.crc:#010x}",
                position=self.header.position,
            )

    def payload(self, max_decompressed: int = DEFAULT_MAX_DECOMPRESSED) -> Buffer:
        """Return the bytes of the records, decompressed. Only for magic 2."""
        raw = self.data[format.HEADER_SIZE :]
        if self.header.codec == format.Codec.NONE:
            return raw
        return compression.decompress(self.header.codec, raw, max_decompressed)

    def payload_in_pieces(self, max_decompressed: int = DEFAULT_MAX_DECOMPRESSED) -> Iterator[memoryview]:
        """Yield payload() piece by piece, for batches that would take too much memory. Each piece overwrites the one
        before."""
        return compression.decompress_in_pieces(self.header.codec, self.data[format.HEADER_SIZE :], max_decompressed)


def batches(buffer: Buffer) -> Iterator[Batch]:
    """Yield the complete batches of a buffer, in order. A batch that is cut off at the end is left out. Bytes that
    can't be a batch raise an error after everything before them was yielded."""
    headers, _, error = parse_headers(buffer)
    for header in headers:
        yield Batch(buffer, header)
    if error is not None:
        raise error

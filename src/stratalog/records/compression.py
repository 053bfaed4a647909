"""The four codecs of the record format, with a limit of the decompressed size.

Every Kafka client can read what `compress` writes: gzip; snappy in the blocks of xerial's SnappyOutputStream, as Java
writes them; LZ4 frames of independent blocks; zstd. `decompress` reads more: raw snappy (librdkafka), several members
or frames after each other, and the LZ4 frames of magic 0, whose header checksum covers too many bytes.

The buffer for decompressed data starts near the likely size and grows up to the limit, never beyond it. The size that a
frame states is only a hint for the first buffer.

A thread can abandon its calls while they run: see `abandon_when`.
"""

from __future__ import annotations

import struct
import zlib
from contextvars import ContextVar
from typing import TYPE_CHECKING

import cramjam

from stratalog.errors import (
    AbandonedError,
    ConfigError,
    CorruptBatchError,
    DecompressedTooLargeError,
    UnsupportedCodecError,
)
from stratalog.records._records import uninitialized
from stratalog.records.format import Codec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import Buffer

XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER = XERIAL_MAGIC + struct.pack(">ii", 1, 1)  # version, oldest version that can read it
XERIAL_BLOCK_SIZE = 32 * 1024

_GZIP_ONLY = 31  # zlib's number for its largest window and only gzip's format

LZ4_MAGIC = b"\x04\x22\x4d\x18"
LZ4_CONTENT_SIZE_BIT = 0x08

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
ZSTD_DEFAULT_LEVEL = 3  # Kafka's default; cramjam's default, 11, costs ten times as much

LEVELS = {Codec.GZIP: (1, 9), Codec.LZ4: (1, 17), Codec.ZSTD: (-131072, 22)}

# A hint is trusted up to this ratio, so that the first allocation is proportional to the received bytes.
TRUSTED_RATIO = 32
SMALLEST_BUFFER = 4096
GROWTH = 4

PIECE_SIZE = 1024 * 1024

# The slices that zlib is fed: small at the start of a member, and larger as the member continues.
SMALLEST_SLICE = 512
LARGEST_SLICE = 64 * 1024

# Snappy's densest element encodes 64 bytes in 3.
SNAPPY_MOST_PER_BYTE = 22

# The message of Rust's `write_all` for a full slice: cramjam's only sign that the buffer is too small.
BUFFER_FULL = "failed to write whole buffer"

_is_abandoned: ContextVar[Callable[[], bool] | None] = ContextVar("is_abandoned", default=None)


def abandon_when(is_abandoned: Callable[[], bool]) -> None:
    """Make all later compression and decompression in this thread raise AbandonedError once `is_abandoned` returns
    True. It is called before each call and between pieces."""
    _is_abandoned.set(is_abandoned)


def _check_not_abandoned() -> None:
    is_abandoned = _is_abandoned.get()
    if is_abandoned is not None and is_abandoned():
        raise AbandonedError("checking the batches was abandoned, because the broker stops")


def compress(codec: int, data: Buffer, level: int | None = None) -> memoryview:
    """Return compressed data. The default level is Kafka's default for gzip and zstd, and the fast mode for LZ4."""
    _check_level(codec, level)
    _check_not_abandoned()
    if codec == Codec.NONE:
        return memoryview(data)
    if codec == Codec.GZIP:
        return memoryview(cramjam.gzip.compress(data, level=level))
    if codec == Codec.SNAPPY:
        return memoryview(_compress_xerial(data))
    if codec == Codec.LZ4:
        # cramjam's default is linked blocks, which Java doesn't read.
        compressor = cramjam.lz4.Compressor(level=level or 1, content_checksum=False, block_linked=False)
        view = memoryview(data).cast("B")
        for start in range(0, max(view.nbytes, 1), PIECE_SIZE):
            compressor.compress(bytes(view[start : start + PIECE_SIZE]))  # it accepts only bytes
        return memoryview(compressor.finish())
    return memoryview(cramjam.zstd.compress(data, level=ZSTD_DEFAULT_LEVEL if level is None else level))


def decompress(codec: int, data: Buffer, max_size: int) -> bytearray | memoryview:
    """Return decompressed data. Raises DecompressedTooLargeError if it has more than `max_size` bytes."""
    _check_not_abandoned()
    view = memoryview(data)
    if codec == Codec.NONE:
        if view.nbytes > max_size:
            raise _too_large(Codec.NONE, max_size)
        return view
    if codec == Codec.GZIP:
        return _decompress_growing(Codec.GZIP, cramjam.gzip.decompress_into, view, _gzip_size_hint(view), max_size)
    if codec == Codec.SNAPPY:
        if view[: len(XERIAL_MAGIC)] == XERIAL_MAGIC:
            return _decompress_xerial(view, max_size)
        return _decompress_snappy_blocks(lambda: iter([view]), max_size)
    if codec == Codec.LZ4:
        frame = _with_true_header_checksum(view)
        return _decompress_growing(Codec.LZ4, cramjam.lz4.decompress_into, frame, _lz4_size_hint(view), max_size)
    if codec == Codec.ZSTD:
        return _decompress_growing(Codec.ZSTD, cramjam.zstd.decompress_into, view, _zstd_size_hint(view), max_size)
    raise _unsupported(codec)


def decompress_in_pieces(codec: int, data: Buffer, max_size: int) -> Iterator[memoryview]:
    """Decompress `data` piece by piece. Each piece overwrites the one before it. The decompressed data is never in
    memory as a whole, except snappy's, whose blocks hold little more than their own size."""
    if codec in (Codec.NONE, Codec.SNAPPY):
        yield memoryview(decompress(codec, data, max_size))
        return
    total = 0
    try:
        for piece in _gunzip(data) if codec == Codec.GZIP else _read_frames(codec, data):
            total += len(piece)
            if total > max_size:
                raise _too_large(Codec(codec), max_size)
            _check_not_abandoned()
            yield piece
    except (OSError, ValueError, zlib.error) as error:
        raise CorruptBatchError(f"{Codec(codec).name.lower()} data can't be decompressed: {error}") from error


def _gunzip(data: Buffer) -> Iterator[memoryview]:
    """Yield the decompressed data of one or more gzip members. (pyarrow reads them, too, but also accepts zlib's own
    format.)

    zlib copies the unused rest of its input at each piece and at the end of each member. So a member is fed in slices
    that start small and grow: the copied bytes stay proportional to the data, also with thousands of empty members."""
    view = memoryview(data).cast("B")
    position = 0
    while position < view.nbytes:
        decompressor = zlib.decompressobj(wbits=_GZIP_ONLY)
        size = SMALLEST_SLICE
        while not decompressor.eof:
            _check_not_abandoned()
            fed = view[position : position + size]
            piece = decompressor.decompress(fed, PIECE_SIZE)
            position += fed.nbytes - len(decompressor.unused_data if decompressor.eof else decompressor.unconsumed_tail)
            size = min(size * 2, LARGEST_SLICE)
            if piece:
                yield memoryview(piece)
            elif not decompressor.eof and position == view.nbytes:
                raise ValueError("the data ends in the middle of a member")


def _read_frames(codec: int, data: Buffer) -> Iterator[memoryview]:
    import pyarrow  # a slow import, which few processes need

    frame = _with_true_header_checksum(memoryview(data)) if codec == Codec.LZ4 else data
    piece = memoryview(bytearray(PIECE_SIZE))
    stream = pyarrow.CompressedInputStream(pyarrow.BufferReader(frame), Codec(codec).name.lower())
    while size := stream.readinto(piece):
        yield piece[:size]


def with_legacy_lz4_checksum(frame: Buffer) -> bytearray:
    """Return an LZ4 frame with the header checksum of Kafka 0.8 and 0.9, which also covers the magic number."""
    legacy = bytearray(frame)
    checksum = _lz4_checksum_position(memoryview(legacy))
    legacy[checksum] = _header_checksum(bytes(legacy[:checksum]))
    return legacy


def _check_level(codec: int, level: int | None) -> None:
    if not Codec.NONE <= codec <= Codec.ZSTD:
        raise _unsupported(codec)
    if level is None:
        return
    if codec not in LEVELS:
        raise ConfigError(f"compression level is {level}, but {Codec(codec).name.lower()} has no levels; leave it out")
    lowest, highest = LEVELS[Codec(codec)]
    if not lowest <= level <= highest:
        name = Codec(codec).name.lower()
        raise ConfigError(f"compression level is {level}; {name} has levels {lowest} to {highest}")


def _unsupported(codec: int) -> UnsupportedCodecError:
    return UnsupportedCodecError(f"codec is {codec}; 0 to 4 are known")


def _too_large(codec: Codec, max_size: int) -> DecompressedTooLargeError:
    return DecompressedTooLargeError(
        f"{codec.name.lower()} data decompresses to more than the limit of {max_size} bytes"
    )


def _decompress_growing(
    codec: Codec, decompress_into: Callable[..., int], data: Buffer, hint: int, max_size: int
) -> bytearray:
    """Decompress into larger and larger buffers until one is large enough. Starting over costs at most a third more."""
    compressed = memoryview(data).nbytes
    guess = hint if 0 < hint <= compressed * TRUSTED_RATIO else compressed * GROWTH
    size = min(max_size, max(guess, SMALLEST_BUFFER))
    while True:
        decompressed = uninitialized(size)
        try:
            written = decompress_into(data, decompressed)
        except cramjam.DecompressionError as error:
            if BUFFER_FULL not in str(error):
                raise CorruptBatchError(f"{codec.name.lower()} data can't be decompressed: {error}") from error
            del decompressed  # before the next buffer is allocated, and before an exception keeps it alive
            if size == max_size:
                raise _too_large(codec, max_size) from None
            size = min(size * GROWTH, max_size)
            continue
        del decompressed[written:]
        return decompressed


def _gzip_size_hint(data: memoryview) -> int:
    """Return the last member's decompressed size modulo 2^32, which is at the end of its trailer."""
    return int.from_bytes(data[-4:], "little")


def _lz4_size_hint(data: memoryview) -> int:
    if data.nbytes < 14 or not data[4] & LZ4_CONTENT_SIZE_BIT:
        return 0
    return int.from_bytes(data[6:14], "little")


def _zstd_size_hint(data: memoryview) -> int:
    """Return the first frame's content size: a field of 0, 1, 2, 4 or 8 bytes after the window and the dictionary
    id."""
    if data.nbytes < 18 or data[:4] != ZSTD_MAGIC:
        return 0
    descriptor = data[4]
    single_segment = descriptor >> 5 & 1
    length = (single_segment, 2, 4, 8)[descriptor >> 6]
    start = 5 + (1 - single_segment) + (0, 1, 2, 4)[descriptor & 3]
    size = int.from_bytes(data[start : start + length], "little")
    return size + 256 if length == 2 else size


def _compress_xerial(data: Buffer) -> bytearray:
    view = memoryview(data)
    out = bytearray(XERIAL_HEADER)
    for start in range(0, view.nbytes, XERIAL_BLOCK_SIZE):
        block = cramjam.snappy.compress_raw(view[start : start + XERIAL_BLOCK_SIZE])
        out += len(block).to_bytes(4, "big")
        out += memoryview(block)
    return out


def _decompress_xerial(data: memoryview, max_size: int) -> bytearray:
    return _decompress_snappy_blocks(lambda: _xerial_blocks(data), max_size)


def _xerial_blocks(data: memoryview) -> Iterator[memoryview]:
    """Yield the blocks after each header. Read as a block length, the header of a further stream would be negative."""
    position = 0
    while position < data.nbytes:
        if data[position : position + len(XERIAL_MAGIC)] == XERIAL_MAGIC:
            position += len(XERIAL_HEADER)
            continue
        length = int.from_bytes(data[position : position + 4], "big", signed=True)
        position += 4
        if length <= 0 or length > data.nbytes - position:
            raise CorruptBatchError(f"snappy block length is {length}, but {data.nbytes - position} bytes are left")
        yield data[position : position + length]
        position += length
    if position > data.nbytes:
        raise CorruptBatchError("snappy stream ends inside its header")


def _decompress_snappy_blocks(blocks: Callable[[], Iterator[memoryview]], max_size: int) -> bytearray:
    """Decompress blocks into one buffer. This iterates twice, because a list of tiny blocks would need far more
    memory."""
    total = 0
    for block in blocks():
        _check_not_abandoned()
        total += _snappy_size(block)
    if total > max_size:
        raise _too_large(Codec.SNAPPY, max_size)
    decompressed = bytearray(total)
    out = memoryview(decompressed)
    position = 0
    try:
        for block in blocks():
            _check_not_abandoned()
            size = _snappy_size(block)
            cramjam.snappy.decompress_raw_into(block, out[position : position + size])
            position += size
    except cramjam.DecompressionError as error:
        raise CorruptBatchError(f"snappy data can't be decompressed: {error}") from error
    return decompressed


def _snappy_size(block: memoryview) -> int:
    """Return the decompressed size that a block states. Raises CorruptBatchError if its length can't hold that much."""
    if not block.nbytes:
        raise CorruptBatchError("snappy block is empty: its size is missing")
    try:
        size: int = cramjam.snappy.decompress_raw_len(block)
    except cramjam.DecompressionError as error:
        raise CorruptBatchError(f"snappy data can't be decompressed: {error}") from error
    if size > block.nbytes * SNAPPY_MOST_PER_BYTE:
        raise CorruptBatchError(f"snappy block of {block.nbytes} bytes can't hold the {size} bytes that it states")
    return size


def _with_true_header_checksum(frame: memoryview) -> Buffer:
    """Return the frame, with its header checksum corrected if it is the one that Kafka computed for magic 0."""
    if frame[:4] != LZ4_MAGIC or frame.nbytes < 7:
        return frame
    position = _lz4_checksum_position(frame)
    if position >= frame.nbytes:
        return frame
    true = _header_checksum(bytes(frame[4:position]))
    if frame[position] == true or frame[position] != _header_checksum(bytes(frame[:position])):
        return frame
    corrected = bytearray(frame)
    corrected[position] = true
    return corrected


def _lz4_checksum_position(frame: memoryview) -> int:
    """Return the position after the magic number, the flags, the block size, and the content size if there is one.

    A frame with a dictionary can't be decompressed, so its dictionary id is ignored.
    """
    return 14 if frame[4] & LZ4_CONTENT_SIZE_BIT else 6


def _header_checksum(data: bytes) -> int:
    return _short_xxh32(data) >> 8 & 0xFF


def _short_xxh32(data: bytes) -> int:
    """Return XXH32 with seed 0, the hash of LZ4 frames, of a header with less than 16 bytes."""
    prime1, prime2, prime3, prime4, prime5 = 2654435761, 2246822519, 3266489917, 668265263, 374761393
    mask = 0xFFFFFFFF

    def rotate(value: int, bits: int) -> int:
        return (value << bits | value >> (32 - bits)) & mask

    whole = len(data) & ~3
    total = prime5 + len(data)
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        total = rotate((total + word * prime3) & mask, 17) * prime4
    for byte in data[whole:]:
        total = rotate((total + byte * prime5) & mask, 11) * prime1
    total &= mask
    total = (total ^ total >> 15) * prime2 & mask
    total = (total ^ total >> 13) * prime3 & mask
    return total ^ total >> 16

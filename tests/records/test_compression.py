"""Codecs: other clients read our data, we read theirs, and nothing decompresses past its limit."""

from __future__ import annotations

import gzip
import random
import subprocess
import sys
import textwrap
import tracemalloc
import zlib
from collections.abc import Callable
from contextvars import copy_context

import cramjam
import pytest
from aiokafka import codec as aiokafka_codec
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import (
    AbandonedError,
    ConfigError,
    CorruptBatchError,
    DecompressedTooLargeError,
    UnsupportedCodecError,
)
from stratalog.records import compression
from stratalog.records.compression import compress, decompress, decompress_in_pieces
from stratalog.records.format import Codec

COMPRESSED = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
BOUND = 1 << 24


def sample(size: int) -> bytes:
    return bytes(random.Random(size).choices(b"abcdefgh ", k=size))


@pytest.mark.parametrize("codec", list(Codec))
@given(data=st.binary(max_size=3000), repeat=st.integers(1, 60))
def test_compressed_data_decompresses_to_the_same(codec: Codec, data: bytes, repeat: int) -> None:
    assert bytes(decompress(codec, compress(codec, data * repeat), BOUND)) == data * repeat


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda data: memoryview(bytearray(data))])
def test_any_buffer_can_be_compressed_and_decompressed(codec: Codec, kind: Callable[[bytes], bytes]) -> None:
    packed = compress(codec, kind(sample(1000)))
    assert bytes(decompress(codec, kind(bytes(packed)), BOUND)) == sample(1000)


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("size", [0, 1, 32768, 32769, 300_000])
def test_sizes_at_block_boundaries_decompress_to_the_same(codec: Codec, size: int) -> None:
    assert bytes(decompress(codec, compress(codec, sample(size)), size)) == sample(size)


ORACLES: list[tuple[Codec, Callable[[bytes], bytes], Callable[[memoryview], bytes]]] = [
    (Codec.GZIP, aiokafka_codec.gzip_encode, aiokafka_codec.gzip_decode),
    (Codec.SNAPPY, aiokafka_codec.snappy_encode, aiokafka_codec.snappy_decode),
    (Codec.LZ4, aiokafka_codec.lz4_encode, aiokafka_codec.lz4_decode),
    (Codec.ZSTD, aiokafka_codec.zstd_encode, aiokafka_codec.zstd_decode),
]


@pytest.mark.parametrize(("codec", "encode", "decode"), ORACLES)
def test_aiokafka_reads_ours_and_we_read_aiokafka(
    codec: Codec, encode: Callable[[bytes], bytes], decode: Callable[[memoryview], bytes]
) -> None:
    data = sample(100_000)
    assert decode(compress(codec, data)) == data
    assert bytes(decompress(codec, encode(data), BOUND)) == data


def test_snappy_is_written_as_the_java_client_writes_it() -> None:
    written = bytes(compress(Codec.SNAPPY, sample(40_000)))
    assert written[:16] == b"\x82SNAPPY\x00" + b"\x00\x00\x00\x01" * 2
    first = int.from_bytes(written[16:20], "big")
    assert bytes(cramjam.snappy.decompress_raw(written[20 : 20 + first])) == sample(40_000)[:32768]


def test_raw_snappy_of_librdkafka_is_read() -> None:
    raw = bytes(cramjam.snappy.compress_raw(sample(5000)))
    assert bytes(decompress(Codec.SNAPPY, raw, BOUND)) == sample(5000)


def test_consecutive_xerial_streams_are_read() -> None:
    twice = bytes(compress(Codec.SNAPPY, b"one")) + bytes(compress(Codec.SNAPPY, b"two"))
    assert bytes(decompress(Codec.SNAPPY, twice, BOUND)) == b"onetwo"


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_consecutive_frames_are_read_with_one_limit(codec: Codec) -> None:
    data = sample(10_000)
    twice = bytes(compress(codec, data)) * 2
    assert bytes(decompress(codec, twice, 20_000)) == data * 2
    with pytest.raises(DecompressedTooLargeError, match="limit of 19999 bytes"):
        decompress(codec, twice, 19_999)


def test_lz4_blocks_are_independent_as_java_requires() -> None:
    flags = compress(Codec.LZ4, sample(200_000))[4]
    assert flags & 0x20


def test_lz4_with_the_header_checksum_of_magic_0_is_read() -> None:
    frame = bytes(compress(Codec.LZ4, sample(100)))
    legacy = compression.with_legacy_lz4_checksum(frame)
    assert bytes(legacy) != frame
    assert bytes(decompress(Codec.LZ4, legacy, BOUND)) == sample(100)


def test_lz4_header_with_a_content_size_has_its_checksum_corrected_too() -> None:
    plain = bytes(compress(Codec.LZ4, sample(100)))
    header = bytes([*plain[:4], plain[4] | 0x08, plain[5]]) + (100).to_bytes(8, "little")
    sized = header + bytes([compression._header_checksum(header[4:])]) + plain[7:]
    assert bytes(decompress(Codec.LZ4, sized, BOUND)) == sample(100)
    legacy = compression.with_legacy_lz4_checksum(sized)
    assert legacy != sized
    assert bytes(decompress(Codec.LZ4, legacy, BOUND)) == sample(100)


def test_lz4_with_any_other_header_checksum_is_corrupt() -> None:
    frame = bytearray(compress(Codec.LZ4, sample(100)))
    accepted = {frame[6], compression.with_legacy_lz4_checksum(frame)[6]}
    for checksum in set(range(256)) - accepted:
        frame[6] = checksum
        with pytest.raises(CorruptBatchError):
            decompress(Codec.LZ4, frame, BOUND)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0x02CC5D05),
        (b"a", 0x550D7456),
        (b"abc", 0x32D153FF),
    ],
)
def test_xxh32_has_its_published_values(data: bytes, expected: int) -> None:
    assert compression._short_xxh32(data) == expected


@pytest.mark.parametrize("codec", COMPRESSED)
def test_limit_is_allowed_and_one_byte_more_is_not(codec: Codec) -> None:
    packed = compress(codec, b"x" * 1_000_000)
    assert len(decompress(codec, packed, 1_000_000)) == 1_000_000
    with pytest.raises(DecompressedTooLargeError, match="limit of 999999 bytes"):
        decompress(codec, packed, 999_999)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_garbage_is_corrupt(codec: Codec) -> None:
    for data in (b"", b"\x01", b"garbage", b"\xff" * 100, sample(1000)):
        with pytest.raises(CorruptBatchError):
            decompress(codec, data, BOUND)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_data_cut_short_is_corrupt(codec: Codec) -> None:
    packed = bytes(compress(codec, sample(2000)))
    for end in range(0, len(packed), 7):
        if codec == Codec.SNAPPY and end == 16:
            continue  # a xerial header alone is an empty stream
        with pytest.raises(CorruptBatchError):
            decompress(codec, packed[:end], BOUND)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_flipped_bytes_give_an_error_or_limited_data(codec: Codec) -> None:
    seeded = random.Random(codec)
    packed = bytes(compress(codec, sample(3000)))
    for _ in range(1500):
        mutated = bytearray(packed)
        for _ in range(seeded.randint(1, 4)):
            mutated[seeded.randrange(len(mutated))] = seeded.randrange(256)
        try:
            assert len(decompress(codec, mutated, 50_000)) <= 50_000
        except CorruptBatchError:
            continue


def test_impossible_snappy_size_is_refused_before_allocation() -> None:
    claims_4_gib = b"\xff\xff\xff\xff\x0f" + b"\x00"
    with pytest.raises(CorruptBatchError, match="can't hold the 4294967295 bytes"):
        decompress(Codec.SNAPPY, claims_4_gib, 1 << 40)


@pytest.mark.parametrize("codec", [5, 6, 7, -1])
def test_unknown_codec_is_refused(codec: int) -> None:
    with pytest.raises(UnsupportedCodecError, match=f"codec is {codec}"):
        decompress(codec, b"x", 10)
    with pytest.raises(UnsupportedCodecError, match=f"codec is {codec}"):
        compress(codec, b"x")


def test_levels_are_those_of_kafka() -> None:
    data = sample(50_000)
    for codec, (lowest, highest) in compression.LEVELS.items():
        for level in (max(lowest, -5), highest if codec != Codec.ZSTD else 12):
            assert bytes(decompress(codec, compress(codec, data, level), BOUND)) == data
        with pytest.raises(ConfigError, match=f"compression level is {highest + 1}"):
            compress(codec, data, highest + 1)
    with pytest.raises(ConfigError, match="snappy has no levels"):
        compress(Codec.SNAPPY, data, 3)


def test_uncompressed_data_has_the_limit_too() -> None:
    with pytest.raises(DecompressedTooLargeError, match="limit of 3 bytes"):
        decompress(Codec.NONE, b"four", 3)


def bomb(codec: Codec, decompressed: int) -> bytes:
    """Return data that decompresses to `decompressed` zeros."""
    if codec == Codec.GZIP:
        return gzip.compress(bytes(1 << 20), 9) * (decompressed >> 20)
    if codec == Codec.SNAPPY:
        block = bytes(cramjam.snappy.compress_raw(bytes(1 << 20)))
        return compression.XERIAL_HEADER + (len(block).to_bytes(4, "big") + block) * (decompressed >> 20)
    return bytes(compress(codec, bytes(decompressed)))


DECOMPRESS_AND_REPORT_PEAK = """
    import resource, sys
    from stratalog.errors import DecompressedTooLargeError
    from stratalog.records.compression import decompress
    codec = int(sys.argv[1])
    data = sys.stdin.buffer.read()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        decompress(codec, data, 16 << 20)
    except DecompressedTooLargeError as error:
        assert "limit of 16777216 bytes" in str(error)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def dense_zstd_bomb(decompressed: int) -> bytes:
    """Return the densest possible frame: a window of 128 MiB, and blocks that repeat one byte 2^17 times."""
    repeat = (1 << 17 << 3 | 1 << 1).to_bytes(3, "little") + b"\x00"
    return b"\x28\xb5\x2f\xfd" + b"\x00\x88" + repeat * (decompressed >> 17)


BOMBS = [(codec, bomb) for codec in COMPRESSED] + [(Codec.ZSTD, lambda _, decompressed: dense_zstd_bomb(decompressed))]


@pytest.mark.parametrize(("codec", "make"), BOMBS)
def test_bomb_costs_no_more_memory_than_the_limit(codec: Codec, make: Callable[[Codec, int], bytes]) -> None:
    packed = make(codec, 512 << 20)
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(DECOMPRESS_AND_REPORT_PEAK), str(int(codec))],
        input=packed,
        capture_output=True,
        check=True,
    )
    peak_kib = int(result.stdout)
    assert peak_kib < 40 * 1024, f"{codec.name} took {peak_kib} KiB under a limit of 16 MiB"


# Piece by piece


def in_pieces(codec: Codec, data: bytes, max_size: int = BOUND) -> bytes:
    return b"".join(bytes(piece) for piece in decompress_in_pieces(codec, data, max_size))


@pytest.mark.parametrize("codec", COMPRESSED)
def test_pieces_equal_the_decompressed_data(codec: Codec) -> None:
    data = sample(3_000_000)
    packed = bytes(compress(codec, data))
    assert in_pieces(codec, packed) == data
    assert in_pieces(codec, packed, len(data)) == data
    with pytest.raises(DecompressedTooLargeError, match="limit of 2999999 bytes"):
        in_pieces(codec, packed, len(data) - 1)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_consecutive_frames_are_all_decompressed_in_pieces(codec: Codec) -> None:
    assert in_pieces(codec, bytes(compress(codec, b"one")) + bytes(compress(codec, b"two"))) == b"onetwo"


@pytest.mark.parametrize("codec", COMPRESSED)
def test_garbage_and_cut_data_are_corrupt_in_pieces(codec: Codec) -> None:
    packed = bytes(compress(codec, sample(100_000)))
    for data in (b"garbage", b"\xff" * 100, packed[: len(packed) // 2], packed[:-1]):
        with pytest.raises(CorruptBatchError):
            in_pieces(codec, data)


def test_zlib_format_is_not_gzip_in_pieces() -> None:
    member = gzip.compress(b"records")
    for data in (zlib.compress(b"more"), member + zlib.compress(b"more"), member + b"\0\0", member + b"x"):
        with pytest.raises(CorruptBatchError):
            decompress(Codec.GZIP, data, BOUND)
        with pytest.raises(CorruptBatchError):
            in_pieces(Codec.GZIP, data)


def test_old_lz4_checksum_is_accepted_in_pieces() -> None:
    frame = compression.with_legacy_lz4_checksum(compress(Codec.LZ4, b"records"))
    assert in_pieces(Codec.LZ4, bytes(frame)) == b"records"


# Work and memory proportional to the input


class CountingDecompressor:
    """zlib's decompressor, which also counts the bytes that it copies: all input that it does not use."""

    copied = 0

    def __init__(self, wbits: int) -> None:
        self._decompressor = REAL_DECOMPRESSOR(wbits=wbits)

    def decompress(self, data: bytes, max_length: int) -> bytes:
        piece = self._decompressor.decompress(data, max_length)
        CountingDecompressor.copied += len(self._decompressor.unused_data) + len(self._decompressor.unconsumed_tail)
        return piece

    def __getattr__(self, name: str) -> object:
        return getattr(self._decompressor, name)


REAL_DECOMPRESSOR = zlib.decompressobj


def test_thousands_of_empty_gzip_members_are_not_copied_quadratically(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zlib, "decompressobj", CountingDecompressor)
    copied = []
    for members in (2000, 8000):
        CountingDecompressor.copied = 0
        assert in_pieces(Codec.GZIP, gzip.compress(b"records") + gzip.compress(b"") * members) == b"records"
        copied.append(CountingDecompressor.copied)
    assert copied[1] < 5 * copied[0], "it grows faster than what was sent"
    assert copied[1] < 30 * len(gzip.compress(b"") * 8000)


@given(st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 1500), st.integers(0, 9)), min_size=1, max_size=8))
def test_gzip_members_of_any_size_are_read_across_slices(members: list[tuple[int, int, int]]) -> None:
    contents = [sample(size) * repeat for size, repeat, _ in members]
    packed = b"".join(gzip.compress(data, level) for data, (_, _, level) in zip(contents, members, strict=True))
    assert in_pieces(Codec.GZIP, packed, 1 << 30) == b"".join(contents)
    for cut in (packed[:-1], packed + b"\x1f", packed + b"\0"):
        with pytest.raises(CorruptBatchError):
            in_pieces(Codec.GZIP, cut, 1 << 30)


def test_tiny_snappy_blocks_need_no_extra_memory() -> None:
    packed = compression.XERIAL_HEADER + b"\0\0\0\1\0" * 20_000
    tracemalloc.start()
    try:
        assert not decompress(Codec.SNAPPY, packed, BOUND)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < len(packed)


# Abandoning


@pytest.mark.parametrize("codec", COMPRESSED)
def test_abandoned_compression_stops(codec: Codec) -> None:
    packed = bytes(compress(codec, sample(3_000_000)))

    def in_a_context_of_its_own() -> None:
        compression.abandon_when(lambda: True)
        for work in (compress, decompress, lambda *of: list(decompress_in_pieces(*of))):
            with pytest.raises(AbandonedError):
                work(codec, packed, *(() if work is compress else (BOUND,)))

    copy_context().run(in_a_context_of_its_own)
    assert in_pieces(codec, packed) == sample(3_000_000)


def test_abandoned_decompression_stops_between_empty_gzip_members() -> None:
    """Empty members yield no piece, so the iterator doesn't return between them."""
    looks = 0

    def is_abandoned() -> bool:
        nonlocal looks
        looks += 1
        return looks > 100

    def in_a_context_of_its_own() -> None:
        compression.abandon_when(is_abandoned)
        with pytest.raises(AbandonedError):
            in_pieces(Codec.GZIP, gzip.compress(b"") * 5000)

    copy_context().run(in_a_context_of_its_own)
    assert looks == 101

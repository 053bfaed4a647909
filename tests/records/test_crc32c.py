"""Our checksum equals that of the crc32c package for all sizes, alignments and start values."""

from __future__ import annotations

import random

import crc32c as package
import pytest

from stratalog.records._crc32c import crc32c

DATA = random.Random(7).randbytes(300_000)
STEP = 4 * 32 + 3 * 48  # the step of the fast implementation; errors are likely around its multiples


def test_known_value_of_the_standard() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"") == 0


@pytest.mark.parametrize("alignment", [0, 1, 7, 8, 13, 31])
def test_equals_the_package_at_every_size_near_a_boundary(alignment: int) -> None:
    sizes = {*range(70), *(STEP * steps + extra for steps in (7, 8, 9, 64, 500) for extra in range(-9, 10))}
    for size in sizes:
        data = DATA[alignment : alignment + size]
        assert crc32c(data) == package.crc32c(data), size


def test_equals_the_package_for_random_sizes_and_starts() -> None:
    rng = random.Random(11)
    for _ in range(300):
        start, size, crc = rng.randrange(1000), rng.randrange(len(DATA) - 1000), rng.getrandbits(32)
        data = memoryview(DATA)[start : start + size]
        assert crc32c(data, crc) == package.crc32c(data, crc)


def test_checksum_of_pieces_equals_that_of_the_whole() -> None:
    crc = 0
    for start in range(0, len(DATA), 7_777):
        crc = crc32c(DATA[start : start + 7_777], crc)
    assert crc == crc32c(DATA)


def test_flipped_bit_changes_the_checksum_at_any_position() -> None:
    rng = random.Random(13)
    data = bytearray(DATA[:65_536])
    whole = crc32c(data)
    for _ in range(500):
        position, bit = rng.randrange(len(data)), 1 << rng.randrange(8)
        data[position] ^= bit
        assert crc32c(data) != whole, (position, bit)
        data[position] ^= bit

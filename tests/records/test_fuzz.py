"""Seeded mutations of valid bytes, with unchecked checksums, give our errors or records and never a crash. The two
readers (objects and columns) agree.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from stratalog.errors import StratalogError
from stratalog.records import format
from stratalog.records._records import Record, decode_records
from stratalog.records.arrow import to_arrow
from stratalog.records.batch import batches
from stratalog.records.builder import build_batch, build_control_batch
from stratalog.records.format import Codec, ControlType
from stratalog.records.legacy import build_message_set, up_convert
from stratalog.records.reader import read_control, read_records
from stratalog.records.validation import check_contents, parse_for_append
from tests.records.strategies import numbered

ROUNDS = 1500
BOUND = 1 << 20

PLAIN = [Record(offset=r.offset, timestamp=r.timestamp, key=r.key, value=r.value) for r in numbered(12, 5)]
SEEDS: dict[str, bytes] = {
    **{f"magic-2-{codec.name}": bytes(build_batch(numbered(12), codec=codec)) for codec in Codec},
    **{
        f"magic-{magic}-{codec.name}": bytes(build_message_set(PLAIN, magic=magic, codec=codec))
        for magic in (0, 1)
        for codec in (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)
    },
    "control": bytes(build_control_batch(ControlType.COMMIT, 1, 2, 3, 4)),
    "two-batches": bytes(build_batch(numbered(3)) + build_batch(numbered(3, 3), base_offset=3)),
}
INTERESTING = [0x00, 0x01, 0x7F, 0x80, 0xFE, 0xFF]


def mutated(data: bytes, seeded: random.Random) -> bytearray:
    """Return the data with one to four changes: a byte, a run, a cut, a repeated piece. Half of the time, the length
    fields at the start stay unchanged."""
    result = bytearray(data)
    first = seeded.choice([0, format.MAGIC_POSITION + 1])
    for _ in range(seeded.randint(1, 4)):
        if len(result) <= first + 1:
            break
        at = seeded.randrange(first, len(result))
        kind = seeded.randrange(10)
        if kind < 5:
            result[at] = seeded.randrange(256)
        elif kind < 8:
            result[at] = seeded.choice(INTERESTING)
        elif kind == 8:
            del result[at : at + seeded.randint(1, 8)]
        else:
            result[at:at] = result[at : at + seeded.randint(1, 8)]
    return result


def outcome(read: Callable[[], Any]) -> Any:
    """Return the result of a reader, or None for one of our errors. Any other error fails the test."""
    try:
        return read()
    except StratalogError:
        return None


@pytest.mark.parametrize("name", SEEDS)
def test_mutated_bytes_give_records_or_our_errors_in_both_readers(name: str) -> None:
    seeded = random.Random(name)
    readable = 0
    for _ in range(ROUNDS):
        data = mutated(SEEDS[name], seeded)
        options: dict[str, Any] = {"check_crc": False, "include_control": True, "max_decompressed": BOUND}
        objects = outcome(lambda: read_records(data, **options))  # noqa: B023
        columns = outcome(lambda: to_arrow(data, **options))  # noqa: B023
        assert (objects is None) == (columns is None), bytes(data).hex()
        if objects is not None:
            readable += 1
            columns.validate(full=True)
            assert columns.column("offset").to_pylist() == [r.offset for r in objects]
            assert columns.column("value").to_pylist() == [r.value for r in objects]
    assert 0 < readable < ROUNDS


@pytest.mark.parametrize("name", SEEDS)
def test_mutated_bytes_never_pass_or_crash_the_checks(name: str) -> None:
    seeded = random.Random(name + "-checked")
    for _ in range(ROUNDS // 3):
        data = mutated(SEEDS[name], seeded)
        outcome(lambda: up_convert(data, check_crc=False, max_decompressed=BOUND))  # noqa: B023
        outcome(lambda: [read_control(batch) for batch in batches(data)])  # noqa: B023
        headers = outcome(lambda: parse_for_append(data, 1 << 20))  # noqa: B023
        if headers is not None:
            outcome(lambda: check_contents(data, headers, BOUND))  # noqa: B023
        decoded = outcome(lambda: read_records(data, max_decompressed=BOUND))  # noqa: B023
        if decoded is not None and name.startswith("magic-2"):
            original = read_records(SEEDS[name])
            assert decoded == [] or [r.value for r in decoded] == [r.value for r in original]


def test_random_bytes_as_records_give_records_or_our_errors() -> None:
    seeded = random.Random(11)
    for _ in range(20_000):
        data = bytes(seeded.choices([0, 0, 0, 1, 2, 4, 12, 14, 16, 0x80, 0xFF], k=seeded.randint(0, 40)))
        count = seeded.randint(-1, 5)
        decoded = outcome(lambda: decode_records(data, count, 0, 0, 0, -1))  # noqa: B023
        assert decoded is None or len(decoded) == count

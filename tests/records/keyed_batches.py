"""Batches for the kernels of compaction, with few keys, many gaps and more records than the kernels read ahead."""

from __future__ import annotations

import random

from hypothesis import strategies as st

from stratalog.records import format
from stratalog.records._compaction import Kept, filter_batch
from stratalog.records._framing import BatchHeader, parse_header
from stratalog.records._key_map import KeyMap
from stratalog.records._records import Record, decode_records
from stratalog.records.builder import build_batch

SEED = bytes(range(16))
HEADER = format.HEADER_SIZE
KEYS = [None, b"", b"a", b"b", b"c", b"k" * 40]


@st.composite
def keyed_batches(draw: st.DrawFn, most: int = 6) -> list[list[Record]]:
    """Batches with gaps between and inside them, as compaction leaves them."""
    rng = random.Random(draw(st.integers(0, 2**32)))  # a draw for each field would be slow
    offset, batches = rng.choice([0, 5, 2**40]), []
    for _ in range(draw(st.integers(1, most))):
        records = []
        for _ in range(draw(st.sampled_from([1, 2, 7, 40]))):  # sometimes more than the kernel reads ahead
            records.append(
                Record(
                    offset=offset,
                    timestamp=rng.choice([-1, 0, 2**40, rng.randrange(2**41)]),
                    key=rng.choice(KEYS),
                    value=rng.choice([None, b"", rng.randbytes(rng.randrange(12))]),
                    headers=[("name", None), ("", b"value")] if rng.random() < 0.2 else (),
                )
            )
            offset += rng.choice([1, 1, 1, 2, 300])
        batches.append(records)
    return batches


def record(offset: int, timestamp: int = 0, key: bytes = b"k", value: bytes | None = b"v") -> Record:
    return Record(offset=offset, timestamp=timestamp, key=key, value=value)


def encode(records: list[Record]) -> tuple[bytearray, BatchHeader]:
    base = records[0].offset
    batch = build_batch(records, base_offset=base, offset_deltas=[record.offset - base for record in records])
    header = parse_header(batch)
    assert header is not None
    return batch, header


def add(keys: KeyMap, records: list[Record], from_offset: int = 0) -> bool:
    batch, header = encode(records)
    return keys.add(batch, header, from_offset, HEADER, len(batch))


def decoded(payload: bytes | bytearray | memoryview, header: BatchHeader, count: int) -> list[Record]:
    return decode_records(
        payload, count, header.base_offset, header.base_timestamp, header.timestamp_type, header.max_timestamp
    )


def kept_of(records: list[Record], keys: KeyMap, drop_tombstones: bool) -> tuple[list[Record], Kept]:
    batch, header = encode(records)
    kept = filter_batch(batch, header, keys, drop_tombstones, HEADER, len(batch))
    if kept.payload is None:
        return records, kept
    return decoded(memoryview(kept.payload)[HEADER:], header, kept.count), kept

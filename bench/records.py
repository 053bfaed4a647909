"""Measure how fast records become objects, columns and batches on one core: records per second, and CPU seconds.

Records have 8-byte keys and 100-byte values. They are not compressed, and checksums are written and verified. Each rate
is that of one call over `records` records, in batches of at most 1 MiB. `python -m bench.records` prints the median of
five.

Fresh memory is slow on many machines, because each page is a fault. So the columns are measured twice: with a whole
table per call, and with one batch per call, for which the allocator reuses memory.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from stratalog.records import BatchBuilder, Record, build_batch, read_records
from stratalog.records.arrow import from_arrow, to_arrow

RECORDS = 500_000
ONE_BATCH = 8_000
BATCH_BYTES = 1024 * 1024
RUNS = 5


@dataclass(frozen=True)
class Rate:
    """The result of one measurement."""

    records_per_second: float
    cpu_seconds: float


def sample_table(records: int = RECORDS) -> pa.Table:
    return pa.table(
        {
            "key": pa.array([b"%08d" % i for i in range(records)], pa.binary()),
            "value": pa.array([b"%0100d" % i for i in range(records)], pa.binary()),
            "timestamp": pa.array(range(1_600_000_000_000, 1_600_000_000_000 + records), pa.int64()),
        }
    )


def sample_buffer(records: int = RECORDS) -> bytes:
    return b"".join(from_arrow(sample_table(records), max_batch_bytes=BATCH_BYTES))


def decode_objects(records: int = RECORDS) -> Rate:
    """Convert batches to Record objects."""
    buffer = sample_buffer(records)
    return _measure(lambda: read_records(buffer), records)


def encode_objects(records: int = ONE_BATCH) -> Rate:
    """Convert Record objects to a batch."""
    objects: list[Record] = read_records(sample_buffer(records))
    return _measure(lambda: build_batch(objects), records)


def append_to_builder(records: int = ONE_BATCH) -> Rate:
    """Call BatchBuilder.append for each record, then build."""
    objects: list[Record] = read_records(sample_buffer(records))

    def build() -> bytearray:
        builder = BatchBuilder()
        for record in objects:
            builder.append(record.value, record.key, (), record.timestamp)
        return builder.build()

    return _measure(build, records)


def decode_columns(records: int = RECORDS) -> Rate:
    """Convert batches to one Arrow RecordBatch with all columns."""
    buffer = sample_buffer(records)
    return _measure(lambda: to_arrow(buffer), records)


def encode_columns(records: int = RECORDS) -> Rate:
    """Convert an Arrow table to batches."""
    table = sample_table(records)
    return _measure(lambda: from_arrow(table, max_batch_bytes=BATCH_BYTES), records)


def _measure(work: Callable[[], object], records: int) -> Rate:
    """Run once to warm up, then for a tenth of a second, dropping each result before the next run."""
    work()
    repeat = max(1, 250_000 // records)
    cpu = time.process_time()
    wall = time.perf_counter()
    for _ in range(repeat):
        work()
    wall = time.perf_counter() - wall
    cpu = time.process_time() - cpu
    return Rate(records * repeat / wall, cpu / repeat)


MEASUREMENTS: list[tuple[str, Callable[[int], Rate], int, float | None]] = [
    ("batches -> objects", decode_objects, RECORDS, 2e6),
    ("batches -> objects, one batch", decode_objects, ONE_BATCH, 2e6),
    ("objects -> batch", encode_objects, ONE_BATCH, None),
    ("BatchBuilder.append, each", append_to_builder, ONE_BATCH, None),
    ("batches -> columns", decode_columns, RECORDS, 10e6),
    ("batches -> columns, one batch", decode_columns, ONE_BATCH, 10e6),
    ("columns -> batches", encode_columns, RECORDS, 8e6),
    ("columns -> batches, one batch", encode_columns, ONE_BATCH, 8e6),
]


def main() -> None:
    table = Table(title="records, one core")
    for column in ("what", "million records/s", "CPU ns per record", "of target"):
        table.add_column(column, no_wrap=True)
    for name, measurement, records, target in MEASUREMENTS:
        rates = [measurement(records) for _ in range(RUNS)]
        speed = statistics.median(rate.records_per_second for rate in rates)
        cpu = statistics.median(rate.cpu_seconds for rate in rates)
        ratio = "" if target is None else f"{speed / target:.1f} x"
        table.add_row(name, f"{speed / 1e6:.1f}", f"{cpu / records * 1e9:.0f}", ratio)
    Console().print(table)


if __name__ == "__main__":
    main()

"""Converts Arrow batches and records to rows, so that tests can compare them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from stratalog.records._records import Record
from stratalog.spark.predicate import Predicate
from stratalog.spark.schema import ALL_COLUMNS

Row = dict[str, Any]


def rows_in(batch: pa.RecordBatch) -> list[Row]:
    """Validate a batch with Arrow, and return its rows. Timestamps are microseconds."""
    batch.validate(full=True)
    assert batch.num_rows > 0
    columns = {name: batch.column(name) for name in batch.schema.names}
    if "timestamp" in columns:
        columns["timestamp"] = columns["timestamp"].cast(pa.int64())
    return pa.table(columns).to_pylist()  # type: ignore[no-any-return]


def row_of(record: Record, columns: tuple[str, ...] = ALL_COLUMNS, *, topic: str = "orders", partition: int = 3) -> Row:
    row = {
        "key": record.key,
        "value": record.value,
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp * 1000,
        "timestampType": record.timestamp_type,
        "headers": [{"key": key, "value": value} for key, value in record.headers] or None,
    }
    return {name: row[name] for name in columns}


def matches(predicate: Predicate, record: Record) -> bool:
    return (
        predicate.from_offset <= record.offset < predicate.until_offset
        and predicate.from_timestamp <= record.timestamp < predicate.until_timestamp
        and (predicate.keys is None or record.key in predicate.keys)
    )

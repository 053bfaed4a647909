"""The records of the demo: orders of customers, one a millisecond, made as Arrow columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

VALUE_SIZE = 100
CUSTOMERS = 10_007
FIRST_TIMESTAMP = 1_767_225_600_000  # 2026-01-01T00:00:00Z
CHUNK_ROWS = 50_000


def tables(records: int) -> Iterator[Any]:
    """pyarrow Tables with key, value and timestamp; values have VALUE_SIZE bytes."""
    for start in range(0, records, CHUNK_ROWS):
        yield _table(start, min(start + CHUNK_ROWS, records))


def _table(start: int, end: int) -> Any:
    numbers = pa.array(range(start, end), pa.int64())
    order = pc.utf8_lpad(pc.cast(numbers, pa.string()), 12, "0")
    customer = pc.cast(pc.subtract(numbers, pc.multiply(pc.divide(numbers, CUSTOMERS), CUSTOMERS)), pa.string())
    text = pc.binary_join_element_wise('{"order": "', order, '", "customer": "', customer, '", "note": "tea', "")
    return pa.table(
        {
            "key": pc.binary_join_element_wise("customer-", customer, ""),
            "value": pc.binary_join_element_wise(pc.utf8_rpad(text, VALUE_SIZE - 2, "."), '"}', ""),
            "timestamp": pc.add(numbers, FIRST_TIMESTAMP),
        }
    )

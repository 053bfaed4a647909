"""A range of a partition over the wire, from any Kafka-compatible broker, as Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from stratalog.spark.scan_request import OffsetRange, ScanRequest


def scan(range: OffsetRange, request: ScanRequest) -> Iterator[pa.RecordBatch]:
    raise NotImplementedError

"""A range of a partition straight off its files: mapped, decoded slice by slice, beside a live broker.

`scan(range, request)` has the signature of wire_scan.scan, and gives the same rows. It never reads past range.end,
which the plan took from the broker: the high watermark or the last stable offset.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from stratalog.spark.scan_request import OffsetRange, ScanRequest


def scan(range: OffsetRange, request: ScanRequest) -> Iterator[pa.RecordBatch]:
    """Raises FilesUnavailableError before the first row where the files can't be used: the caller may take the wire."""
    raise NotImplementedError

"""The bytes of a record batch: reading, building, checking, compressing and converting them. No I/O, threads or clock.

Start with `read_records(buffer)` and `build_batch(records)`. `to_arrow` and `from_arrow` work with columns instead of
objects. pyarrow is imported at the first use of one of the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stratalog.records._framing import BatchHeader
from stratalog.records._records import Record
from stratalog.records.batch import DEFAULT_MAX_DECOMPRESSED, Batch, batches
from stratalog.records.builder import BatchBuilder, build_batch, build_control_batch
from stratalog.records.format import Codec, ControlType, TimestampType
from stratalog.records.legacy import build_message_set, up_convert
from stratalog.records.reader import iter_records, read_control, read_records, records_of

if TYPE_CHECKING:
    from stratalog.records.arrow import from_arrow, to_arrow

__all__ = [
    "DEFAULT_MAX_DECOMPRESSED",
    "Batch",
    "BatchBuilder",
    "BatchHeader",
    "Codec",
    "ControlType",
    "Record",
    "TimestampType",
    "batches",
    "build_batch",
    "build_control_batch",
    "build_message_set",
    "from_arrow",
    "iter_records",
    "read_control",
    "read_records",
    "records_of",
    "to_arrow",
    "up_convert",
]


def __getattr__(name: str) -> Any:
    if name not in ("from_arrow", "to_arrow"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from stratalog.records import arrow

    return getattr(arrow, name)

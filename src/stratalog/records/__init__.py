"""The bytes of a record batch: read, built, checked, compressed, converted. No I/O, no threads, no clock.

Start with `read_records(buffer)` and `build_batch(records)`. For columns instead of objects there are
`to_arrow` and `from_arrow`; pyarrow is imported when one of them is first asked for, not before.
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

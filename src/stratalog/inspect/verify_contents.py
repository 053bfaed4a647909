"""The records inside a batch: decompressed, walked one by one, and held against what the header says of them."""

from __future__ import annotations

from typing import NamedTuple

from stratalog.errors import CorruptBatchError, InvalidRecordError
from stratalog.inspect.batch_walk import LARGEST_DECOMPRESSED, BatchOnDisk
from stratalog.records import format
from stratalog.records._records import Record
from stratalog.records.validation import check_records


class Contents(NamedTuple):
    """`max_timestamp` is the records' own; None where there is nothing to compare it with."""

    first_offset: int
    records: int
    max_timestamp: int | None


def check_contents(found: BatchOnDisk) -> Contents:
    """Raises StratalogError where the records are not what the header says."""
    header = found.header
    if header.magic == format.CURRENT_MAGIC and header.record_count == header.last_offset_delta + 1:
        try:
            largest, _ = check_records(found.batch.payload(LARGEST_DECOMPRESSED), header)
        except InvalidRecordError:
            pass  # a record may be missing in the middle and another count: the slow way tells
        else:
            return Contents(header.base_offset, header.record_count, _comparable(found, largest))
    return _check_each(found, found.records())


def _check_each(found: BatchOnDisk, records: list[Record]) -> Contents:
    """A batch with gaps, as compaction leaves it, or a legacy message."""
    header = found.header
    is_current = header.magic == format.CURRENT_MAGIC
    previous = header.base_offset - 1 if is_current else -1
    for record in records:
        if not previous < record.offset <= header.last_offset:
            raise CorruptBatchError(
                f"a record has offset {record.offset} behind {previous}, the batch ends at {header.last_offset}"
            )
        previous = record.offset
    if not records:
        return Contents(header.base_offset, 0, None)
    first = header.base_offset if is_current else records[0].offset
    return Contents(first, len(records), _comparable(found, max(record.timestamp for record in records)))


def _comparable(found: BatchOnDisk, largest: int) -> int | None:
    is_own = found.header.timestamp_type == format.TimestampType.CREATE_TIME
    return largest if is_own and found.header.record_count > 0 else None

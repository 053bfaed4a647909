"""Verification of the records inside a batch: they are decompressed and compared with the header one by one."""

from __future__ import annotations

from typing import NamedTuple

from stratalog.errors import CorruptBatchError, InvalidRecordError
from stratalog.inspect.batch_walk import LARGEST_DECOMPRESSED, BatchOnDisk
from stratalog.records import format
from stratalog.records._records import Record
from stratalog.records.validation import check_records


class Contents(NamedTuple):
    """The result for a batch. `max_timestamp` is the records' maximum, or None if the header need not have it."""

    first_offset: int
    records: int
    max_timestamp: int | None


def check_contents(batch: BatchOnDisk) -> Contents:
    """Check the records of a batch. Raises StratalogError if they don't match the header."""
    header = batch.header
    if header.magic == format.CURRENT_MAGIC and header.record_count == header.last_offset_delta + 1:
        try:
            largest, _ = check_records(batch.batch.payload(LARGEST_DECOMPRESSED), header)
        except InvalidRecordError:
            pass  # the slow check tells gaps inside the batch from damage
        else:
            return Contents(header.base_offset, header.record_count, _comparable(batch, largest))
    return _check_each(batch, batch.records())


def _check_each(batch: BatchOnDisk, records: list[Record]) -> Contents:
    """Check each record of a batch with gaps, as compaction leaves it, or of a legacy message."""
    header = batch.header
    is_current = header.magic == format.CURRENT_MAGIC
    previous = header.base_offset - 1 if is_current else -1
    for record in records:
        if not previous < record.offset <= header.last_offset:
            raise CorruptBatchError(
                f"a record has offset {record.offset} after {previous}, but the batch ends at {header.last_offset}"
            )
        previous = record.offset
    if not records:
        return Contents(header.base_offset, 0, None)
    first = header.base_offset if is_current else records[0].offset
    return Contents(first, len(records), _comparable(batch, max(record.timestamp for record in records)))


def _comparable(batch: BatchOnDisk, largest: int) -> int | None:
    is_own = batch.header.timestamp_type == format.TimestampType.CREATE_TIME
    return largest if is_own and batch.header.record_count > 0 else None

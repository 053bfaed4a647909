"""Splits a batch that is too large for its broker into parts of about half its size, as the Java client does.

The parts keep the sequence numbers, the creation time and the order of the original batch, so that nothing else changes
for the broker and for threads that wait for a record.
"""

from __future__ import annotations

from stratalog.client._batch import Batch
from stratalog.records.format import HEADER_SIZE
from stratalog.records.reader import read_records

_SEQUENCES = 2**31


def split_batch(whole: Batch) -> list[Batch]:
    """Split a sealed batch. Each part has at least one record."""
    records = read_records(whole.data, check_crc=False)
    sizes = [
        len(record.value or b"") + len(record.key or b"") + _header_bytes(record.headers) + 16 for record in records
    ]
    half = max(sum(sizes) // 2, 1)
    parts: list[Batch] = []
    part: Batch | None = None
    filled = 0
    for index, (record, size) in enumerate(zip(records, sizes, strict=True)):
        if part is None or filled + size > half:
            part = Batch(
                whole.queue, whole.number, HEADER_SIZE + min(half, size * 2), whole.start + index, whole.created
            )
            part.attempts = whole.attempts
            if whole.base_sequence >= 0:
                sequence = (whole.base_sequence + index) % _SEQUENCES
                part.number_records(whole.producer_id, whole.producer_epoch, sequence)
            parts.append(part)
            filled = 0
        part.add(record.value, record.key, record.headers, record.timestamp)
        filled += size
    return parts


def _header_bytes(headers: tuple[tuple[str, bytes | None], ...]) -> int:
    return sum(len(key) + len(value or b"") + 4 for key, value in headers)

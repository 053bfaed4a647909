"""Batches with another codec: the records section is decompressed and compressed again as one block, not by the record.

What a batch says of itself stays: timestamps, offset deltas, producer id, epoch and sequence, the transactional bit.
The codec, the length and the checksum are new.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.errors import MessageTooLargeError
from stratalog.records import compression, format
from stratalog.records._framing import BatchHeader, parse_headers
from stratalog.records.batch import Batch
from stratalog.records.builder import seal_batch

if TYPE_CHECKING:
    from typing_extensions import Buffer


def recompress(
    data: Buffer,
    headers: list[BatchHeader],
    payloads: list[Buffer],
    codec: int,
    level: int | None,
    max_batch_bytes: int,
) -> tuple[bytearray, list[BatchHeader]]:
    """The batches of `data`, all with `codec`, and their headers. `payloads` are their decompressed records, as
    validation.check_contents gives them. A batch that has the codec already is taken as it is."""
    result = bytearray()
    for header, payload in zip(headers, payloads, strict=True):
        if header.codec == codec:
            result += Batch(data, header).data
            continue
        packed = compression.compress(codec, payload, level)
        size = format.HEADER_SIZE + packed.nbytes
        if size > max_batch_bytes:  # before it is copied: it may be hundreds of megabytes
            raise MessageTooLargeError(
                f"batch has {size} bytes when re-compressed as compression.type says ({header.size} as sent), "
                f"max.message.bytes is {max_batch_bytes}"
            )
        result += _sealed(header, packed, codec)
    fresh, _, _ = parse_headers(result)
    return result, fresh


def _sealed(header: BatchHeader, packed: memoryview, codec: int) -> bytearray:
    batch = bytearray(format.HEADER_SIZE)
    batch += packed
    return seal_batch(
        batch,
        True,
        base_offset=header.base_offset,
        record_count=header.record_count,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=header.base_timestamp,
        max_timestamp=header.max_timestamp,
        attributes=(header.attributes & ~format.CODEC_MASK) | codec,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        leader_epoch=header.leader_epoch,
    )

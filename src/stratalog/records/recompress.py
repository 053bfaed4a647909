"""Compressing batches again with another codec: the records as one block, not one by one.

Timestamps, offset deltas, producer id, producer epoch, base sequence and the transactional bit stay the same. The
codec, the length and the checksum change.
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
    """Return the batches of `data`, all with `codec`, and their headers. `payloads` are the decompressed records, as
    validation.check_contents collects them. A batch that already has the codec is copied unchanged."""
    result = bytearray()
    for header, payload in zip(headers, payloads, strict=True):
        if header.codec == codec:
            result += Batch(data, header).data
            continue
        packed = compression.compress(codec, payload, level)
        size = format.HEADER_SIZE + packed.nbytes
        if size > max_batch_bytes:  # check before copying hundreds of megabytes
            raise MessageTooLargeError(
                f"batch has {size} bytes after compressing it again for compression.type ({header.size} as sent), "
                f"max.message.bytes is {max_batch_bytes}"
            )
        result += _sealed(header, packed, codec)
    new_headers, _, _ = parse_headers(result)
    return result, new_headers


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

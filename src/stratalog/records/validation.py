"""What a batch must satisfy before it may enter a log. Checks bytes; knows nothing of the log they go to.

Kafka's rules for magic 2: known codec, count and last offset delta agree, checksum holds, and each record inside is
framed right, with offset deltas 0, 1, 2, ... A max timestamp that is not the records' maximum is corrected, as
Kafka does: consumers and the time index rely on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.errors import (
    CorruptBatchError,
    InvalidRecordError,
    MessageTooLargeError,
    UnsupportedCodecError,
    UnsupportedMagicError,
)
from stratalog.records import format
from stratalog.records._framing import (
    BatchHeader,
    check_records,
    crc_matches,
    parse_headers,
    set_max_timestamp,
)
from stratalog.records.batch import DEFAULT_MAX_INFLATED, Batch

if TYPE_CHECKING:
    from typing_extensions import Buffer


def check_header(header: BatchHeader) -> None:
    """The rules that the header alone can break."""
    if header.magic != format.CURRENT_MAGIC:
        raise UnsupportedMagicError(
            f"magic is {header.magic}; only magic 2 is written. Older messages: convert with legacy.up_convert first"
        )
    if header.record_count <= 0 or header.record_count != header.last_offset_delta + 1:
        raise InvalidRecordError(
            f"record count is {header.record_count} and last offset delta {header.last_offset_delta}: "
            "the count must be at least 1 and one more than the delta"
        )
    if header.attributes & format.CODEC_MASK > format.Codec.ZSTD:
        raise UnsupportedCodecError(f"codec is {header.codec}; 0 to 4 are known")
    if header.producer_id >= 0 and (header.producer_epoch < 0 or (header.base_sequence < 0 and not header.is_control)):
        raise InvalidRecordError(
            f"producer id is {header.producer_id} with epoch {header.producer_epoch} and base sequence "
            f"{header.base_sequence}: an idempotent batch has neither negative"
        )
    if header.is_transactional and header.producer_id < 0:
        raise InvalidRecordError(f"producer id is {header.producer_id} in a transactional batch")


def parse_for_append(data: Buffer, max_batch_bytes: int) -> list[BatchHeader]:
    """The headers of all batches in `data`, each with its own rules and its checksum checked."""
    headers, end, error = parse_headers(data)
    if error is not None:
        raise error
    total = memoryview(data).nbytes
    if end != total or not headers:
        raise CorruptBatchError(f"{total - end} of {total} bytes are not a whole batch", position=end)
    for header in headers:
        check_header(header)
        if header.size > max_batch_bytes:
            raise MessageTooLargeError(f"batch has {header.size} bytes, max.message.bytes is {max_batch_bytes}")
        if not crc_matches(data, header):
            Batch(data, header).check_crc()
    return headers


def check_contents(data: Buffer, headers: list[BatchHeader], max_inflated: int = DEFAULT_MAX_INFLATED) -> int:
    """What a client's batches must satisfy on top: no control batch, and every record inside sound. Corrects a wrong
    max timestamp. Returns how many records have no key."""
    null_keys = 0
    for header in headers:
        if header.is_control:
            raise InvalidRecordError("the control bit is set; only the broker writes control batches")
        if header.codec == format.Codec.NONE:
            max_timestamp, without = check_records(
                data, header, header.position + format.HEADER_SIZE, header.position + header.size
            )
        else:
            max_timestamp, without = check_records(Batch(data, header).payload(max_inflated), header)
        null_keys += without
        if max_timestamp != header.max_timestamp and header.timestamp_type == format.TimestampType.CREATE_TIME:
            set_max_timestamp(data, header, max_timestamp)
    return null_keys

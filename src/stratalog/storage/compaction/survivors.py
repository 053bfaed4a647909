"""Decides what stays of a batch: all of it, a batch with some of its records, an empty batch, or nothing.

- The last record of each key stays, and so do all records after the offsets that the map of keys covers.
- A tombstone stays until the delete horizon of its batch, which is delete.retention.ms after the first run that read
  it. The horizon is written into the batch instead of its base timestamp (KIP-534).
- The last batch of each live producer stays, without records if necessary: it holds the producer's last sequence.
- Offsets never change. Batches that don't change are copied byte by byte.
- Messages of magic 0 and 1 that lose a record become batches of magic 2. Until then, they have no horizon.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from stratalog.records import format
from stratalog.records._compaction import Kept, copy_plain, filter_batch, rebase_timestamps, reseal
from stratalog.records._framing import BatchHeader, parse_header
from stratalog.records._key_map import KeyMap
from stratalog.records.batch import Batch
from stratalog.records.builder import build_batch, seal_batch
from stratalog.records.reader import records_of
from stratalog.settings import LONG_MAX
from stratalog.storage.compaction.transactions import CleanedTransactions
from stratalog.storage.transaction_index import AbortedTransaction

if TYPE_CHECKING:
    from typing_extensions import Buffer


class LastBatch(NamedTuple):
    """The last batch of a live producer. A marker has no `last_offset`, only the producer epoch."""

    last_offset: int | None
    epoch: int


class Survivors:
    """Decides for each batch of a log. The caller passes the batches in order, to of() or copy_plain()."""

    def __init__(
        self,
        keys: KeyMap,
        transactions: CleanedTransactions,
        live_producers: Mapping[int, LastBatch],
        *,
        now_ms: int,
        delete_retention_ms: int,
    ) -> None:
        self._keys = keys
        self._transactions = transactions
        self._live_producers = live_producers
        self._now_ms = now_ms
        self._horizon = min(now_ms + delete_retention_ms, LONG_MAX)

    def of(self, batch: Batch) -> Buffer | None:
        """Return the bytes of the batch that replaces this batch, or None if it is removed. Return `batch.data` itself
        if nothing changes."""
        header = batch.header
        if header.magic != format.CURRENT_MAGIC:
            return self._of_legacy(batch)
        if header.is_control or header.is_transactional:
            may_go = self._transactions.may_go(batch)
            if header.is_control:
                return self._of_marker(batch, may_go)
            if may_go:
                return self._without_records(batch)
        return self._of_records(batch)

    def copy_plain(
        self, buffer: Buffer, headers: list[BatchHeader], first: int, out: bytearray, kept: list[BatchHeader]
    ) -> tuple[int, bool]:
        """Append what stays of the batches to `out`, and their headers to `kept`, up to the next batch that needs of().
        Return the index of that batch, and whether anything was removed."""
        at, changed = copy_plain(self._keys, buffer, headers, first, self._now_ms, out, kept)
        following = self._keys.skip_dead(headers, at)
        return following, changed or following > at

    def take_kept_aborted(self) -> list[AbortedTransaction]:
        """Return the aborted transactions for the index of the segment that was written since the last call."""
        return self._transactions.take_kept()

    def _of_marker(self, batch: Batch, may_go: bool) -> Buffer | None:
        header = batch.header
        if may_go and (self._is_past_horizon(header) or not header.record_count):
            return self._without_records(batch)
        if may_go and not header.has_delete_horizon:
            return self._with_horizon(batch)
        return batch.data

    def _of_records(self, batch: Batch) -> Buffer | None:
        header = batch.header
        payload, start, end = _payload(batch)
        kept = filter_batch(payload, header, self._keys, self._is_past_horizon(header), start, end)
        if kept.count == 0:
            return self._without_records(batch)
        gets_horizon = kept.tombstones > 0 and not header.has_delete_horizon
        if not kept.removed and not gets_horizon:
            return batch.data
        if kept.payload is not None:
            payload, start, end = kept.payload, format.HEADER_SIZE, len(kept.payload)
        if gets_horizon:
            shift = header.base_timestamp - self._horizon
            records = rebase_timestamps(payload, header, kept.count, shift, start, end)
            return _sealed(header, records, kept, self._horizon, format.DELETE_HORIZON_BIT)
        assert kept.payload is not None
        if header.codec == format.Codec.NONE:
            reseal(kept.payload, batch.buffer, header, kept.count, kept.max_timestamp)
            return kept.payload
        return _sealed(header, kept.payload, kept, header.base_timestamp, 0)

    def _with_horizon(self, batch: Batch) -> Buffer:
        """Return the marker with a delete horizon: no record of its transaction is left, so a run after the horizon
        removes it."""
        header = batch.header
        payload, start, end = _payload(batch)
        shift = header.base_timestamp - self._horizon
        records = rebase_timestamps(payload, header, header.record_count, shift, start, end)
        return seal_batch(
            records,
            record_count=header.record_count,
            base_timestamp=self._horizon,
            max_timestamp=header.max_timestamp,
            attributes=header.attributes | format.DELETE_HORIZON_BIT,
            **_kept_fields(header),
        )

    def _without_records(self, batch: Batch) -> Buffer | None:
        header = batch.header
        if not self._is_last_of_producer(header):
            return None
        if header.record_count == 0:
            return batch.data
        kept = format.TIMESTAMP_TYPE_BIT | format.TRANSACTIONAL_BIT | format.CONTROL_BIT
        return seal_batch(
            bytearray(format.HEADER_SIZE),
            record_count=0,
            base_timestamp=format.NO_TIMESTAMP,
            max_timestamp=header.max_timestamp,
            attributes=header.attributes & kept,
            **_kept_fields(header),
        )

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        if header.producer_id < 0:
            return False
        last = self._live_producers.get(header.producer_id)
        if last is None:
            return False
        if last.last_offset is None:
            return bool(header.is_control) and header.producer_epoch == last.epoch
        return bool(header.last_offset == last.last_offset)

    def _is_past_horizon(self, header: BatchHeader) -> bool:
        return bool(header.has_delete_horizon) and header.base_timestamp <= self._now_ms

    def _of_legacy(self, batch: Batch) -> Buffer | None:
        """Return what stays of a message of magic 0 or 1, which may be a wrapper of many. Records become objects here,
        because such logs are rare."""
        records = list(records_of(batch))
        rewritten = build_batch(
            records,
            base_offset=records[0].offset,
            offset_deltas=[record.offset - records[0].offset for record in records],
            codec=batch.header.codec,
            timestamp_type=max(batch.header.timestamp_type, 0),
            append_time=batch.header.max_timestamp,
        )
        header = parse_header(rewritten)
        assert header is not None
        replacement = self._of_records(Batch(rewritten, header))
        return batch.data if isinstance(replacement, memoryview) else replacement


def _payload(batch: Batch) -> tuple[Buffer, int, int]:
    """Return a buffer with the decompressed records, and their start and end in it."""
    header = batch.header
    if header.codec == format.Codec.NONE:
        return batch.buffer, header.position + format.HEADER_SIZE, header.position + header.size
    payload = batch.payload()
    return payload, 0, memoryview(payload).nbytes


def _sealed(
    header: BatchHeader, records: bytearray, kept: Kept, base_timestamp: int, more_attributes: int
) -> bytearray:
    return seal_batch(
        records,
        record_count=kept.count,
        base_timestamp=base_timestamp,
        max_timestamp=kept.max_timestamp,
        attributes=header.attributes | more_attributes,
        **_kept_fields(header),
    )


def _kept_fields(header: BatchHeader) -> dict[str, int]:
    """Return the header fields that a batch keeps when its records change."""
    return {
        "base_offset": header.base_offset,
        "last_offset_delta": header.last_offset_delta,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "leader_epoch": header.leader_epoch,
    }

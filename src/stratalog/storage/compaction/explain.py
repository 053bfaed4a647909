"""Explains why records of a key are still in a log: whether each one stays or is removed, and which setting decides.

It reads the whole log and changes nothing. A corrupt batch is an error, because its records can't be explained.
"""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass, field
from typing import Any

from stratalog.errors import LogClosedError
from stratalog.records._compaction import find_key
from stratalog.records._framing import BatchHeader
from stratalog.records.batch import Batch
from stratalog.records.format import CURRENT_MAGIC, HEADER_SIZE, Codec, TimestampType
from stratalog.records.reader import records_of
from stratalog.storage.compaction.plan import Dirt
from stratalog.storage.compaction.transactions import CleanedTransactions
from stratalog.storage.config import LogConfig
from stratalog.storage.log import Log
from stratalog.storage.scan import check

MOST_RECORDS = 1000  # the newest ones, so that a key that was written a million times does not fill the memory


@dataclass
class KeyRecord:
    """A record of the key, and what compaction does with it."""

    offset: int
    timestamp: int
    value_bytes: int | None  # None for a tombstone
    segment: int  # the base offset of its segment
    horizon_ms: int | None = None  # when the tombstones of its batch may be removed
    aborted: bool = False
    stays: bool = True  # in the next run
    why: str = ""
    setting: str | None = None  # the setting that decides
    may_go_from_ms: int | None = None  # if a time decides


@dataclass
class Explained:
    """The newest records of a key."""

    count: int = 0  # all records of the key, including those that are not in `records`
    records: list[KeyRecord] = field(default_factory=list)

    def row(self) -> dict[str, Any]:
        return {"count": self.count, "records": [asdict(record) for record in self.records]}


def explain(log: Log, dirt: Dirt, key: bytes, now_ms: int) -> Explained:
    """Return the newest records of a key, with the reasons. Raises CorruptBatchError, OSError and LogClosedError."""
    newest: deque[KeyRecord] = deque(maxlen=MOST_RECORDS)
    count = 0
    segments = log.segments
    transactions = CleanedTransactions(log.aborted_transactions(segments[0].base_offset, segments[-1].limit))
    for segment in segments:
        for chunk in check(
            segment.file, 0, segment.size, previous=segment.base_offset - 1, limit=segment.limit, checksums=True
        ):
            if log.is_closed:
                raise LogClosedError(f"{log.path}: the log was closed")
            for header in chunk.headers:
                batch = Batch(chunk.buffer, header)
                is_aborted = (header.is_control or header.is_transactional) and transactions.may_go(batch)
                if header.is_control:
                    continue
                for offset, timestamp, size in _records_with(batch, key):
                    horizon = header.base_timestamp if header.has_delete_horizon else None
                    count += 1
                    newest.append(
                        KeyRecord(
                            offset, timestamp, None if size < 0 else size, segment.base_offset, horizon, is_aborted
                        )
                    )
    records = [record for record in newest if record.offset >= log.log_start_offset]
    _judge(records, dirt, log.config, now_ms)
    return Explained(count - (len(newest) - len(records)), records)


def _records_with(batch: Batch, key: bytes) -> list[tuple[int, int, int]]:
    """Return the offset, the timestamp and the size of the value, -1 for a tombstone, of each record with the key."""
    header = batch.header
    if header.magic != CURRENT_MAGIC:
        return [
            (record.offset, record.timestamp, -1 if record.value is None else len(record.value))
            for record in records_of(batch)
            if record.key == key
        ]
    if header.codec == Codec.NONE:
        matches = find_key(batch.buffer, header, key, header.position + HEADER_SIZE, header.position + header.size)
    else:
        payload = batch.payload()
        matches = find_key(payload, header, key, 0, memoryview(payload).nbytes)
    return [(header.base_offset + offset, _timestamp(header, delta), size) for offset, delta, size in matches]


def _timestamp(header: BatchHeader, delta: int) -> int:
    if header.timestamp_type == TimestampType.LOG_APPEND_TIME:
        return int(header.max_timestamp)
    return int(header.base_timestamp) + delta


def _judge(records: list[KeyRecord], dirt: Dirt, config: LogConfig, now_ms: int) -> None:
    live = [record for record in records if not record.aborted]
    for number, record in enumerate(live):
        newer = live[number + 1] if number + 1 < len(live) else None
        if newer is not None:
            _judge_superseded(record, newer, live[-1], dirt, config)
        elif record.value_bytes is None:
            _judge_tombstone(record, dirt, config, now_ms)
        else:
            _judge_last(record, config)
    for record in records:
        if record.aborted:
            record.stays = record.segment >= dirt.first_uncleanable_offset
            record.why = "its transaction was aborted, so readers of committed records never see it"
    if "compact" not in config.cleanup_policy:
        for record in records:
            record.stays, record.setting = True, "cleanup.policy"
            record.why = f"cleanup.policy is {','.join(config.cleanup_policy) or 'empty'}: the log is not compacted"


def _judge_last(record: KeyRecord, config: LogConfig) -> None:
    record.why = "the last record of the key"
    if "delete" in config.cleanup_policy and config.retention_ms >= 0:
        record.setting = "retention.ms"
        record.may_go_from_ms = record.timestamp + config.retention_ms if record.timestamp >= 0 else None
        record.why += "; it is deleted with its segment, because cleanup.policy has delete too"


def _judge_superseded(record: KeyRecord, newer: KeyRecord, last: KeyRecord, dirt: Dirt, config: LogConfig) -> None:
    record.why = f"superseded by offset {newer.offset}"
    if record.segment >= dirt.first_uncleanable_offset:
        record.setting = _setting_in(dirt.blocked_by)
        record.why += f"; its segment can't be cleaned yet: {dirt.blocked_by}"
    elif newer.segment >= dirt.first_uncleanable_offset:
        record.setting = _setting_in(dirt.blocked_by)
        record.why += f", whose segment can't be cleaned yet: {dirt.blocked_by}"
    else:
        record.stays = False
        record.setting = None if dirt.is_due else "min.cleanable.dirty.ratio"
        record.why += "; the next run removes it" + ("" if dirt.is_due else f": {dirt.reason}")
    if record.setting == "min.compaction.lag.ms" and last.timestamp >= 0:
        record.may_go_from_ms = max(record.timestamp, newer.timestamp) + config.min_compaction_lag_ms


def _judge_tombstone(record: KeyRecord, dirt: Dirt, config: LogConfig, now_ms: int) -> None:
    record.setting = "delete.retention.ms"
    if record.horizon_ms is None:
        record.why = (
            "a tombstone, the last record of the key; it is removed at the earliest delete.retention.ms "
            f"({config.delete_retention_ms}) after the next run that reads it"
        )
        return
    record.may_go_from_ms = record.horizon_ms
    record.stays = record.horizon_ms > now_ms
    record.why = "a tombstone, the last record of the key"
    if not record.stays:
        record.why += "; delete.retention.ms is over, and the next run removes it"
        record.why += "" if dirt.is_due else f": {dirt.reason}"


def _setting_in(reason: str) -> str | None:
    known = ("min.compaction.lag.ms", "segment.bytes")
    return next((name for name in known if name in reason), None)

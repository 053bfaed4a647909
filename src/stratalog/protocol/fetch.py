"""Fetch: the response, versions 4 to 18, around records that are not copied. _wire.parse_fetch reads the request."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from struct import Struct
from typing import NamedTuple

from stratalog.protocol.encoding import write_count, write_topic

FIRST_FLEXIBLE = 12
_INT32 = Struct(">i")
_TRANSACTION = Struct(">qq")
_UP_TO_4 = Struct(">ihqq")
_WITH_START = Struct(">ihqqq")
_SESSION = Struct(">ihi")
_EPOCH_END = Struct(">iq")
_DIVERGING_EPOCH_TAG = 0
_NO_REPLICA = _INT32.pack(-1)


class FetchedPartition(NamedTuple):
    partition: int
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: Sequence[tuple[int, int]] | None = None  # (producer id, first offset); None for read_uncommitted
    records: Sized | None = None
    diverging_epoch: tuple[int, int] | None = None  # (epoch, its end offset)


def encode_fetch_response(
    version: int,
    error_code: int,
    session_id: int,
    topics: Sequence[tuple[str | bytes, list[FetchedPartition]]],
) -> tuple[list[bytes | bytearray | Sized], int]:
    """The body in pieces, records as they were given, and its size."""
    flexible = version >= FIRST_FLEXIBLE
    pieces: list[bytes | bytearray | Sized] = []
    size = 0
    out = bytearray(_SESSION.pack(0, error_code, session_id) if version >= 7 else _INT32.pack(0))
    write_count(out, len(topics), flexible=flexible)
    for topic, partitions in topics:
        write_topic(out, topic, flexible=flexible)
        write_count(out, len(partitions), flexible=flexible)
        for partition in partitions:
            _partition_start(out, version, partition)
            records = partition.records
            if records is not None and len(records):
                size += len(out) + len(records)
                pieces += (out, records)
                out = bytearray()
            if flexible:
                _partition_tags(out, partition)
        if flexible:
            out.append(0)
    if flexible:
        out.append(0)
    pieces.append(out)
    return pieces, size + len(out)


def _partition_start(out: bytearray, version: int, partition: FetchedPartition) -> None:
    """Up to where the records begin."""
    if version >= 5:
        out += _WITH_START.pack(*partition[:5])
    else:
        out += _UP_TO_4.pack(*partition[:4])
    flexible = version >= FIRST_FLEXIBLE
    aborted = partition.aborted
    if aborted is None:
        out += b"\0" if flexible else b"\xff\xff\xff\xff"
    else:
        write_count(out, len(aborted), flexible=flexible)
        for transaction in aborted:
            out += _TRANSACTION.pack(*transaction)
            if flexible:
                out.append(0)
    if version >= 11:
        out += _NO_REPLICA
    write_count(
        out, 0 if partition.records is None else len(partition.records), flexible=flexible
    )  # bytes are counted as arrays are


def _partition_tags(out: bytearray, partition: FetchedPartition) -> None:
    if partition.diverging_epoch is None:
        out.append(0)
    else:
        out += bytes((1, _DIVERGING_EPOCH_TAG, _EPOCH_END.size + 1))
        out += _EPOCH_END.pack(*partition.diverging_epoch)
        out.append(0)

"""The state of each idempotent producer in a log: its epoch, its last five batches, its open transaction. Pure.

The log needs it to recognise a batch that is sent again, to refuse a batch that leaves a gap in the sequence, and to
know which transactions are open. The state follows from the log's batches: replaying them rebuilds it, and a .snapshot
file saves most of the replay. A snapshot holds only the last batch of each producer, as in Kafka.

Producers are kept in the order of their last batches, because make_room() forgets the least recently used ones first.

Snapshot, version 1: version i16, CRC-32C u32 of what follows, count i32, then per producer: id i64, epoch i16,
last sequence i32, last offset i64, offset delta i32, timestamp i64, coordinator epoch i32, first offset of the open
transaction i64 (-1: none).
"""

from __future__ import annotations

import struct
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from stratalog.errors import (
    CorruptCheckpointError,
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    OutOfOrderSequenceError,
)
from stratalog.records._crc32c import crc32c
from stratalog.records._framing import BatchHeader

BATCHES_REMEMBERED = 5
_SEQUENCE_MAX = 2**31 - 1
_SNAPSHOT_VERSION = 1
_SNAPSHOT_HEADER = struct.Struct(">hIi")
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")
_CHECKSUMMED_FROM = 6


class ProducerBatch(NamedTuple):
    """The fields of a batch that identify it when the producer sends it again."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def base_offset(self) -> int:
        return self.last_offset - self.offset_delta

    @property
    def base_sequence(self) -> int:
        return (self.last_sequence - self.offset_delta) % (_SEQUENCE_MAX + 1)


class CompletedTransaction(NamedTuple):
    """A transaction that a marker ended."""

    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool


@dataclass(slots=True)
class ProducerEntry:
    """The state of one producer."""

    producer_id: int
    epoch: int
    coordinator_epoch: int = -1
    last_timestamp: int = -1
    transaction_first_offset: int | None = None
    batches: deque[ProducerBatch] = field(default_factory=lambda: deque(maxlen=BATCHES_REMEMBERED))


class ProducerState:
    """The producers of a log, by producer id."""

    def __init__(self) -> None:
        self._producers: OrderedDict[int, ProducerEntry] = OrderedDict()  # the least recently used first
        self._open: dict[int, int] = {}  # first offsets of open transactions by producer id, oldest first

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[ProducerEntry]:
        return iter(self._producers.values())

    def get(self, producer_id: int) -> ProducerEntry | None:
        return self._producers.get(producer_id)

    @property
    def first_open_transaction(self) -> int | None:
        """The first offset of the oldest transaction that is still open."""
        return next(iter(self._open.values()), None)  # in constant time, because each fetch reads it

    def find_duplicate(self, header: BatchHeader) -> ProducerBatch | None:
        """Return the batch in the log that this batch repeats, or None if it is new."""
        producer = self._producers.get(header.producer_id)
        if producer is None or producer.epoch != header.producer_epoch:
            return None
        for batch in producer.batches:
            if batch.last_sequence == header.last_sequence and batch.base_sequence == header.base_sequence:
                return batch
        return None

    def check(self, header: BatchHeader) -> None:
        """Raise unless the batch continues the sequence of its producer and belongs to its open transaction."""
        producer = self._producers.get(header.producer_id)
        if producer is None or header.is_control:
            return  # a producer that the log does not know, or has forgotten, may start with any sequence
        # Without a batch of this epoch, a marker began it, and the first sequence is 0.
        check_follows(header, producer.epoch, producer.batches[-1].last_sequence if producer.batches else -1)
        if producer.transaction_first_offset is not None and not header.is_transactional:
            raise InvalidTransactionStateError(
                f"producer {header.producer_id} has had a transaction open in this log since offset "
                f"{producer.transaction_first_offset}, and this batch is not transactional"
            )

    def update(self, header: BatchHeader) -> None:
        """Record a data batch that was appended to the log."""
        producer = self._producer(header)
        producer.batches.append(
            ProducerBatch(header.last_sequence, header.last_offset, header.last_offset_delta, header.max_timestamp)
        )
        producer.last_timestamp = header.max_timestamp
        if header.is_transactional and producer.transaction_first_offset is None:
            producer.transaction_first_offset = header.base_offset
            self._open[header.producer_id] = header.base_offset

    def complete(self, header: BatchHeader, *, aborted: bool, coordinator_epoch: int) -> CompletedTransaction | None:
        """Record a transaction marker. Return the transaction that it ends, or None if no transaction was open."""
        producer = self._producer(header)
        producer.coordinator_epoch = coordinator_epoch
        producer.last_timestamp = header.max_timestamp
        first_offset, producer.transaction_first_offset = producer.transaction_first_offset, None
        if first_offset is None:
            return None
        self._open.pop(header.producer_id, None)
        return CompletedTransaction(header.producer_id, first_offset, header.last_offset, aborted)

    def last_stable_offset_after(self, completed: CompletedTransaction) -> int:
        """Return the last stable offset after `completed`: the first offset of the oldest transaction that is still
        open, or else the offset after the marker."""
        still_open = self.first_open_transaction
        return completed.last_offset + 1 if still_open is None else still_open

    def forget_before(self, timestamp: int) -> None:
        """Forget producers that wrote nothing since `timestamp` and have no open transaction."""
        self._producers = OrderedDict(
            (producer.producer_id, producer)
            for producer in self
            if producer.transaction_first_offset is not None or producer.last_timestamp >= timestamp
        )

    def make_room(self, count: int, limit: int, idle_before: int) -> bool:
        """Make room for `count` more producers within `limit`: forget those that wrote nothing since the timestamp
        `idle_before` and have no transaction open, the least recently used first. Return whether there is room now."""
        excess = len(self._producers) + count - limit
        for _ in range(len(self._open) + excess):
            if excess <= 0:
                break
            oldest = next(iter(self._producers.values()), None)
            if oldest is None:
                break
            if oldest.transaction_first_offset is not None:
                self._producers.move_to_end(oldest.producer_id)  # so that the next call need not pass it again
            elif oldest.last_timestamp < idle_before:
                del self._producers[oldest.producer_id]
                excess -= 1
            else:
                break
        return excess <= 0

    def _producer(self, header: BatchHeader) -> ProducerEntry:
        producer = self._producers.get(header.producer_id)
        if producer is None:
            producer = self._producers[header.producer_id] = ProducerEntry(header.producer_id, header.producer_epoch)
            return producer
        self._producers.move_to_end(header.producer_id)
        if producer.epoch != header.producer_epoch:
            producer.epoch = header.producer_epoch
            producer.batches.clear()
        return producer

    def to_snapshot(self) -> bytes:
        body = bytearray()
        for producer in self:
            last = producer.batches[-1] if producer.batches else ProducerBatch(-1, -1, 0, producer.last_timestamp)
            body += _SNAPSHOT_ENTRY.pack(
                producer.producer_id,
                producer.epoch,
                last.last_sequence,
                last.last_offset,
                last.offset_delta,
                producer.last_timestamp,
                producer.coordinator_epoch,
                -1 if producer.transaction_first_offset is None else producer.transaction_first_offset,
            )
        checksummed = len(self).to_bytes(4, "big") + bytes(body)
        return _SNAPSHOT_HEADER.pack(_SNAPSHOT_VERSION, crc32c(checksummed), len(self)) + bytes(body)

    @classmethod
    def from_snapshot(cls, content: bytes, name: str) -> ProducerState:
        """Return the state in a snapshot's bytes. Raises CorruptCheckpointError, which names the file `name`, if they
        are not a valid snapshot."""
        state = cls()
        for producer in parse_snapshot(content, name):
            state._producers[producer.producer_id] = producer
        unfinished = [p for p in state if p.transaction_first_offset is not None]
        for producer in sorted(unfinished, key=lambda p: p.transaction_first_offset or 0):
            state._open[producer.producer_id] = producer.transaction_first_offset or 0
        return state


def check_follows(header: BatchHeader, epoch: int, last_sequence: int) -> None:
    """Raise unless the batch may follow a batch of the same producer with this producer epoch and last sequence."""
    if header.producer_epoch < epoch:
        raise InvalidProducerEpochError(
            f"producer {header.producer_id} has producer epoch {epoch} in this log; a batch with producer epoch "
            f"{header.producer_epoch} comes from an instance that was replaced"
        )
    if header.producer_epoch > epoch:
        if header.base_sequence != 0:
            raise OutOfOrderSequenceError(
                f"producer {header.producer_id} starts producer epoch {header.producer_epoch} with sequence "
                f"{header.base_sequence} instead of 0"
            )
        return
    expected = (last_sequence + 1) % (_SEQUENCE_MAX + 1)
    if header.base_sequence != expected:
        raise OutOfOrderSequenceError(
            f"producer {header.producer_id} sent sequence {header.base_sequence} where {expected} was expected"
        )


def parse_snapshot(content: bytes, name: str) -> list[ProducerEntry]:
    """Return the producers in a snapshot's bytes. Raises CorruptCheckpointError, which names the file `name`."""
    if len(content) < _SNAPSHOT_HEADER.size:
        raise CorruptCheckpointError(f"{name}: has {len(content)} bytes, less than a snapshot's header")
    version, checksum, count = _SNAPSHOT_HEADER.unpack_from(content)
    if version != _SNAPSHOT_VERSION:
        raise CorruptCheckpointError(f"{name}: version is {version}; only version {_SNAPSHOT_VERSION} is supported")
    if crc32c(content[_CHECKSUMMED_FROM:]) != checksum:
        raise CorruptCheckpointError(f"{name}: the checksum does not match the one in its header, {checksum:#010x}")
    body = content[_SNAPSHOT_HEADER.size :]
    if len(body) != count * _SNAPSHOT_ENTRY.size:
        raise CorruptCheckpointError(f"{name}: count is {count}, but {len(body)} bytes follow")
    return [_parse_entry(fields) for fields in _SNAPSHOT_ENTRY.iter_unpack(body)]


def _parse_entry(fields: tuple[int, ...]) -> ProducerEntry:
    producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, transaction = fields
    producer = ProducerEntry(producer_id, epoch, coordinator_epoch, timestamp, None if transaction < 0 else transaction)
    if offset >= 0:
        producer.batches.append(ProducerBatch(sequence, offset, delta, timestamp))
    return producer

"""What the log knows of each idempotent producer: its epoch, its last five batches, its open transaction. Pure.

It exists to recognise a batch that is sent again, to refuse one that leaves a gap, and to know which transactions
are open. It is a function of the log's batches: replaying them gives it back, and a .snapshot file saves most of the
replay. (A snapshot holds only the last batch of each producer, as Kafka's does.)

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
    """A batch as it is remembered, to be recognised when it comes again."""

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
    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool


@dataclass(slots=True)
class Producer:
    producer_id: int
    epoch: int
    coordinator_epoch: int = -1
    last_timestamp: int = -1
    transaction_first_offset: int | None = None
    batches: deque[ProducerBatch] = field(default_factory=lambda: deque(maxlen=BATCHES_REMEMBERED))


class ProducerState:
    def __init__(self) -> None:
        self._producers: OrderedDict[int, Producer] = OrderedDict()  # the least recently used first
        self._open: dict[int, int] = {}  # first offsets of open transactions by producer, oldest first

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[Producer]:
        return iter(self._producers.values())

    def get(self, producer_id: int) -> Producer | None:
        return self._producers.get(producer_id)

    @property
    def first_open_transaction(self) -> int | None:
        """The first offset of the oldest transaction that is still open."""
        return next(iter(self._open.values()), None)  # asked at each fetch, however many producers there are

    def find_duplicate(self, header: BatchHeader) -> ProducerBatch | None:
        """The batch in the log that this one repeats."""
        producer = self._producers.get(header.producer_id)
        if producer is None or producer.epoch != header.producer_epoch:
            return None
        for batch in producer.batches:
            if batch.last_sequence == header.last_sequence and batch.base_sequence == header.base_sequence:
                return batch
        return None

    def check(self, header: BatchHeader) -> None:
        """Raise unless the batch may follow what its producer wrote last."""
        producer = self._producers.get(header.producer_id)
        if producer is None or header.is_control:
            return  # a producer that the log has forgotten, or never knew, may start anywhere
        # No batch of this epoch yet: a marker began it, so the first is 0.
        check_follows(header, producer.epoch, producer.batches[-1].last_sequence if producer.batches else -1)
        if producer.transaction_first_offset is not None and not header.is_transactional:
            raise InvalidTransactionStateError(
                f"producer {header.producer_id} has a transaction open here since offset "
                f"{producer.transaction_first_offset}, and this batch is not part of it"
            )

    def update(self, header: BatchHeader) -> None:
        """Take note of a data batch that is in the log."""
        producer = self._producer(header)
        producer.batches.append(
            ProducerBatch(header.last_sequence, header.last_offset, header.last_offset_delta, header.max_timestamp)
        )
        producer.last_timestamp = header.max_timestamp
        if header.is_transactional and producer.transaction_first_offset is None:
            producer.transaction_first_offset = header.base_offset
            self._open[header.producer_id] = header.base_offset

    def complete(self, header: BatchHeader, *, aborted: bool, coordinator_epoch: int) -> CompletedTransaction | None:
        """Take note of a transaction marker; the transaction it ends, if one was open."""
        producer = self._producer(header)
        producer.coordinator_epoch = coordinator_epoch
        producer.last_timestamp = header.max_timestamp
        first_offset, producer.transaction_first_offset = producer.transaction_first_offset, None
        if first_offset is None:
            return None
        self._open.pop(header.producer_id, None)
        return CompletedTransaction(header.producer_id, first_offset, header.last_offset, aborted)

    def last_stable_offset_after(self, completed: CompletedTransaction) -> int:
        """What a read_committed reader may see once `completed` is: up to the oldest transaction still open."""
        still_open = self.first_open_transaction
        return completed.last_offset + 1 if still_open is None else still_open

    def forget_before(self, timestamp: int) -> None:
        """Forget producers that wrote nothing since `timestamp` and have no transaction open."""
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

    def _producer(self, header: BatchHeader) -> Producer:
        producer = self._producers.get(header.producer_id)
        if producer is None:
            producer = self._producers[header.producer_id] = Producer(header.producer_id, header.producer_epoch)
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
        """Raises CorruptCheckpointError where the bytes are not a whole snapshot."""
        state = cls()
        for producer in parse_snapshot(content, name):
            state._producers[producer.producer_id] = producer
        unfinished = [p for p in state if p.transaction_first_offset is not None]
        for producer in sorted(unfinished, key=lambda p: p.transaction_first_offset or 0):
            state._open[producer.producer_id] = producer.transaction_first_offset or 0
        return state


def check_follows(header: BatchHeader, epoch: int, last_sequence: int) -> None:
    """Raise unless the batch may come behind one of the same producer with this epoch and last sequence."""
    if header.producer_epoch < epoch:
        raise InvalidProducerEpochError(
            f"producer {header.producer_id} has epoch {epoch} here; "
            f"a batch of epoch {header.producer_epoch} comes from an instance that was replaced"
        )
    if header.producer_epoch > epoch:
        if header.base_sequence != 0:
            raise OutOfOrderSequenceError(
                f"producer {header.producer_id} starts epoch {header.producer_epoch} with sequence "
                f"{header.base_sequence} instead of 0"
            )
        return
    expected = (last_sequence + 1) % (_SEQUENCE_MAX + 1)
    if header.base_sequence != expected:
        raise OutOfOrderSequenceError(
            f"producer {header.producer_id} sent sequence {header.base_sequence} where {expected} was expected"
        )


def parse_snapshot(content: bytes, name: str) -> list[Producer]:
    if len(content) < _SNAPSHOT_HEADER.size:
        raise CorruptCheckpointError(f"{name}: has {len(content)} bytes, less than a snapshot's header")
    version, checksum, count = _SNAPSHOT_HEADER.unpack_from(content)
    if version != _SNAPSHOT_VERSION:
        raise CorruptCheckpointError(f"{name}: version is {version}; {_SNAPSHOT_VERSION} is known")
    if crc32c(content[_CHECKSUMMED_FROM:]) != checksum:
        raise CorruptCheckpointError(f"{name}: checksum is not the one in its header, {checksum:#010x}")
    body = content[_SNAPSHOT_HEADER.size :]
    if len(body) != count * _SNAPSHOT_ENTRY.size:
        raise CorruptCheckpointError(f"{name}: count is {count}, but {len(body)} bytes follow")
    return [_parse_entry(fields) for fields in _SNAPSHOT_ENTRY.iter_unpack(body)]


def _parse_entry(fields: tuple[int, ...]) -> Producer:
    producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, transaction = fields
    producer = Producer(producer_id, epoch, coordinator_epoch, timestamp, None if transaction < 0 else transaction)
    if offset >= 0:
        producer.batches.append(ProducerBatch(sequence, offset, delta, timestamp))
    return producer

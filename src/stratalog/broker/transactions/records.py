"""The records of `__transaction_state`, byte for byte as Kafka 4.1 writes them.

A key begins with its type (two bytes, 0) and holds the transactional id. A value begins with its version: 0 with fixed
lengths, 1 flexible (KIP-915), which is written since transaction.version 1. A null value deletes the id.

Two tagged fields are written where they say something, which Kafka began to do only after 4.1 (which reads them): the
producer id that comes next, and the one that was before. Without them a broker that is killed between the two steps of
an end that uses up the last epoch would forget what it has told the producer. One that Kafka does not have, and passes
over, is the producer's own timeout while another waits for the decision in its place.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct

from stratalog.broker.transactions.state import NO_PRODUCER_ID, NO_TIME, Transaction, TransactionState
from stratalog.protocol.fields import FieldReader, FieldWriter
from stratalog.storage.names import TopicPartition

TransactionRecord = tuple[bytes, bytes | None]  # None: a tombstone

KEY_TYPE = 0
VALUE_VERSION = 1
_FIRST_FLEXIBLE = 1
_START = Struct(">hqhib")  # version, producer id, epoch, timeout, state
_TIMES = Struct(">qq")  # updated, started
_FEW_PARTITIONS = 16
_PREVIOUS_ID_TAG, _NEXT_ID_TAG, _CLIENT_VERSION_TAG = 0, 1, 2
_OWN_TIMEOUT_TAG = 20_000  # far from those that Kafka hands out one by one


@lru_cache(maxsize=1024)
def transaction_key(transactional_id: str) -> bytes:
    return FieldWriter().int16(KEY_TYPE).string(transactional_id).done()


def transaction_record(transaction: Transaction, version: int = VALUE_VERSION) -> TransactionRecord:
    start = _START.pack(
        version, transaction.producer_id, transaction.epoch, transaction.timeout_ms, int(transaction.state)
    )
    flexible = version >= _FIRST_FLEXIBLE
    partitions = None if transaction.state is TransactionState.EMPTY else transaction.partitions
    # A producer writes to the same few partitions in one transaction after the other.
    few = partitions is None or len(partitions) <= _FEW_PARTITIONS
    places = (_partitions_again if few else _partitions)(partitions, flexible)
    times = _TIMES.pack(transaction.updated_ms, transaction.started_ms)
    tags = _tags(
        transaction.previous_id, transaction.next_id, transaction.client_version, transaction.own_timeout_ms, flexible
    )
    return transaction_key(transaction.transactional_id), b"".join((start, places, times, tags))


def transaction_tombstone(transactional_id: str) -> TransactionRecord:
    return transaction_key(transactional_id), None


def _partitions(partitions: frozenset[TopicPartition] | None, flexible: bool) -> bytes:
    fields = FieldWriter(flexible=flexible)
    if partitions is None:
        return fields.count(-1).done()
    topics: dict[str, list[int]] = {}
    for partition in sorted(partitions):
        topics.setdefault(partition.topic, []).append(partition.partition)
    fields.count(len(topics))
    for topic, indexes in topics.items():
        fields.string(topic).count(len(indexes))
        for index in indexes:
            fields.int32(index)
        fields.tagged_fields()
    return fields.done()


_partitions_again = lru_cache(maxsize=1024)(_partitions)


@lru_cache(maxsize=1024)
def _tags(previous_id: int, next_id: int, client_version: int, own_timeout_ms: int, flexible: bool) -> bytes:
    tags = {}
    if previous_id != NO_PRODUCER_ID:
        tags[_PREVIOUS_ID_TAG] = previous_id.to_bytes(8, "big", signed=True)
    if next_id != NO_PRODUCER_ID:
        tags[_NEXT_ID_TAG] = next_id.to_bytes(8, "big", signed=True)
    if client_version:
        tags[_CLIENT_VERSION_TAG] = client_version.to_bytes(2, "big", signed=True)
    if own_timeout_ms != NO_TIME:
        tags[_OWN_TIMEOUT_TAG] = own_timeout_ms.to_bytes(4, "big", signed=True)
    return FieldWriter(flexible=flexible).tagged_fields(tags).done()


def parse_key(key: bytes) -> str:
    """The transactional id. Raises GroupRecordError."""
    fields = FieldReader(key, "key of a record in __transaction_state")
    kind = fields.int16()
    if kind != KEY_TYPE:
        raise fields.error(f"has type {kind}; {KEY_TYPE} is known")
    return fields.string()


def parse_transaction(transactional_id: str, value: bytes) -> Transaction:
    """Raises GroupRecordError."""
    fields = FieldReader(value, f"value of transactional id {transactional_id!r}")
    version = fields.int16()
    if not 0 <= version <= VALUE_VERSION:
        raise fields.error(f"has version {version}; known are 0 to {VALUE_VERSION}")
    fields.flexible = version >= _FIRST_FLEXIBLE
    producer_id, epoch, timeout_ms, number = fields.int64(), fields.int16(), fields.int32(), fields.int8()
    if number not in tuple(TransactionState):
        raise fields.error(f"has status {number}; known are 0 to {max(TransactionState)}")
    topics = fields.nullable_array(lambda: _parse_topic(fields)) or []
    updated_ms, started_ms = fields.int64(), fields.int64()
    tags = fields.tagged_fields()
    return Transaction(
        transactional_id,
        producer_id,
        epoch,
        timeout_ms,
        TransactionState(number),
        frozenset(partition for topic in topics for partition in topic),
        started_ms,
        updated_ms,
        client_version=_number(tags, _CLIENT_VERSION_TAG, 0),
        previous_id=_number(tags, _PREVIOUS_ID_TAG, NO_PRODUCER_ID),
        next_id=_number(tags, _NEXT_ID_TAG, NO_PRODUCER_ID),
        own_timeout_ms=_number(tags, _OWN_TIMEOUT_TAG, NO_TIME),
    )


def _parse_topic(fields: FieldReader) -> list[TopicPartition]:
    topic = fields.string()
    indexes = fields.array(fields.int32)
    fields.tagged_fields()
    return [TopicPartition(topic, index) for index in indexes]


def _number(tags: dict[int, bytes], tag: int, default: int) -> int:
    return int.from_bytes(tags[tag], "big", signed=True) if tag in tags else default

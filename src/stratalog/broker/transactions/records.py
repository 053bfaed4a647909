"""The records of `__transaction_state`, byte for byte as Kafka 4.1 writes them.

A key is its type (two bytes, 0) and the transactional id. A value begins with its version: 0 has fixed lengths, 1 is
flexible (KIP-915). Kafka writes 1 from transaction.version 1 on, and so does Stratalog. A null value deletes the id.

A value may have these tagged fields:

| tag | field | written if | in Kafka |
|---|---|---|---|
| 0 | previous producer id | there is one | read by 4.1, written by later versions |
| 1 | next producer id | the transaction used the last epoch | read by 4.1, written by later versions |
| 2 | transaction.version of the client | it is not 0 | written by 4.1 |
| 20000 | the producer's own timeout | the transaction is prepared (two_phase.py) | unknown, so it is ignored |

An end that uses the last epoch has two steps, and the producer learns its next producer id after the first. Tags 0 and
1 keep that id if the broker is killed between the steps.
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
_OWN_TIMEOUT_TAG = 20_000  # far from the tags that Kafka assigns, which count up from 0


@lru_cache(maxsize=1024)
def transaction_key(transactional_id: str) -> bytes:
    return FieldWriter().int16(KEY_TYPE).string(transactional_id).done()


def transaction_record(transaction: Transaction, version: int = VALUE_VERSION) -> TransactionRecord:
    start = _START.pack(
        version, transaction.producer_id, transaction.epoch, transaction.timeout_ms, int(transaction.state)
    )
    flexible = version >= _FIRST_FLEXIBLE
    partitions = None if transaction.state is TransactionState.EMPTY else transaction.partitions
    # Most producers write to the same few partitions in each transaction, so their bytes are worth caching.
    has_few = partitions is None or len(partitions) <= _FEW_PARTITIONS
    topics = (_cached_partitions if has_few else _partitions)(partitions, flexible)
    times = _TIMES.pack(transaction.updated_ms, transaction.started_ms)
    tags = _tags(
        transaction.previous_id, transaction.next_id, transaction.client_version, transaction.own_timeout_ms, flexible
    )
    return transaction_key(transaction.transactional_id), b"".join((start, topics, times, tags))


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


_cached_partitions = lru_cache(maxsize=1024)(_partitions)


@lru_cache(maxsize=1024)
def _tags(previous_id: int, next_id: int, client_version: int, own_timeout_ms: int, flexible: bool) -> bytes:
    tags = {}
    if previous_id != NO_PRODUCER_ID:
        tags[_PREVIOUS_ID_TAG] = FieldWriter().int64(previous_id).done()
    if next_id != NO_PRODUCER_ID:
        tags[_NEXT_ID_TAG] = FieldWriter().int64(next_id).done()
    if client_version:
        tags[_CLIENT_VERSION_TAG] = FieldWriter().int16(client_version).done()
    if own_timeout_ms != NO_TIME:
        tags[_OWN_TIMEOUT_TAG] = FieldWriter().int32(own_timeout_ms).done()
    return FieldWriter(flexible=flexible).tagged_fields(tags).done()


def parse_key(key: bytes) -> str:
    """Return the transactional id. Raises GroupRecordError."""
    fields = FieldReader(key, "key of a record in __transaction_state")
    kind = fields.int16()
    if kind != KEY_TYPE:
        raise fields.error(f"has type {kind}; only type {KEY_TYPE} is known")
    return fields.string()


def parse_transaction(transactional_id: str, value: bytes) -> Transaction:
    """Parse the value of a record. Raises GroupRecordError."""
    fields = FieldReader(value, f"value of transactional id {transactional_id!r}")
    version = fields.int16()
    if not 0 <= version <= VALUE_VERSION:
        raise fields.error(f"has version {version}; versions 0 to {VALUE_VERSION} are known")
    fields.flexible = version >= _FIRST_FLEXIBLE
    producer_id, epoch, timeout_ms, number = fields.int64(), fields.int16(), fields.int32(), fields.int8()
    if number not in tuple(TransactionState):
        raise fields.error(f"has status {number}; 0 to {max(TransactionState)} are known")
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

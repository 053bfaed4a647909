"""A transactional id, its producer and its transaction: the states, and the transitions between them. Pure.

    InitProducerId            Empty, Complete*          -> Empty, with the next producer epoch
                              Ongoing                   -> PrepareAbort; the client retries
    AddPartitionsToTxn etc.   Empty, Complete*, Ongoing -> Ongoing
    EndTxn (commit)           Ongoing                   -> PrepareCommit
    EndTxn (abort)            Ongoing                   -> PrepareAbort; with version 2 also from Empty and Complete*
    timeout                   Ongoing                   -> PrepareAbort, and the producer is fenced
    all markers are written   PrepareCommit             -> CompleteCommit
                              PrepareAbort              -> CompleteAbort

A `Transaction` never changes. Each function takes the current one and a request, and returns a `TransactionStep`: one
of Kafka's errors, or the transaction as it will be once it is in the log. So no response shows a state that is not
written.

The rules are Kafka 4.1's. Clients of transaction.version 2 (KIP-890) get the next producer epoch with each end of a
transaction; older clients keep their epoch. Kafka's state PrepareEpochFence, which Kafka holds in memory only and never
writes, is not used: one step fences the epoch and prepares the abort. The highest epoch, 32767, never belongs to a
client, so that every epoch can be fenced.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from stratalog.broker.state_budget import text_bytes
from stratalog.protocol.error_codes import ErrorCode
from stratalog.storage.names import TopicPartition

NO_PRODUCER_ID = -1
NO_EPOCH = -1
NO_TIME = -1
HIGHEST_EPOCH = 2**15 - 1
_ID_BYTES = 1_000  # for a transactional id, without its text and its partitions
_PARTITION_BYTES = 300
NEVER_MS = 2**31 - 1  # the timeout that never passes, as in Kafka (KIP-939)


class TransactionState(IntEnum):
    """The states, with their numbers in records."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def title(self) -> str:
        """The name as clients see it: PrepareCommit."""
        return "".join(word.capitalize() for word in self.name.split("_"))


STATES = {state.title: state for state in TransactionState}
_ENDING = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
_IDLE = (TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
_COMPLETE = (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)


class ProducerIdAndEpoch(NamedTuple):
    """A producer id and producer epoch, as requests name a producer."""

    producer_id: int
    epoch: int


class Transaction(NamedTuple):
    """A transactional id with its producer and its transaction. `timeout_ms` counts from `started_ms`."""

    transactional_id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: int = NO_TIME
    updated_ms: int = NO_TIME
    client_version: int = 0  # transaction.version of the client whose request led to this state
    last_epoch: int = NO_EPOCH  # the epoch that the producer may still use, as a response can be lost; not in the log
    previous_id: int = NO_PRODUCER_ID  # the producer id before this one, whose epochs ran out
    next_id: int = NO_PRODUCER_ID  # the producer id after this transaction is complete, if the epochs run out
    own_timeout_ms: int = NO_TIME  # the producer's timeout, while it is prepared and `timeout_ms` limits that state

    @property
    def state_bytes(self) -> int:
        """The memory that it takes."""
        return _ID_BYTES + 3 * text_bytes(self.transactional_id) + _PARTITION_BYTES * len(self.partitions)

    @property
    def is_ending(self) -> bool:
        """True from the record of the commit or abort until all markers are written."""
        return self.state in _ENDING

    @property
    def is_idle(self) -> bool:
        """True if no transaction is open or ending."""
        return self.state in _IDLE

    @property
    def is_exhausted(self) -> bool:
        """True if the producer id has no further epoch for a client."""
        return self.epoch >= HIGHEST_EPOCH - 1

    @property
    def awaits_end(self) -> bool:
        """True if the producer has prepared the transaction, so that a later request ends it (two_phase.py)."""
        return self.state is TransactionState.ONGOING and self.own_timeout_ms != NO_TIME

    def has_timed_out(self, now_ms: int) -> bool:
        if self.state is not TransactionState.ONGOING or self.timeout_ms == NEVER_MS:
            return False
        return self.started_ms + self.timeout_ms < now_ms

    def has_expired(self, now_ms: int, after_ms: int) -> bool:
        return self.is_idle and self.updated_ms <= now_ms - after_ms


class TransactionStep(NamedTuple):
    """The result of a request. No error and no transaction: the requested state already holds."""

    error: ErrorCode
    transaction: Transaction | None = None
    needs_id: bool = False  # the caller has to get a new producer id and call again with it


_NOTHING = TransactionStep(ErrorCode.none)
_NEEDS_ID = TransactionStep(ErrorCode.none, needs_id=True)
_FENCED = TransactionStep(ErrorCode.producer_fenced)
_BUSY = TransactionStep(ErrorCode.concurrent_transactions)
_OTHER_ID = TransactionStep(ErrorCode.invalid_producer_id_mapping)
_WRONG_STATE = TransactionStep(ErrorCode.invalid_txn_state)


# InitProducerId


def begin(transactional_id: str, new_id: int, timeout_ms: int, now_ms: int) -> Transaction:
    """Return the first state of a new transactional id."""
    return Transaction(transactional_id, new_id, 0, timeout_ms, updated_ms=now_ms)


def initialize(
    known: Transaction, timeout_ms: int, claimed: ProducerIdAndEpoch | None, now_ms: int, new_id: int | None
) -> TransactionStep:
    """Start a producer under this id. With `claimed`, an existing producer continues after an error (KIP-360)."""
    if claimed is not None and not _may_claim(known, claimed):
        return _FENCED
    if known.is_ending:
        return _BUSY
    if known.state is TransactionState.ONGOING:
        # The client retries on this error, and gets its epoch then.
        return TransactionStep(ErrorCode.concurrent_transactions, fence(known, now_ms))
    if _must_rotate(known, claimed):
        if new_id is None:
            return _NEEDS_ID
        last_epoch = NO_EPOCH if claimed is None else claimed.epoch
        rotated = known._replace(producer_id=new_id, previous_id=known.producer_id)
        return _started(rotated, 0, last_epoch, timeout_ms, now_ms)
    if claimed is None:
        return _started(known, known.epoch + 1, NO_EPOCH, timeout_ms, now_ms)
    if claimed.epoch == known.epoch:
        return _started(known, known.epoch + 1, known.epoch, timeout_ms, now_ms)
    if claimed.epoch == known.last_epoch:  # a retry, as the response was lost
        return _started(known, known.epoch, known.last_epoch, timeout_ms, now_ms)
    return _FENCED


def _may_claim(known: Transaction, claimed: ProducerIdAndEpoch) -> bool:
    if claimed.producer_id == known.producer_id:
        return True
    return claimed.producer_id == known.previous_id and claimed.epoch >= HIGHEST_EPOCH - 1


def _must_rotate(known: Transaction, claimed: ProducerIdAndEpoch | None) -> bool:
    """Return whether the next epoch belongs to another producer id."""
    if claimed is None or claimed.epoch == known.epoch:
        return known.is_exhausted
    return known.epoch == HIGHEST_EPOCH and claimed.epoch == known.last_epoch  # the highest epoch fenced it


def _started(known: Transaction, epoch: int, last_epoch: int, timeout_ms: int, now_ms: int) -> TransactionStep:
    return TransactionStep(
        ErrorCode.none,
        known._replace(
            epoch=epoch,
            last_epoch=last_epoch,
            timeout_ms=timeout_ms,
            state=TransactionState.EMPTY,
            partitions=frozenset(),
            started_ms=NO_TIME,
            updated_ms=now_ms,
        ),
    )


def fence(known: Transaction, now_ms: int) -> Transaction:
    """Fence the current producer and abort its open transaction, because it was replaced or exceeded its timeout.

    The fenced producer can still learn of the abort: EndTxn and InitProducerId accept the old epoch as a retry."""
    return _with_end(known, TransactionState.PREPARE_ABORT, 2, NO_PRODUCER_ID, now_ms)


# AddPartitionsToTxn, AddOffsetsToTxn


def add(
    known: Transaction, producer: ProducerIdAndEpoch, partitions: frozenset[TopicPartition], version: int, now_ms: int
) -> TransactionStep:
    """Add partitions to the producer's open transaction, or begin one with them."""
    if known.producer_id != producer.producer_id:
        return _OTHER_ID
    # The highest epoch belongs to no client: a transaction in it could not be fenced.
    if known.epoch != producer.epoch or producer.epoch == HIGHEST_EPOCH:
        return _FENCED
    if known.is_ending:
        return _BUSY
    if known.awaits_end:
        return _WRONG_STATE
    if known.state is TransactionState.ONGOING and partitions <= known.partitions:
        return _NOTHING
    started = known.started_ms if known.state is TransactionState.ONGOING else now_ms
    return TransactionStep(
        ErrorCode.none,
        known._replace(
            state=TransactionState.ONGOING,
            partitions=known.partitions | partitions,
            started_ms=started,
            updated_ms=now_ms,
            client_version=version,
            previous_id=NO_PRODUCER_ID,
        ),
    )


def verify(known: Transaction, producer: ProducerIdAndEpoch, partition: TopicPartition) -> ErrorCode:
    """Return NONE if the producer has an open transaction that includes the partition."""
    if known.producer_id != producer.producer_id:
        return ErrorCode.invalid_producer_id_mapping
    if known.epoch != producer.epoch:
        return ErrorCode.producer_fenced
    if known.is_ending:
        return ErrorCode.concurrent_transactions
    if known.awaits_end:
        return ErrorCode.invalid_txn_state
    return ErrorCode.none if partition in known.partitions else ErrorCode.transaction_abortable


# EndTxn


def end(
    known: Transaction, producer: ProducerIdAndEpoch, *, commit: bool, version: int, now_ms: int, new_id: int | None
) -> TransactionStep:
    """Commit or abort. `version` is the client's transaction.version. `new_id` is needed if the epochs run out."""
    if version < 2:
        return _end_keeping_epoch(known, producer, commit, now_ms)
    return _end_with_next_epoch(known, producer, commit, now_ms, new_id)


def _end_keeping_epoch(known: Transaction, producer: ProducerIdAndEpoch, commit: bool, now_ms: int) -> TransactionStep:
    if known.producer_id != producer.producer_id:
        return _OTHER_ID
    if known.epoch != producer.epoch:
        return _FENCED
    ending = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
    if known.state is TransactionState.ONGOING:
        return TransactionStep(ErrorCode.none, _with_end(known, ending, 0, NO_PRODUCER_ID, now_ms))
    if known.state is ending:
        return _BUSY
    return _NOTHING if known.state is completed(ending) else _WRONG_STATE


def _end_with_next_epoch(
    known: Transaction, producer: ProducerIdAndEpoch, commit: bool, now_ms: int, new_id: int | None
) -> TransactionStep:
    """End a transaction as in KIP-890. A retry names the epoch before the current one; the current epoch means a new
    request."""
    is_past_rotation = (
        known.previous_id == producer.producer_id and producer.epoch == HIGHEST_EPOCH - 1 and known.epoch == 0
    )
    if known.producer_id != producer.producer_id and not is_past_rotation:
        return _OTHER_ID
    is_repeated = is_past_rotation or known.epoch == producer.epoch + 1
    if not _may_end(known, producer, is_repeated, is_past_rotation):
        return _FENCED
    ending = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
    if known.is_ending:
        return _BUSY if known.state is ending else _WRONG_STATE
    if known.epoch == HIGHEST_EPOCH and not is_past_rotation:
        return _FENCED  # fenced in its last epoch; the next epoch belongs to no client
    if known.state in _COMPLETE and is_repeated:
        return _NOTHING if known.state is completed(ending) else _WRONG_STATE
    if known.state is not TransactionState.ONGOING and commit:
        return _WRONG_STATE
    if known.is_exhausted and new_id is None:
        return _NEEDS_ID
    next_id = new_id if known.is_exhausted and new_id is not None else NO_PRODUCER_ID
    return TransactionStep(ErrorCode.none, _with_end(known, ending, 2, next_id, now_ms))


def _may_end(known: Transaction, producer: ProducerIdAndEpoch, is_repeated: bool, is_past_rotation: bool) -> bool:
    if known.is_ending:
        return is_repeated and not is_past_rotation
    return known.epoch == producer.epoch or (known.state in _COMPLETE and is_repeated)


def _with_end(known: Transaction, state: TransactionState, version: int, next_id: int, now_ms: int) -> Transaction:
    epoch, last_epoch = known.epoch, known.last_epoch
    if version >= 2:
        epoch, last_epoch = min(epoch + 1, HIGHEST_EPOCH), epoch
    return known._replace(
        state=state,
        epoch=epoch,
        last_epoch=last_epoch,
        next_id=next_id,
        # An abort may come before the first partition; its transaction begins now.
        started_ms=known.started_ms if known.state is TransactionState.ONGOING else now_ms,
        updated_ms=now_ms,
        client_version=version,
        timeout_ms=known.own_timeout_ms if known.awaits_end else known.timeout_ms,
        own_timeout_ms=NO_TIME,
    )


def completed(ending: TransactionState) -> TransactionState:
    return (
        TransactionState.COMPLETE_COMMIT
        if ending is TransactionState.PREPARE_COMMIT
        else TransactionState.COMPLETE_ABORT
    )


def complete(known: Transaction, now_ms: int) -> Transaction:
    """Return the state after all markers are written. Its producer id and epoch are those of `producer_after`."""
    after = known._replace(state=completed(known.state), partitions=frozenset(), updated_ms=now_ms)
    if known.client_version >= 2 and known.next_id != NO_PRODUCER_ID:
        return after._replace(producer_id=known.next_id, previous_id=known.producer_id, next_id=NO_PRODUCER_ID, epoch=0)
    return after


def producer_after(known: Transaction) -> ProducerIdAndEpoch:
    """Return the producer id and epoch to use after a transaction whose end is recorded."""
    if known.client_version >= 2 and known.next_id != NO_PRODUCER_ID:
        return ProducerIdAndEpoch(known.next_id, 0)
    return ProducerIdAndEpoch(known.producer_id, known.epoch)

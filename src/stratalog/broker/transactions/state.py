"""A transactional id and the transaction that its producer has under way: what may follow what. Pure.

A `Transaction` never changes. Each function takes one as it is, and what a client requests, and returns a
`TransactionStep`: Kafka's error, or the transaction as it will be once that is in the log. So nothing is shown that is
not written.

The rules are Kafka 4.1's. Clients of transaction.version 2 (KIP-890) get another epoch with each transaction's end;
those that came before keep theirs. PrepareEpochFence, which Kafka has in memory only and never writes, is not entered:
an epoch is fenced, and its transaction prepared to be aborted, in one step. The highest epoch, 32767, is never a
client's, so that it can always be fenced.
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
_ID_BYTES = 1_000  # of a transactional id without its name and partitions
_PARTITION_BYTES = 300
NEVER_MS = 2**31 - 1  # a timeout that never comes, as Kafka has it (KIP-939)


class TransactionState(IntEnum):
    """By the numbers that records have."""

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
        """As clients are told: PrepareCommit."""
        return "".join(word.capitalize() for word in self.name.split("_"))


STATES = {state.title: state for state in TransactionState}
_PREPARED = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
_AT_REST = (TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
_COMPLETE = (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)


class ProducerIdAndEpoch(NamedTuple):
    """A producer as its request names it."""

    producer_id: int
    epoch: int


class Transaction(NamedTuple):
    transactional_id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: int = NO_TIME
    updated_ms: int = NO_TIME
    client_version: int = 0  # transaction.version of the client whose request made it what it is
    last_epoch: int = NO_EPOCH  # what the producer may still think it has; not in the log
    previous_id: int = NO_PRODUCER_ID  # what it had before the epochs ran out
    next_id: int = NO_PRODUCER_ID  # what it gets when this transaction is complete
    own_timeout_ms: int = NO_TIME  # the producer's, while it waits for a decision and `timeout_ms` is how long for

    @property
    def state_bytes(self) -> int:
        """What it takes in memory."""
        return _ID_BYTES + 3 * text_bytes(self.transactional_id) + _PARTITION_BYTES * len(self.partitions)

    @property
    def is_prepared(self) -> bool:
        """Whether it is decided how it ends, and the markers are on their way."""
        return self.state in _PREPARED

    @property
    def is_at_rest(self) -> bool:
        return self.state in _AT_REST

    @property
    def is_exhausted(self) -> bool:
        return self.epoch >= HIGHEST_EPOCH - 1

    @property
    def awaits_decision(self) -> bool:
        """Whether its producer is done with it, and leaves it to another to say how it ends (two_phase.py)."""
        return self.state is TransactionState.ONGOING and self.own_timeout_ms != NO_TIME

    def has_timed_out(self, now_ms: int) -> bool:
        if self.state is not TransactionState.ONGOING or self.timeout_ms == NEVER_MS:
            return False
        return self.started_ms + self.timeout_ms < now_ms

    def has_expired(self, now_ms: int, after_ms: int) -> bool:
        return self.is_at_rest and self.updated_ms <= now_ms - after_ms


class TransactionStep(NamedTuple):
    """What a request leads to. No error and no transaction: what it asks for is so already."""

    error: ErrorCode
    transaction: Transaction | None = None
    needs_id: bool = False  # come again with a new producer id


_NOTHING = TransactionStep(ErrorCode.none)
_NEEDS_ID = TransactionStep(ErrorCode.none, needs_id=True)
_FENCED = TransactionStep(ErrorCode.producer_fenced)
_BUSY = TransactionStep(ErrorCode.concurrent_transactions)
_OTHER_ID = TransactionStep(ErrorCode.invalid_producer_id_mapping)
_WRONG_STATE = TransactionStep(ErrorCode.invalid_txn_state)


# InitProducerId


def begin(transactional_id: str, new_id: int, timeout_ms: int, now_ms: int) -> Transaction:
    """Of an id that was not known."""
    return Transaction(transactional_id, new_id, 0, timeout_ms, updated_ms=now_ms)


def initialize(
    known: Transaction, timeout_ms: int, claimed: ProducerIdAndEpoch | None, now_ms: int, new_id: int | None
) -> TransactionStep:
    """A producer starts under this id, or, with `claimed`, goes on after an error (KIP-360)."""
    if claimed is not None and not _may_claim(known, claimed):
        return _FENCED
    if known.is_prepared:
        return _BUSY
    if known.state is TransactionState.ONGOING:
        return TransactionStep(
            ErrorCode.concurrent_transactions, fence(known, now_ms)
        )  # and comes again, to get its epoch
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
    if claimed.epoch == known.last_epoch:  # it comes again: the answer got lost
        return _started(known, known.epoch, known.last_epoch, timeout_ms, now_ms)
    return _FENCED


def _may_claim(known: Transaction, claimed: ProducerIdAndEpoch) -> bool:
    if claimed.producer_id == known.producer_id:
        return True
    return claimed.producer_id == known.previous_id and claimed.epoch >= HIGHEST_EPOCH - 1


def _must_rotate(known: Transaction, claimed: ProducerIdAndEpoch | None) -> bool:
    """Whether the next epoch is one of another producer id."""
    if claimed is None or claimed.epoch == known.epoch:
        return known.is_exhausted
    return known.epoch == HIGHEST_EPOCH and claimed.epoch == known.last_epoch  # it was fenced with the last of all


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
    """Take the epoch away from whoever has it, and abort what it has open: it was replaced, or took too long.

    Whoever had it may learn of the abort, by ending the transaction or by going on from the epoch before."""
    return _prepared(known, TransactionState.PREPARE_ABORT, 2, NO_PRODUCER_ID, now_ms)


# AddPartitionsToTxn, AddOffsetsToTxn


def add(
    known: Transaction, producer: ProducerIdAndEpoch, partitions: frozenset[TopicPartition], version: int, now_ms: int
) -> TransactionStep:
    if known.producer_id != producer.producer_id:
        return _OTHER_ID
    if (
        known.epoch != producer.epoch or producer.epoch == HIGHEST_EPOCH
    ):  # which is nobody's: what it opened could not be fenced
        return _FENCED
    if known.is_prepared:
        return _BUSY
    if known.awaits_decision:
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
    """Whether the producer has the partition in a transaction that is open."""
    if known.producer_id != producer.producer_id:
        return ErrorCode.invalid_producer_id_mapping
    if known.epoch != producer.epoch:
        return ErrorCode.producer_fenced
    if known.is_prepared:
        return ErrorCode.concurrent_transactions
    if known.awaits_decision:
        return ErrorCode.invalid_txn_state
    return ErrorCode.none if partition in known.partitions else ErrorCode.transaction_abortable


# EndTxn


def end(
    known: Transaction, producer: ProducerIdAndEpoch, *, commit: bool, version: int, now_ms: int, new_id: int | None
) -> TransactionStep:
    if version < 2:
        return _end_keeping_epoch(known, producer, commit, now_ms)
    return _end_with_next_epoch(known, producer, commit, now_ms, new_id)


def _end_keeping_epoch(known: Transaction, producer: ProducerIdAndEpoch, commit: bool, now_ms: int) -> TransactionStep:
    if known.producer_id != producer.producer_id:
        return _OTHER_ID
    if known.epoch != producer.epoch:
        return _FENCED
    prepared = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
    if known.state is TransactionState.ONGOING:
        return TransactionStep(ErrorCode.none, _prepared(known, prepared, 0, NO_PRODUCER_ID, now_ms))
    if known.state is prepared:
        return _BUSY
    return _NOTHING if known.state is completed(prepared) else _WRONG_STATE


def _end_with_next_epoch(
    known: Transaction, producer: ProducerIdAndEpoch, commit: bool, now_ms: int, new_id: int | None
) -> TransactionStep:
    """KIP-890. The same epoch again is another request; a repetition is known by the epoch before."""
    is_past_rotation = (
        known.previous_id == producer.producer_id and producer.epoch == HIGHEST_EPOCH - 1 and known.epoch == 0
    )
    if known.producer_id != producer.producer_id and not is_past_rotation:
        return _OTHER_ID
    is_repeated = is_past_rotation or known.epoch == producer.epoch + 1
    if not _may_end(known, producer, is_repeated, is_past_rotation):
        return _FENCED
    prepared = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
    if known.is_prepared:
        return _BUSY if known.state is prepared else _WRONG_STATE
    if known.epoch == HIGHEST_EPOCH and not is_past_rotation:
        return _FENCED  # it took too long in its last epoch; what it would go on with is nobody's
    if known.state in _COMPLETE and is_repeated:
        return _NOTHING if known.state is completed(prepared) else _WRONG_STATE
    if known.state is not TransactionState.ONGOING and commit:
        return _WRONG_STATE
    if known.is_exhausted and new_id is None:
        return _NEEDS_ID
    next_id = new_id if known.is_exhausted and new_id is not None else NO_PRODUCER_ID
    return TransactionStep(ErrorCode.none, _prepared(known, prepared, 2, next_id, now_ms))


def _may_end(known: Transaction, producer: ProducerIdAndEpoch, is_repeated: bool, is_past_rotation: bool) -> bool:
    if known.is_prepared:
        return is_repeated and not is_past_rotation
    return known.epoch == producer.epoch or (known.state in _COMPLETE and is_repeated)


def _prepared(known: Transaction, state: TransactionState, version: int, next_id: int, now_ms: int) -> Transaction:
    epoch, last_epoch = known.epoch, known.last_epoch
    if version >= 2:
        epoch, last_epoch = min(epoch + 1, HIGHEST_EPOCH), epoch
    return known._replace(
        state=state,
        epoch=epoch,
        last_epoch=last_epoch,
        next_id=next_id,
        # One that is aborted before it began has to begin some time.
        started_ms=known.started_ms if known.state is TransactionState.ONGOING else now_ms,
        updated_ms=now_ms,
        client_version=version,
        timeout_ms=known.own_timeout_ms if known.awaits_decision else known.timeout_ms,
        own_timeout_ms=NO_TIME,
    )


def completed(prepared: TransactionState) -> TransactionState:
    return (
        TransactionState.COMPLETE_COMMIT
        if prepared is TransactionState.PREPARE_COMMIT
        else TransactionState.COMPLETE_ABORT
    )


def complete(known: Transaction, now_ms: int) -> Transaction:
    """All markers are written. What the producer goes on with is what it was told when it ended the transaction."""
    done = known._replace(state=completed(known.state), partitions=frozenset(), updated_ms=now_ms)
    if known.client_version >= 2 and known.next_id != NO_PRODUCER_ID:
        return done._replace(producer_id=known.next_id, previous_id=known.producer_id, next_id=NO_PRODUCER_ID, epoch=0)
    return done


def producer_after(known: Transaction) -> ProducerIdAndEpoch:
    """What the producer has to use once a prepared transaction is complete."""
    if known.client_version >= 2 and known.next_id != NO_PRODUCER_ID:
        return ProducerIdAndEpoch(known.next_id, 0)
    return ProducerIdAndEpoch(known.producer_id, known.epoch)

"""Two-phase transactions: producers prepare their transactions, and one append ends any number of them.

1. A producer *prepares* its open transaction: the transaction is complete, and the producer's own timeout no longer
   ends it. It may get a limit of its own for the time that it stays prepared.
2. A client that has collected prepared transactions *ends* them together. Their next states, all PrepareCommit or all
   PrepareAbort, go to `__transaction_state` as one record batch.

That append decides all of them. Before it none of them has ended; after it all of them have, even if the broker is
killed: a log has a batch as a whole or not at all, and a broker that reads PrepareCommit at its start writes the
markers. A batch lies in one partition, so the transactional ids of a request must share one.

All transactions are checked before anything is written, and nothing awaits between the checks and the write. A repeated
request gets the same response. If one of the transactions was aborted after its time limit, the request is refused as a
whole, so nothing is committed in part.

An InitProducerId for the id of a prepared transaction aborts it, like any other open transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from stratalog.broker.transactions import state
from stratalog.broker.transactions.coordinator import Ids, TransactionCoordinator
from stratalog.broker.transactions.state import (
    NEVER_MS,
    ProducerIdAndEpoch,
    Transaction,
    TransactionState,
    TransactionStep,
)
from stratalog.clock import Clock
from stratalog.errors import StorageError, StratalogError
from stratalog.protocol.error_codes import ErrorCode

MOST_MEMBERS = 10_000  # of one request
_VERSION = 2  # transaction.version: an end takes the epoch away from the producer


class PreparedProducer(NamedTuple):
    """A transactional id, and its producer id and producer epoch at the time it was prepared."""

    transactional_id: str
    producer: ProducerIdAndEpoch


class Refusal(NamedTuple):
    """The error of a request that changed nothing."""

    error: ErrorCode
    reason: str


# Transitions. Pure.


def prepare(known: Transaction, producer: ProducerIdAndEpoch, within_ms: int, now_ms: int) -> TransactionStep:
    """Prepare an open transaction. It is aborted if it is not ended within `within_ms`; NEVER_MS is no limit."""
    if known.producer_id != producer.producer_id:
        return TransactionStep(ErrorCode.invalid_producer_id_mapping)
    if known.epoch != producer.epoch:
        return TransactionStep(ErrorCode.producer_fenced)
    if known.awaits_end:
        return TransactionStep(ErrorCode.none)
    if known.state is not TransactionState.ONGOING:
        return TransactionStep(ErrorCode.concurrent_transactions if known.is_ending else ErrorCode.invalid_txn_state)
    # Stored as a timeout from the begin of the transaction, so that every broker, Kafka's too, can read it.
    open_ms = max(now_ms - known.started_ms, 0)
    timeout_ms = NEVER_MS if within_ms >= NEVER_MS - open_ms else open_ms + within_ms
    return TransactionStep(
        ErrorCode.none, known._replace(timeout_ms=timeout_ms, own_timeout_ms=known.timeout_ms, updated_ms=now_ms)
    )


def end(
    known: Transaction, producer: ProducerIdAndEpoch, *, commit: bool, now_ms: int, new_id: int | None
) -> TransactionStep:
    """Commit or abort a prepared transaction. No error and no transaction: it has already ended this way."""
    if known.awaits_end:
        return state.end(known, producer, commit=commit, version=_VERSION, now_ms=now_ms, new_id=new_id)
    if not _has_just_ended(known, producer):
        is_other_producer = producer.producer_id not in (known.producer_id, known.previous_id)
        error = ErrorCode.invalid_producer_id_mapping if is_other_producer else ErrorCode.producer_fenced
        return TransactionStep(
            ErrorCode.invalid_txn_state if ProducerIdAndEpoch(known.producer_id, known.epoch) == producer else error
        )
    ending = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
    is_same_end = known.state is ending or known.state is state.completed(ending)
    return TransactionStep(ErrorCode.none if is_same_end else ErrorCode.invalid_txn_state)


def _has_just_ended(known: Transaction, producer: ProducerIdAndEpoch) -> bool:
    """Return whether the id's last step was the end of a transaction of this producer."""
    if known.state in (TransactionState.EMPTY, TransactionState.ONGOING):
        return False
    if known.producer_id == producer.producer_id:
        return known.epoch == producer.epoch + 1
    return known.previous_id == producer.producer_id and producer.epoch == state.HIGHEST_EPOCH - 1 and known.epoch == 0


class TwoPhase:
    """The requests. Runs on the event loop's thread, like the coordinator."""

    def __init__(self, coordinator: TransactionCoordinator, ids: Ids, clock: Clock) -> None:
        self._coordinator = coordinator
        self._ids = ids
        self._clock = clock

    def prepare(self, member: PreparedProducer, within_ms: int) -> Refusal | None:
        known = self._known(member)
        if isinstance(known, Refusal):
            return known
        error = self._coordinator.take(prepare(known, member.producer, within_ms, self._clock.now_ms()))
        return None if error is ErrorCode.none else Refusal(error, _mismatch(known, member))

    def refuse_while_loading(self) -> Refusal | None:
        """Return a refusal until all transactions have been read: a list of ids by prefix would not be complete."""
        if not self._coordinator.loading.is_in_progress:
            return None
        return Refusal(
            ErrorCode.coordinator_load_in_progress, "the broker is still reading its transactions; retry the request"
        )

    def prepared(self, prefix: str) -> list[Transaction]:
        """Return the prepared transactions of ids with this prefix, sorted by id."""
        matches = [
            transaction
            for transaction in self._coordinator.all()
            if transaction.awaits_end and transaction.transactional_id.startswith(prefix)
        ]
        return sorted(matches, key=lambda transaction: transaction.transactional_id)

    async def finish(self, members: Sequence[PreparedProducer], *, commit: bool) -> Refusal | list[ProducerIdAndEpoch]:
        """Commit or abort prepared transactions, all or none. Return the next producer id and epoch of each member."""
        refusal = self._check_partitions(members)
        if refusal is not None:
            return refusal
        steps = self._steps(members, commit=commit, new_ids={})
        if not isinstance(steps, Refusal) and any(step.needs_id for step in steps):
            try:
                new_ids = {
                    member.transactional_id: await self._ids.next()
                    for member, step in zip(members, steps, strict=True)
                    if step.needs_id
                }
            except StorageError as error:
                return Refusal(ErrorCode.coordinator_load_in_progress, f"no new producer id is available: {error}")
            steps = self._steps(members, commit=commit, new_ids=new_ids)  # again: the states may be others by now
        if isinstance(steps, Refusal):
            return steps
        refusal = self._write(steps)
        if refusal is not None:
            return refusal
        return await self._complete(members)

    def _check_partitions(self, members: Sequence[PreparedProducer]) -> Refusal | None:
        """Refuse members that are listed twice, or that do not share a partition of __transaction_state."""
        seen: set[str] = set()
        id_by_partition: dict[int, str] = {}
        for member in members:
            if member.transactional_id in seen:
                reason = f"transactional id {member.transactional_id!r} is listed twice; list each id once"
                return Refusal(ErrorCode.invalid_request, reason)
            seen.add(member.transactional_id)
            partition = self._coordinator.loading.partition_of(member.transactional_id)
            id_by_partition.setdefault(partition, member.transactional_id)
        if len(id_by_partition) > 1:
            (partition, transactional_id), (other_partition, other_id), *_ = id_by_partition.items()
            return Refusal(
                ErrorCode.invalid_request,
                f"transactional id {transactional_id!r} is in partition {partition} of __transaction_state and "
                f"{other_id!r} in partition {other_partition}; only ids of one partition can be ended together",
            )
        return None

    def _steps(
        self, members: Sequence[PreparedProducer], *, commit: bool, new_ids: dict[str, int]
    ) -> list[TransactionStep] | Refusal:
        now_ms = self._clock.now_ms()
        steps = []
        for member in members:
            known = self._known(member)
            if isinstance(known, Refusal):
                return known
            new_id = new_ids.get(member.transactional_id)
            step = end(known, member.producer, commit=commit, now_ms=now_ms, new_id=new_id)
            if step.error is not ErrorCode.none:
                return Refusal(step.error, _mismatch(known, member))
            steps.append(step)
        ended = sum(step.transaction is None and not step.needs_id for step in steps)
        if 0 < ended < len(steps):
            return Refusal(
                ErrorCode.invalid_txn_state,
                f"{ended} of the {len(steps)} transactions have already ended; all or none of them must be open",
            )
        return steps

    def _write(self, steps: Sequence[TransactionStep]) -> Refusal | None:
        transactions = [step.transaction for step in steps if step.transaction is not None]
        try:
            if transactions:
                self._coordinator.take_together(transactions)
        except StratalogError as error:
            return Refusal(ErrorCode(error.code), f"the end of the transactions could not be written: {error}")
        return None

    async def _complete(self, members: Sequence[PreparedProducer]) -> list[ProducerIdAndEpoch]:
        """Write the markers. The outcome is fixed: timers retry what the disk refuses, and if the client disconnects, a
        task goes on."""
        producers: list[ProducerIdAndEpoch] = []
        try:
            for member in members:
                await self._coordinator.complete(member.transactional_id)
                known = self._coordinator.get(member.transactional_id)
                producers.append(member.producer if known is None else state.producer_after(known))
                await asyncio.sleep(0)  # lets the event loop serve other requests
        except asyncio.CancelledError:
            self._coordinator.complete_soon([member.transactional_id for member in members[len(producers) :]])
            raise
        return producers

    async def abort(self, prefix: str, *, close: bool = False) -> list[str]:
        """Abort the open transactions of all ids with this prefix, prepared or not, and fence their producers. Return
        the ids of those that are complete. With `close`, no transaction may begin under the prefix from now on, and
        idle ids are returned too: no producer will use them again."""
        if close:
            self._coordinator.closed_prefixes.close(prefix)
        returned = []
        for listed in self._coordinator.all():
            transactional_id = listed.transactional_id
            if not transactional_id.startswith(prefix):
                continue
            known = self._coordinator.get(transactional_id)  # as it is now: other requests ran since the last id
            was_open = listed.state is TransactionState.ONGOING
            if was_open and known is not None and known.state is TransactionState.ONGOING:
                fenced = TransactionStep(ErrorCode.none, state.fence(known, self._clock.now_ms()))
                if self._coordinator.take(fenced) is ErrorCode.none:
                    await self._coordinator.complete(transactional_id)
                known = self._coordinator.get(transactional_id)
                await asyncio.sleep(0)  # lets the event loop serve other requests
            elif not close:
                continue
            if known is None or known.is_idle:  # else a marker could not be written yet
                returned.append(transactional_id)
        return returned

    def forget(self, transactional_ids: Sequence[str]) -> Refusal | None:
        """Delete ids that no producer will use again, before they expire. Unknown ids are ignored."""
        idle_ids = []
        for transactional_id in dict.fromkeys(transactional_ids):
            error = self._coordinator.status(transactional_id)
            if error is not ErrorCode.none:
                return Refusal(error, f"transactional id {transactional_id!r} is not available yet; retry the request")
            known = self._coordinator.get(transactional_id)
            if known is None:
                continue
            if not known.is_idle:
                reason = (
                    f"transactional id {transactional_id!r} has a transaction that is {describe(known)}; end it first"
                )
                return Refusal(ErrorCode.invalid_txn_state, reason)
            idle_ids.append(transactional_id)
        try:
            self._coordinator.forget(idle_ids)
        except StratalogError as error:
            return Refusal(ErrorCode(error.code), f"the deletion of transactional ids could not be written: {error}")
        return None

    def _known(self, member: PreparedProducer) -> Transaction | Refusal:
        known = self._coordinator.known(member.transactional_id)
        if isinstance(known, Transaction):
            return known
        reason = {
            ErrorCode.invalid_producer_id_mapping: "is unknown: it was never used, has expired or was forgotten",
            ErrorCode.invalid_request: "is not valid: use 1 to 32767 bytes of UTF-8",
        }.get(known, "is not available yet; retry the request")
        return Refusal(known, f"transactional id {member.transactional_id!r} {reason}")


def describe(known: Transaction) -> str:
    return "prepared" if known.awaits_end else known.state.title


def _mismatch(known: Transaction, member: PreparedProducer) -> str:
    requested = member.producer
    return (
        f"transactional id {known.transactional_id!r} is {describe(known)} with producer id {known.producer_id} and "
        f"producer epoch {known.epoch}; the request has producer id {requested.producer_id} and producer epoch "
        f"{requested.epoch}"
    )

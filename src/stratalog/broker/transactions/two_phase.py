"""Transactions that their producers leave to another to end, and the one append that ends any number of them.

A producer *prepares* its open transaction: what it wrote is whole, and from then on its own timeout does not count.
Whoever gathers such transactions then *decides*: the next states of all of them, PrepareCommit or PrepareAbort, go into
`__transaction_state` as one record batch. That append is the decision. Before it none of them has ended, after it all
of them have, also where the broker is killed: a batch is in a log whole or not at all, and a broker that finds
PrepareCommit at its start writes the markers. One batch lies in one partition, so only ids that share one are taken.

All are looked at before anything is written, and nothing waits between the look and the write. A decision that comes
again gets the same answer. A prepared transaction may also be given a time to be decided in; being aborted after that
harms nobody, as a decision that counts on it is refused as a whole.

An InitProducerId for the id of a prepared transaction aborts it, as with any other that is open.
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

MOST_MEMBERS = 10_000  # of one decision
_VERSION = 2  # of transactions: an end takes the epoch away from whoever had it


class PreparedProducer(NamedTuple):
    """A transactional id, and its producer id and producer epoch at the time it was prepared."""

    transactional_id: str
    producer: ProducerIdAndEpoch


class Refusal(NamedTuple):
    """Why nothing was changed."""

    error: ErrorCode
    reason: str


# What may follow what. Pure.


def prepare(known: Transaction, producer: ProducerIdAndEpoch, within_ms: int, now_ms: int) -> TransactionStep:
    """`within_ms`: how long the decision may take; NEVER_MS is for ever."""
    if known.producer_id != producer.producer_id:
        return TransactionStep(ErrorCode.invalid_producer_id_mapping)
    if known.epoch != producer.epoch:
        return TransactionStep(ErrorCode.producer_fenced)
    if known.awaits_decision:
        return TransactionStep(ErrorCode.none)
    if known.state is not TransactionState.ONGOING:
        return TransactionStep(ErrorCode.concurrent_transactions if known.is_prepared else ErrorCode.invalid_txn_state)
    # Kept as a timeout from the transaction's begin, which is how every broker reads it.
    open_ms = max(now_ms - known.started_ms, 0)
    timeout_ms = NEVER_MS if within_ms >= NEVER_MS - open_ms else open_ms + within_ms
    return TransactionStep(
        ErrorCode.none, known._replace(timeout_ms=timeout_ms, own_timeout_ms=known.timeout_ms, updated_ms=now_ms)
    )


def decide(
    known: Transaction, producer: ProducerIdAndEpoch, *, commit: bool, now_ms: int, new_id: int | None
) -> TransactionStep:
    """No error and no transaction: it was decided so before."""
    if known.awaits_decision:
        return state.end(known, producer, commit=commit, version=_VERSION, now_ms=now_ms, new_id=new_id)
    prepared = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
    if not _was_ended_as(known, producer):
        foreign = producer.producer_id not in (known.producer_id, known.previous_id)
        error = ErrorCode.invalid_producer_id_mapping if foreign else ErrorCode.producer_fenced
        return TransactionStep(
            ErrorCode.invalid_txn_state if ProducerIdAndEpoch(known.producer_id, known.epoch) == producer else error
        )
    is_so = known.state is prepared or known.state is state.completed(prepared)
    return TransactionStep(ErrorCode.none if is_so else ErrorCode.invalid_txn_state)


def _was_ended_as(known: Transaction, producer: ProducerIdAndEpoch) -> bool:
    """Whether the last thing that happened to the id is the end of what this producer had open."""
    if known.state in (TransactionState.EMPTY, TransactionState.ONGOING):
        return False
    if known.producer_id == producer.producer_id:
        return known.epoch == producer.epoch + 1
    return known.previous_id == producer.producer_id and producer.epoch == state.HIGHEST_EPOCH - 1 and known.epoch == 0


class TwoPhase:
    """What can be asked. Runs on the event loop's thread, as the coordinator does."""

    def __init__(self, coordinator: TransactionCoordinator, ids: Ids, clock: Clock) -> None:
        self._coordinator = coordinator
        self._ids = ids
        self._clock = clock

    def prepare(self, member: PreparedProducer, within_ms: int) -> Refusal | None:
        known = self._known(member)
        if isinstance(known, Refusal):
            return known
        error = self._coordinator.take(prepare(known, member.producer, within_ms, self._clock.now_ms()))
        return None if error is ErrorCode.none else Refusal(error, _reason(known, member))

    def refuse_while_loading(self) -> Refusal | None:
        """After a start, until all that there is has been read. Who looks for ids by prefix would miss some."""
        if not self._coordinator.loading.is_in_progress:
            return None
        return Refusal(
            ErrorCode.coordinator_load_in_progress, "the broker has not read all transactions yet; ask again"
        )

    def prepared(self, prefix: str) -> list[Transaction]:
        """Those that wait for a decision, by id."""
        found = [one for one in self._coordinator.all() if one.awaits_decision]
        return sorted(
            (one for one in found if one.transactional_id.startswith(prefix)), key=lambda one: one.transactional_id
        )

    async def finish(self, members: Sequence[PreparedProducer], *, commit: bool) -> Refusal | list[ProducerIdAndEpoch]:
        """Who each producer is from now on."""
        refusal = self._share_a_partition(members)
        if refusal is not None:
            return refusal
        steps = self._decisions(members, commit=commit, new_ids={})
        if not isinstance(steps, Refusal) and any(step.needs_id for step in steps):
            try:
                new_ids = {
                    member.transactional_id: await self._ids.next()
                    for member, step in zip(members, steps, strict=True)
                    if step.needs_id
                }
            except StorageError as error:
                return Refusal(ErrorCode.coordinator_load_in_progress, f"no new producer id could be had: {error}")
            steps = self._decisions(members, commit=commit, new_ids=new_ids)  # they may have changed meanwhile
        if isinstance(steps, Refusal):
            return steps
        refusal = self._write(steps)
        if refusal is not None:
            return refusal
        return await self._finish(members)

    def _share_a_partition(self, members: Sequence[PreparedProducer]) -> Refusal | None:
        if len({member.transactional_id for member in members}) < len(members):
            return Refusal(ErrorCode.invalid_request, "a transactional id is named twice")
        partition_of = self._coordinator.loading.partition_of
        homes: dict[int, str] = {}
        for member in members:
            homes.setdefault(partition_of(member.transactional_id), member.transactional_id)
        if len(homes) > 1:
            (first, one), (second, other), *_ = homes.items()
            return Refusal(
                ErrorCode.invalid_request,
                f"{one!r} lies in partition {first} of __transaction_state and {other!r} in {second}; only "
                "transactions of one partition can be ended together",
            )
        return None

    def _decisions(
        self, members: Sequence[PreparedProducer], *, commit: bool, new_ids: dict[str, int]
    ) -> list[TransactionStep] | Refusal:
        now_ms = self._clock.now_ms()
        steps = []
        for member in members:
            known = self._known(member)
            if isinstance(known, Refusal):
                return known
            new_id = new_ids.get(member.transactional_id)
            step = decide(known, member.producer, commit=commit, now_ms=now_ms, new_id=new_id)
            if step.error is not ErrorCode.none:
                return Refusal(step.error, _reason(known, member))
            steps.append(step)
        decided = sum(step.transaction is None and not step.needs_id for step in steps)
        if 0 < decided < len(steps):
            return Refusal(
                ErrorCode.invalid_txn_state, f"{decided} of {len(steps)} were ended before, without the others"
            )
        return steps

    def _write(self, steps: Sequence[TransactionStep]) -> Refusal | None:
        transactions = [step.transaction for step in steps if step.transaction is not None]
        try:
            if transactions:
                self._coordinator.take_together(transactions)
        except StratalogError as error:
            return Refusal(ErrorCode(error.code), f"the decision could not be written: {error}")
        return None

    async def _finish(self, members: Sequence[PreparedProducer]) -> list[ProducerIdAndEpoch]:
        """The markers. It is decided: what the disk refuses is tried again later, and who hangs up stops nothing."""
        producers: list[ProducerIdAndEpoch] = []
        try:
            for member in members:
                await self._coordinator.finish(member.transactional_id)
                known = self._coordinator.get(member.transactional_id)
                producers.append(member.producer if known is None else state.producer_after(known))
                await asyncio.sleep(0)  # others are served meanwhile
        except asyncio.CancelledError:
            self._coordinator.finish_soon([member.transactional_id for member in members[len(producers) :]])
            raise
        return producers

    async def abort(self, prefix: str, *, close: bool = False) -> list[str]:
        """Abort the open transactions of all ids with this prefix, prepared or not, and fence their producers. Return
        the ids of those that have ended. With `close`, no transaction may begin under the prefix from now on, and idle
        ids are returned too: nobody will use them again."""
        if close:
            self._coordinator.closed_prefixes.close(prefix)
        aborted = []
        for known in self._coordinator.all():
            if not known.transactional_id.startswith(prefix):
                continue
            if known.state is not TransactionState.ONGOING:
                if close and known.is_at_rest:
                    aborted.append(known.transactional_id)
                continue
            current = self._coordinator.get(known.transactional_id)  # others were served meanwhile
            if current is None or current.state is not TransactionState.ONGOING:
                continue
            fenced = TransactionStep(ErrorCode.none, state.fence(current, self._clock.now_ms()))
            if self._coordinator.take(fenced) is ErrorCode.none:
                await self._coordinator.finish(known.transactional_id)
                current = self._coordinator.get(known.transactional_id)
                if current is None or current.is_at_rest:  # else a marker could not be written yet
                    aborted.append(known.transactional_id)
            await asyncio.sleep(0)
        return aborted

    def forget(self, transactional_ids: Sequence[str]) -> Refusal | None:
        """Ids that nobody will use again, instead of their expiry. Those that are not known are forgotten already."""
        known = []
        for transactional_id in dict.fromkeys(transactional_ids):
            error = self._coordinator.status(transactional_id)
            if error is not ErrorCode.none:
                return Refusal(error, f"transactional id {transactional_id!r} can't be looked up now")
            one = self._coordinator.get(transactional_id)
            if one is None:
                continue
            if not one.is_at_rest:
                reason = (
                    f"transactional id {transactional_id!r} has a transaction that is {describe(one)}; end it first"
                )
                return Refusal(ErrorCode.invalid_txn_state, reason)
            known.append(transactional_id)
        try:
            self._coordinator.forget(known)
        except StratalogError as error:
            return Refusal(ErrorCode(error.code), f"could not be written: {error}")
        return None

    def _known(self, member: PreparedProducer) -> Transaction | Refusal:
        known = self._coordinator.known(member.transactional_id)
        if isinstance(known, Transaction):
            return known
        reason = {
            ErrorCode.invalid_producer_id_mapping: "is not known: it was never used, has expired or was forgotten",
            ErrorCode.invalid_request: "is none that can be",
        }.get(known, "can't be looked up now; ask again")
        return Refusal(known, f"transactional id {member.transactional_id!r} {reason}")


def describe(known: Transaction) -> str:
    return "prepared" if known.awaits_decision else known.state.title


def _reason(known: Transaction, member: PreparedProducer) -> str:
    return (
        f"transactional id {known.transactional_id!r} is {describe(known)} with producer id {known.producer_id} and "
        f"epoch {known.epoch}; asked was for {member.producer.producer_id} and {member.producer.epoch}"
    )

"""The coordinator: every transactional id of this broker, its transaction, the timers, and the log of all of it.

A step is written to `__transaction_state` before anybody is told of it. An end takes two: PrepareCommit or
PrepareAbort, from which on it is decided; then, with a marker in each of its partitions, CompleteCommit or
CompleteAbort. A broker that is killed in between writes the markers (again) at its next start. Where a marker can't be
written for the disk's sake, it is tried again, and the producer hears CONCURRENT_TRANSACTIONS meanwhile.

Runs on the event loop's thread. Between the look at a transaction and the write of its next step nothing waits, so no
transition is ever under way when another request comes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from stratalog.broker.groups.classic_rebalance import append_error
from stratalog.broker.groups.group import TimerHandle
from stratalog.broker.partition import Partition
from stratalog.broker.state_budget import StateBudget
from stratalog.broker.transactions import state
from stratalog.broker.transactions.closed_prefixes import ClosedPrefixes
from stratalog.broker.transactions.config import TransactionConfig
from stratalog.broker.transactions.loading import Loading
from stratalog.broker.transactions.markers import BUSY, Marker, MarkerWriter
from stratalog.broker.transactions.orphans import Orphans
from stratalog.broker.transactions.records import transaction_record, transaction_tombstone
from stratalog.broker.transactions.state import ProducerIdAndEpoch, Transaction, TransactionState, TransactionStep
from stratalog.broker.transactions.transactions_topic import TransactionsLog
from stratalog.clock import Clock
from stratalog.errors import StateBudgetError, StorageError, StratalogError
from stratalog.protocol.error_codes import ErrorCode
from stratalog.storage.names import TopicPartition

log = logging.getLogger(__name__)

NO_PRODUCER = ProducerIdAndEpoch(state.NO_PRODUCER_ID, state.NO_EPOCH)
_MARKERS_A_TURN = 100  # written before the loop has its turn
_RETRY_SECONDS = 1.0
_BUSY_SECONDS = 0.05  # until a partition is tried again that another thread held
_GIVES_UP = (  # of a partition: it is gone, or another owns the producer there
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.invalid_producer_epoch,
    ErrorCode.transaction_coordinator_fenced,
)

CallLater = Callable[[float, Callable[[], None]], TimerHandle]


class Ids(Protocol):
    """What of ProducerIds is used here."""

    async def next(self) -> int: ...

    def mind(self, producer_id: int) -> None: ...


class TransactionResponse(NamedTuple):
    """The result of a request, and the producer id and epoch that the producer goes on with."""

    error: ErrorCode
    producer: ProducerIdAndEpoch = NO_PRODUCER


class TransactionCoordinator:
    def __init__(
        self,
        config: TransactionConfig,
        clock: Clock,
        state_log: TransactionsLog,
        markers: MarkerWriter,
        ids: Ids,
        call_later: CallLater,
        budget: StateBudget,
    ) -> None:
        self.config = config
        self.markers = markers
        self.closed_prefixes = ClosedPrefixes()
        self._clock = clock
        self._log = state_log
        self._ids = ids
        self._call_later = call_later
        self._transactions: dict[str, Transaction] = {}
        self._state_bytes = 0
        self._budget = budget
        budget.include(lambda: self._state_bytes)
        self._ongoing: set[str] = set()
        self._left: dict[str, set[TopicPartition]] = {}  # partitions whose markers are missing
        self._finishing: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: dict[str, TimerHandle] = {}
        self.loading = Loading(state_log)

    # What is asked of it

    def get(self, transactional_id: str) -> Transaction | None:
        return self._transactions.get(transactional_id)

    def all(self) -> Iterable[Transaction]:
        return list(self._transactions.values())

    def status(self, transactional_id: str) -> ErrorCode:
        """Whether requests for an id can be served now."""
        return self.loading.status(transactional_id)

    async def initialize(
        self, transactional_id: str, timeout_ms: int, claimed: ProducerIdAndEpoch | None
    ) -> TransactionResponse:
        """InitProducerId: the id's producer from now on, and no other."""
        if not transactional_id:
            return TransactionResponse(ErrorCode.invalid_request)
        if not 0 < timeout_ms <= self.config.transaction_max_timeout_ms:
            return TransactionResponse(ErrorCode.invalid_transaction_timeout)
        error = await self.loading.prepare(transactional_id)
        if error is not ErrorCode.none:
            return TransactionResponse(error)
        step = self._initialize(transactional_id, timeout_ms, claimed, None)
        if step.needs_id:
            try:
                new_id = await self._ids.next()
            except StorageError:
                return TransactionResponse(
                    ErrorCode.coordinator_load_in_progress
                )  # all clients ask again after this one
            step = self._initialize(transactional_id, timeout_ms, claimed, new_id)  # it may have changed meanwhile
        error = self.take(step)
        if step.transaction is not None and step.transaction.is_prepared and error is step.error:
            await self.finish(transactional_id)
        if error is not ErrorCode.none or step.transaction is None:
            return TransactionResponse(error)
        return TransactionResponse(
            ErrorCode.none, ProducerIdAndEpoch(step.transaction.producer_id, step.transaction.epoch)
        )

    def _initialize(
        self, transactional_id: str, timeout_ms: int, claimed: ProducerIdAndEpoch | None, new_id: int | None
    ) -> TransactionStep:
        if self.closed_prefixes.covers(transactional_id):
            return TransactionStep(ErrorCode.producer_fenced)
        now_ms = self._clock.now_ms()
        known = self._transactions.get(transactional_id)
        if known is not None:
            return state.initialize(known, timeout_ms, claimed, now_ms, new_id)
        if new_id is None:
            return TransactionStep(ErrorCode.none, needs_id=True)
        return TransactionStep(ErrorCode.none, state.begin(transactional_id, new_id, timeout_ms, now_ms))

    def add(
        self,
        transactional_id: str | None,
        producer: ProducerIdAndEpoch,
        partitions: Iterable[TopicPartition],
        version: int,
    ) -> ErrorCode:
        """What the producer writes to these partitions is part of its transaction, which begins with the first."""
        known = self.known(transactional_id)
        if isinstance(known, ErrorCode):
            return known
        if known.state is not TransactionState.ONGOING and self.closed_prefixes.covers(known.transactional_id):
            return ErrorCode.producer_fenced
        return self.take(state.add(known, producer, frozenset(partitions), version, self._clock.now_ms()))

    def verify(
        self, transactional_id: str | None, producer: ProducerIdAndEpoch, partition: TopicPartition
    ) -> ErrorCode:
        known = self.known(transactional_id)
        return known if isinstance(known, ErrorCode) else state.verify(known, producer, partition)

    def known(self, transactional_id: str | None) -> Transaction | ErrorCode:
        if not transactional_id:
            return ErrorCode.invalid_request
        error = self.status(transactional_id)
        if error is not ErrorCode.none:
            return error
        return self._transactions.get(transactional_id, ErrorCode.invalid_producer_id_mapping)

    def end_at_once(
        self, transactional_id: str, producer: ProducerIdAndEpoch, *, commit: bool, version: int
    ) -> TransactionResponse | None:
        """As `end`, where nothing has to be waited for, as is usual; None where something has."""
        known = self.known(transactional_id)
        if isinstance(known, ErrorCode):
            return TransactionResponse(known)
        step = state.end(known, producer, commit=commit, version=version, now_ms=self._clock.now_ms(), new_id=None)
        if step.needs_id or len(known.partitions) > _MARKERS_A_TURN:
            return None
        error = self.take(step)
        if error is ErrorCode.none and step.transaction is not None:
            self._finish_at_once(step.transaction)
        return _ended(error, known, step, version)

    async def end(
        self, transactional_id: str, producer: ProducerIdAndEpoch, *, commit: bool, version: int
    ) -> TransactionResponse:
        """EndTxn. The identity in the answer is what a client of transaction.version 2 goes on with."""
        known = self.known(transactional_id)
        if isinstance(known, ErrorCode):
            return TransactionResponse(known)
        step = state.end(known, producer, commit=commit, version=version, now_ms=self._clock.now_ms(), new_id=None)
        if step.needs_id:
            try:
                new_id = await self._ids.next()
            except StorageError:
                return TransactionResponse(ErrorCode.coordinator_load_in_progress)
            known = self._transactions.get(transactional_id, known)  # it may have changed meanwhile
            step = state.end(
                known, producer, commit=commit, version=version, now_ms=self._clock.now_ms(), new_id=new_id
            )
        error = self.take(step)
        if error is ErrorCode.none and step.transaction is not None:
            await self.finish(transactional_id)
        return _ended(error, known, step, version)

    # Steps

    def take(self, step: TransactionStep) -> ErrorCode:
        """Write a step, and then let it count. The step's error, or why it could not be written."""
        transaction = step.transaction
        if transaction is None:
            return step.error
        transactional_id = transaction.transactional_id
        try:
            self._check_room(transaction)
            self._append(transactional_id, transaction)
        except StateBudgetError as error:
            # A new producer fails clearly; one that has its id backs off and asks again.
            return append_error(error) if transactional_id in self._transactions else ErrorCode.policy_violation
        except StratalogError as error:
            log.warning("transactional id %r: its state could not be written: %s", transactional_id, error)
            return append_error(error)
        self._put(transaction)
        return step.error

    def _check_room(self, transaction: Transaction) -> None:
        known = self._transactions.get(transaction.transactional_id)
        more = transaction.state_bytes - (0 if known is None else known.state_bytes)
        what = f"transactional id {transaction.transactional_id[:200]!r}"
        self._budget.check(more, what, is_new=known is None)

    def _append(self, transactional_id: str, transaction: Transaction | None) -> None:
        record = transaction_tombstone(transactional_id) if transaction is None else transaction_record(transaction)
        self._log.append(self.loading.partition_of(transactional_id), [record], self._clock.now_ms())

    def take_together(self, transactions: Sequence[Transaction]) -> None:
        """The next steps of several that share a partition of __transaction_state, as one batch: all are written, or
        none. Raises StratalogError."""
        partition = self.loading.partition_of(transactions[0].transactional_id)
        self._log.append(partition, [transaction_record(one) for one in transactions], self._clock.now_ms())
        for one in transactions:
            self._put(one)

    def forget(self, transactional_ids: Iterable[str]) -> None:
        """Ids that are at rest, by one batch a partition. Raises StratalogError: those up to there are forgotten."""
        homes: dict[int, list[str]] = {}
        for transactional_id in transactional_ids:
            homes.setdefault(self.loading.partition_of(transactional_id), []).append(transactional_id)
        for partition, names in homes.items():
            self._log.append(partition, [transaction_tombstone(name) for name in names], self._clock.now_ms())
            for name in names:
                self._drop(name)

    def _drop(self, transactional_id: str) -> None:
        self._state_bytes -= self._transactions.pop(transactional_id).state_bytes

    def _put(self, transaction: Transaction) -> None:
        transactional_id = transaction.transactional_id
        before = self._transactions.get(transactional_id)
        self._state_bytes += transaction.state_bytes - (0 if before is None else before.state_bytes)
        self._transactions[transactional_id] = transaction
        if transaction.state is TransactionState.ONGOING:
            self._ongoing.add(transactional_id)
        else:
            self._ongoing.discard(transactional_id)

    # Ends

    async def finish(self, transactional_id: str) -> None:
        """The markers of a prepared transaction, and then its completion. What fails is tried again later."""
        known = self._transactions.get(transactional_id)
        if known is None or not known.is_prepared or transactional_id in self._finishing:
            return
        self._finishing.add(transactional_id)
        left = self._left.setdefault(transactional_id, set(known.partitions))
        places = sorted(left)
        pause = _RETRY_SECONDS
        try:
            for start in range(0, len(places), _MARKERS_A_TURN):
                if start:
                    await asyncio.sleep(0)  # others are served meanwhile
                pause = min(pause, self._write_markers(known, places[start : start + _MARKERS_A_TURN], left))
            await self.markers.flush(known.partitions)
        except StratalogError as why:
            log.error("transactional id %r: its markers could not be flushed: %s", transactional_id, why)
            self._finish_after(_RETRY_SECONDS, transactional_id)
            return
        except asyncio.CancelledError:
            self.finish_soon([transactional_id])
            raise
        finally:
            self._finishing.discard(transactional_id)
        self._complete_if_done(known, left, pause)

    def _finish_at_once(self, known: Transaction) -> None:
        """As `finish`, for few partitions, of a transaction that was just prepared."""
        left = self._left[known.transactional_id] = set(known.partitions)
        pause = self._write_markers(known, sorted(left), left)
        if self.markers.must_flush(known.partitions):
            self._finish_later(known.transactional_id)
        else:
            self._complete_if_done(known, left, pause)

    def _complete_if_done(self, known: Transaction, left: set[TopicPartition], pause: float) -> None:
        transactional_id = known.transactional_id
        completion = TransactionStep(ErrorCode.none, state.complete(known, self._clock.now_ms()))
        if not left and self.take(completion) is ErrorCode.none:
            del self._left[transactional_id]
        else:
            self._finish_after(pause, transactional_id)

    def finish_soon(self, transactional_ids: Sequence[str]) -> None:
        """As `finish`, one after the other. For those whose end is decided and who asked for it has hung up."""
        if not self.loading.is_closed:
            self._start(self._finish_each(transactional_ids))

    async def _finish_each(self, transactional_ids: Sequence[str]) -> None:
        for transactional_id in transactional_ids:
            await self.finish(transactional_id)
            await asyncio.sleep(0)  # others are served meanwhile

    def _write_markers(
        self, known: Transaction, partitions: Iterable[TopicPartition], left: set[TopicPartition]
    ) -> float:
        """Those that have one, or can have none, are taken out of `left`. Return the seconds until the rest is due."""
        try:
            epoch = self._log.coordinator_epoch(self.loading.partition_of(known.transactional_id))
        except StratalogError as why:
            log.error("transactional id %r: could not be ended, will be tried again: %s", known.transactional_id, why)
            return _RETRY_SECONDS
        marker = Marker(known.producer_id, known.epoch, known.state is TransactionState.PREPARE_COMMIT, epoch)
        pause = _RETRY_SECONDS
        for partition in partitions:
            error = self.markers.write(partition, marker)
            if error is ErrorCode.none or error in _GIVES_UP:
                left.discard(partition)
            if error is BUSY:
                pause = _BUSY_SECONDS
            elif error is not ErrorCode.none:
                log.warning("transactional id %r: no marker in %s: %s", known.transactional_id, partition, error.name)
        return pause

    def _finish_after(self, seconds: float, transactional_id: str) -> None:
        self._at("finish " + transactional_id, seconds, lambda: self._finish_later(transactional_id))

    def _finish_later(self, transactional_id: str) -> None:
        self._start(self.finish(transactional_id))

    def _start(self, work: Awaitable[None]) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Time

    def abort_timed_out(self) -> None:
        now_ms = self._clock.now_ms()
        for transactional_id in list(self._ongoing):
            known = self._transactions[transactional_id]
            if not known.has_timed_out(now_ms):
                continue
            log.info("transactional id %r: open for longer than %d ms, aborted", transactional_id, known.timeout_ms)
            if self.take(TransactionStep(ErrorCode.none, state.fence(known, now_ms))) is ErrorCode.none:
                self._start(self.finish(transactional_id))

    def forget_expired(self) -> None:
        now_ms = self._clock.now_ms()
        for known in list(self._transactions.values()):
            if not known.has_expired(now_ms, self.config.transactional_id_expiration_ms):
                continue
            try:
                self._append(known.transactional_id, None)
            except StratalogError as error:
                log.error("transactional id %r: expired, but not deleted: %s", known.transactional_id, error)
            else:
                self._drop(known.transactional_id)

    def _every(self, name: str, interval_ms: int, call: Callable[[], None]) -> None:
        def fire() -> None:
            self._every(name, interval_ms, call)
            call()

        self._at(name, interval_ms / 1000, fire)

    def _at(self, name: str, seconds: float, call: Callable[[], None]) -> None:
        if self.loading.is_closed:
            return
        before = self._timers.pop(name, None)
        if before is not None:
            before.cancel()
        self._timers[name] = self._call_later(seconds, call)

    # Starting and stopping

    async def load(self, partitions: Iterable[Partition] = ()) -> None:
        """Read the whole of __transaction_state, once, at the start; what was being ended is ended now. `partitions`:
        those to look for orphans in."""
        async for transactions in self.loading.load():
            for transaction in transactions:
                self._put(transaction)
                self._ids.mind(max(transaction.producer_id, transaction.next_id))
        orphans = Orphans(self.all(), partitions if self.loading.is_complete else ())
        orphans.end(self, partial(self.markers.write, may_wait=True), self._clock.now_ms())
        for transaction in self.all():
            if transaction.is_prepared:
                await self.finish(transaction.transactional_id)
        orphans.fence(self, self._clock.now_ms())
        config = self.config
        self._every(
            "timeouts", config.transaction_abort_timed_out_transaction_cleanup_interval_ms, self.abort_timed_out
        )
        self._every("expiry", config.transaction_remove_expired_transaction_cleanup_interval_ms, self.forget_expired)

    def close(self) -> None:
        """The broker stops: no timer fires any more, and nothing is written."""
        self.loading.is_closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for task in self._tasks:
            task.cancel()


def _ended(error: ErrorCode, known: Transaction, step: TransactionStep, version: int) -> TransactionResponse:
    if error is not ErrorCode.none or version < 2:
        return TransactionResponse(error)
    if step.transaction is None:
        return TransactionResponse(error, ProducerIdAndEpoch(known.producer_id, known.epoch))
    return TransactionResponse(error, state.producer_after(step.transaction))

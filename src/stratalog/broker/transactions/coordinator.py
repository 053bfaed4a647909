"""The transaction coordinator: owns every transactional id of this broker, its transaction and the timers.

Each step is written to `__transaction_state` before a client learns of it. The end of a transaction takes these steps:

1. PrepareCommit or PrepareAbort is written. From here on the outcome is fixed.
2. Each partition gets a marker. If the disk refuses one, the coordinator retries; the producer gets
   CONCURRENT_TRANSACTIONS meanwhile.
3. CompleteCommit or CompleteAbort is written.

A broker that is killed between the steps writes the markers, again if need be, at its next start.

Runs on the event loop's thread. Nothing awaits between reading a transaction and writing its next step, so no request
ever meets a transition that is half done.
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
_MARKERS_A_TURN = 100  # written before other tasks of the event loop run
_RETRY_SECONDS = 1.0
_BUSY_SECONDS = 0.05  # until the retry, if another thread held the log
_NEEDS_NO_MARKER = (  # the partition is deleted, or has a newer epoch of the producer or of its coordinator
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.invalid_producer_epoch,
    ErrorCode.transaction_coordinator_fenced,
)

CallLater = Callable[[float, Callable[[], None]], TimerHandle]


class Ids(Protocol):
    """The part of ProducerIds that the coordinator needs."""

    async def next(self) -> int: ...

    def mind(self, producer_id: int) -> None: ...


class TransactionResponse(NamedTuple):
    """The result of a request, and the producer id and epoch that the producer uses from now on."""

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
        self._missing_markers: dict[str, set[TopicPartition]] = {}  # partitions by transactional id
        self._completing: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: dict[str, TimerHandle] = {}
        self.loading = Loading(state_log)

    # Requests

    def get(self, transactional_id: str) -> Transaction | None:
        return self._transactions.get(transactional_id)

    def all(self) -> Iterable[Transaction]:
        return list(self._transactions.values())

    def status(self, transactional_id: str) -> ErrorCode:
        """Return NONE if requests for this id can be served now, else the error to respond with."""
        return self.loading.status(transactional_id)

    async def initialize(
        self, transactional_id: str, timeout_ms: int, claimed: ProducerIdAndEpoch | None
    ) -> TransactionResponse:
        """Serve InitProducerId: make the caller the only producer of this id."""
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
                return TransactionResponse(ErrorCode.coordinator_load_in_progress)  # every client retries on this error
            error = self.status(transactional_id)
            if error is not ErrorCode.none:
                return TransactionResponse(error)
            step = self._initialize(transactional_id, timeout_ms, claimed, new_id)  # the state may be another by now
        error = self.take(step)
        if step.transaction is not None and step.transaction.is_ending and error is step.error:
            await self.complete(transactional_id)
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
        """Add partitions to the producer's transaction. The first ones begin it."""
        known = self.known(transactional_id)
        if isinstance(known, ErrorCode):
            return known
        if known.state is not TransactionState.ONGOING and self.closed_prefixes.covers(known.transactional_id):
            return ErrorCode.producer_fenced
        return self.take(state.add(known, producer, frozenset(partitions), version, self._clock.now_ms()))

    def verify(
        self, transactional_id: str | None, producer: ProducerIdAndEpoch, partition: TopicPartition
    ) -> ErrorCode:
        """Return NONE if the producer has an open transaction that includes the partition."""
        known = self.known(transactional_id)
        return known if isinstance(known, ErrorCode) else state.verify(known, producer, partition)

    def known(self, transactional_id: str | None) -> Transaction | ErrorCode:
        """Return the transaction of an id, or the error to respond with."""
        if not transactional_id:
            return ErrorCode.invalid_request
        error = self.status(transactional_id)
        if error is not ErrorCode.none:
            return error
        return self._transactions.get(transactional_id, ErrorCode.invalid_producer_id_mapping)

    def end_at_once(
        self, transactional_id: str, producer: ProducerIdAndEpoch, *, commit: bool, version: int
    ) -> TransactionResponse | None:
        """Do the same as `end`, without awaiting. Return None if the caller has to await `end`, which is rare."""
        known = self.known(transactional_id)
        if isinstance(known, ErrorCode):
            return TransactionResponse(known)
        step = state.end(known, producer, commit=commit, version=version, now_ms=self._clock.now_ms(), new_id=None)
        if step.needs_id or len(known.partitions) > _MARKERS_A_TURN:
            return None
        error = self.take(step)
        if error is ErrorCode.none and step.transaction is not None:
            self._complete_at_once(step.transaction)
        return _ended(error, known, step, version)

    async def end(
        self, transactional_id: str, producer: ProducerIdAndEpoch, *, commit: bool, version: int
    ) -> TransactionResponse:
        """Serve EndTxn. A client of transaction.version 2 uses the producer in the response from now on."""
        known = self.known(transactional_id)
        if isinstance(known, ErrorCode):
            return TransactionResponse(known)
        step = state.end(known, producer, commit=commit, version=version, now_ms=self._clock.now_ms(), new_id=None)
        if step.needs_id:
            try:
                new_id = await self._ids.next()
            except StorageError:
                return TransactionResponse(ErrorCode.coordinator_load_in_progress)
            known = self.known(transactional_id)  # again: the state may be another by now, or the id forgotten
            if isinstance(known, ErrorCode):
                return TransactionResponse(known)
            step = state.end(
                known, producer, commit=commit, version=version, now_ms=self._clock.now_ms(), new_id=new_id
            )
        error = self.take(step)
        if error is ErrorCode.none and step.transaction is not None:
            await self.complete(transactional_id)
        return _ended(error, known, step, version)

    # Steps

    def take(self, step: TransactionStep) -> ErrorCode:
        """Write a step, and then apply it. Return the step's error, or the error of the write."""
        transaction = step.transaction
        if transaction is None:
            return step.error
        transactional_id = transaction.transactional_id
        try:
            self._check_room(transaction)
            self._append(transactional_id, transaction)
        except StateBudgetError as error:
            # A new producer fails with a clear error. One that has its id already backs off and retries.
            return append_error(error) if transactional_id in self._transactions else ErrorCode.policy_violation
        except StratalogError as error:
            log.warning("transactional id %r: the state could not be written: %s", transactional_id, error)
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
        """Write the next states of ids that share a partition of __transaction_state as one batch, and apply them. On
        StratalogError nothing was written."""
        partition = self.loading.partition_of(transactions[0].transactional_id)
        self._log.append(partition, list(map(transaction_record, transactions)), self._clock.now_ms())
        for transaction in transactions:
            self._put(transaction)

    def forget(self, transactional_ids: Iterable[str]) -> None:
        """Delete idle ids, with one batch for each partition. On StratalogError the ids of earlier partitions are
        deleted."""
        by_partition: dict[int, list[str]] = {}
        for transactional_id in transactional_ids:
            by_partition.setdefault(self.loading.partition_of(transactional_id), []).append(transactional_id)
        for partition, ids in by_partition.items():
            self._log.append(partition, list(map(transaction_tombstone, ids)), self._clock.now_ms())
            for transactional_id in ids:
                self._drop(transactional_id)

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

    async def complete(self, transactional_id: str) -> None:
        """Write the missing markers of a transaction that is ending, and then its completion. A timer retries failures.

        Returns at once if another task is completing the transaction."""
        known = self._transactions.get(transactional_id)
        if known is None or not known.is_ending or transactional_id in self._completing:
            return
        self._completing.add(transactional_id)
        missing = self._missing_markers.setdefault(transactional_id, set(known.partitions))
        partitions = sorted(missing)
        pause = _RETRY_SECONDS
        try:
            await self._wait_until_durable()
            for start in range(0, len(partitions), _MARKERS_A_TURN):
                if start:
                    await asyncio.sleep(0)  # lets the event loop serve other requests
                pause = min(pause, self._write_markers(known, partitions[start : start + _MARKERS_A_TURN], missing))
            await self.markers.flush(known.partitions)
        except StratalogError as error:
            log.error("transactional id %r: the markers could not be flushed; retrying: %s", transactional_id, error)
            self._complete_after(_RETRY_SECONDS, transactional_id)
            return
        except asyncio.CancelledError:
            self.complete_soon([transactional_id])
            raise
        finally:
            self._completing.discard(transactional_id)
        self._write_completion(known, missing, pause)

    async def _wait_until_durable(self) -> None:
        """Wait for the flush that flush.messages requires: no marker may be more durable than its decision."""
        pending = self._log.pending_flush()
        error = None if pending is None else await pending
        if error is not None:
            raise error

    def _complete_at_once(self, known: Transaction) -> None:
        """Do what `complete` does for a transaction that has just begun to end, with few partitions, without awaiting.
        A flush that is due, and the completion after it, are left to a task."""
        if self._log.pending_flush() is not None:
            self._start(self.complete(known.transactional_id))
            return
        missing = self._missing_markers[known.transactional_id] = set(known.partitions)
        pause = self._write_markers(known, sorted(missing), missing)
        if self.markers.must_flush(known.partitions):
            self._start(self.complete(known.transactional_id))
        else:
            self._write_completion(known, missing, pause)

    def _write_completion(self, known: Transaction, missing: set[TopicPartition], pause: float) -> None:
        """Write the completion if no marker is missing. Otherwise, or if the write fails, retry after `pause`."""
        transactional_id = known.transactional_id
        completion = TransactionStep(ErrorCode.none, state.complete(known, self._clock.now_ms()))
        if not missing and self.take(completion) is ErrorCode.none:
            del self._missing_markers[transactional_id]
        else:
            self._complete_after(pause, transactional_id)

    def complete_soon(self, transactional_ids: Sequence[str]) -> None:
        """Complete transactions one after the other in a task, as the client that ended them has disconnected."""
        if not self.loading.is_closed:
            self._start(self._complete_each(transactional_ids))

    async def _complete_each(self, transactional_ids: Sequence[str]) -> None:
        for transactional_id in transactional_ids:
            await self.complete(transactional_id)
            await asyncio.sleep(0)  # lets the event loop serve other requests

    def _write_markers(
        self, known: Transaction, partitions: Iterable[TopicPartition], missing: set[TopicPartition]
    ) -> float:
        """Write a marker to each partition, and remove the partition from `missing` unless it needs a retry. Return the
        seconds until the retry."""
        try:
            epoch = self._log.coordinator_epoch(self.loading.partition_of(known.transactional_id))
        except StratalogError as failure:
            log.error("transactional id %r: no markers were written; retrying: %s", known.transactional_id, failure)
            return _RETRY_SECONDS
        marker = Marker(known.producer_id, known.epoch, known.state is TransactionState.PREPARE_COMMIT, epoch)
        pause = _RETRY_SECONDS
        for partition in partitions:
            error = self.markers.write(partition, marker)
            if error is ErrorCode.none or error in _NEEDS_NO_MARKER:
                missing.discard(partition)
            if error is BUSY:
                pause = _BUSY_SECONDS
            elif error is not ErrorCode.none:
                log.warning("transactional id %r: no marker in %s: %s", known.transactional_id, partition, error.name)
        return pause

    def _complete_after(self, seconds: float, transactional_id: str) -> None:
        def retry() -> None:
            self._start(self.complete(transactional_id))

        self._set_timer("complete " + transactional_id, seconds, retry)

    def _start(self, work: Awaitable[None]) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Time

    def abort_timed_out(self) -> None:
        """Abort the transactions that are open for longer than their timeout."""
        now_ms = self._clock.now_ms()
        for transactional_id in list(self._ongoing):
            known = self._transactions[transactional_id]
            if not known.has_timed_out(now_ms):
                continue
            log.info("transactional id %r: aborted after its timeout of %d ms", transactional_id, known.timeout_ms)
            if self.take(TransactionStep(ErrorCode.none, state.fence(known, now_ms))) is ErrorCode.none:
                self._start(self.complete(transactional_id))

    def forget_expired(self) -> None:
        """Delete the ids that no producer has used for transactional.id.expiration.ms."""
        now_ms = self._clock.now_ms()
        for known in list(self._transactions.values()):
            if not known.has_expired(now_ms, self.config.transactional_id_expiration_ms):
                continue
            try:
                self._append(known.transactional_id, None)
            except StratalogError as error:
                log.error("transactional id %r: expired, but could not be deleted: %s", known.transactional_id, error)
            else:
                self._drop(known.transactional_id)

    def _every(self, name: str, interval_ms: int, call: Callable[[], None]) -> None:
        def fire() -> None:
            self._every(name, interval_ms, call)
            call()

        self._set_timer(name, interval_ms / 1000, fire)

    def _set_timer(self, name: str, seconds: float, call: Callable[[], None]) -> None:
        if self.loading.is_closed:
            return
        before = self._timers.pop(name, None)
        if before is not None:
            before.cancel()
        self._timers[name] = self._call_later(seconds, call)

    # Starting and stopping

    async def load(self, partitions: Iterable[Partition] = ()) -> None:
        """Read __transaction_state at the start, and complete the transactions that were ending. Look for orphans in
        `partitions`."""
        async for transactions in self.loading.load():
            for transaction in transactions:
                self._put(transaction)
                self._ids.mind(max(transaction.producer_id, transaction.next_id))
        orphans = Orphans(self.all(), partitions if self.loading.is_complete else ())
        orphans.end(self, partial(self.markers.write, may_wait=True), self._clock.now_ms())
        for transaction in self.all():
            if transaction.is_ending:
                await self.complete(transaction.transactional_id)
        orphans.fence(self, self._clock.now_ms())
        config = self.config
        self._every(
            "timeouts", config.transaction_abort_timed_out_transaction_cleanup_interval_ms, self.abort_timed_out
        )
        self._every("expiry", config.transaction_remove_expired_transaction_cleanup_interval_ms, self.forget_expired)

    def close(self) -> None:
        """Stop: from now on no timer fires and no request is served. A request that is writing markers may complete."""
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

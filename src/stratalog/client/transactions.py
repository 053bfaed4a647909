"""A producer's transactions: readers of committed records see what is sent between begin and commit as a whole.

For a broker, a transaction starts with its first batch or offsets, so `begin` sends no request. A commit accepts no
more records, waits until every record is acknowledged, and then sends the commit to the coordinator. An abort fails the
records that are not acknowledged, waits until no request is in flight, and then sends the abort. No record of one
transaction is ever sent in another. If the end is not confirmed in time, repeating the call continues it.

`begin` may be called in any thread; everything else runs in the I/O thread, one call at a time.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from stratalog.client._accumulator import Accumulator
from stratalog.client._batch import Batch
from stratalog.client._queues import PartitionQueue
from stratalog.client.administration import two_phase
from stratalog.client.cluster import Cluster
from stratalog.client.commit_attempt import CommitAttempt
from stratalog.client.errors import (
    BrokerError,
    ClientClosedError,
    ClientError,
    CommitFailedError,
    MalformedResponseError,
    TransactionAbortedError,
    TransactionStateError,
    TransactionTimeoutError,
    UnsupportedVersionError,
)
from stratalog.client.metadata import TopicPartition
from stratalog.client.offsets import GroupMetadata, OffsetAndMetadata
from stratalog.client.prepared_transaction import PreparedTransaction
from stratalog.client.producer_ids import BatchIds
from stratalog.client.producer_settings import ProducerSettings
from stratalog.client.transaction_requests import IdAndEpoch, TransactionRequests
from stratalog.client.transaction_state import Phase, TransactionLifecycle
from stratalog.net.broker_connection import Answered
from stratalog.protocol.error_codes import ErrorCode
from stratalog.protocol.produce import HIGHEST
from stratalog.records.format import TRANSACTIONAL_BIT

logger = logging.getLogger("stratalog.client.producer")

_LAST_PRODUCE_OF_VERSION_1 = 11
_POLL_SECONDS = 0.02
_NOT_OF_THE_GROUP = {
    ErrorCode.unknown_member_id,
    ErrorCode.illegal_generation,
    ErrorCode.fenced_member_epoch,
    ErrorCode.stale_member_epoch,
}
_EPOCH_ENDED = {
    ErrorCode.invalid_producer_epoch,
    ErrorCode.producer_fenced,
    ErrorCode.invalid_txn_state,
}
_FORGOTTEN = {ErrorCode.invalid_producer_id_mapping, ErrorCode.unknown_producer_id}


class Transactions(BatchIds):
    """The transactions of one producer, and the ids of its batches."""

    attributes = TRANSACTIONAL_BIT

    def __init__(self, cluster: Cluster, settings: ProducerSettings, accumulator: Accumulator) -> None:
        assert settings.transactional_id is not None
        self.transactional_id = settings.transactional_id.encode()
        self.state = TransactionLifecycle(settings.transactional_id)
        self._name = settings.transactional_id
        self._cluster = cluster
        self._accumulator = accumulator
        self._requests = TransactionRequests(cluster, settings)
        self._timeout_ms = settings.transaction_timeout_ms
        self._request_timeout = settings.request_timeout_ms / 1000
        self._is_version_2 = False
        self._is_begun = False  # a request that starts the transaction at a broker may have been sent
        self._is_known_to_broker = False  # a response confirms that it has started; used by version 1 only
        self._misses_sequence_numbers = False  # some sequence numbers will never be sent
        self._added: set[TopicPartition] = set()
        self._to_add: set[TopicPartition] = set()
        self._adding: asyncio.Task[None] | None = None
        self._deferred: list[Batch] = []  # refused because their epoch has ended; they fail once the reason is known
        self._asking_why: asyncio.Task[None] | None = None
        self._id_after_abort: IdAndEpoch | None = None  # set if the coordinator has aborted the transaction
        self._is_busy = False
        self._attempt: CommitAttempt | None = None
        self._beginning = threading.Lock()
        accumulator.refuse(self.state.refusal)

    @property
    def _id_and_epoch(self) -> IdAndEpoch:
        return IdAndEpoch(self.producer_id, self.producer_epoch)

    # Calls of the user

    async def initialize(self, seconds: float) -> None:
        """Claim the transactional id: fence older producers that use it, and abort their open transaction."""
        with self._exclusive():
            if self.state.phase is not Phase.NEW:
                self.state.check_not_lost()
                return
            await self._start(None, "init_transactions()", _deadline(seconds))
            self.state.phase = Phase.READY

    def begin(self) -> None:
        """Begin a transaction. May be called in any thread."""
        with self._beginning:
            self.state.check_can_begin()
            self._accept_records()

    def _accept_records(self) -> None:
        self.state.phase = Phase.OPEN
        self._accumulator.refuse(None)

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: GroupMetadata, seconds: float
    ) -> None:
        """Commit offsets with the transaction. A failure or a timeout dooms the transaction, because it would be
        committed without the offsets."""
        with self._exclusive():
            self.state.check_is_open("send_offsets_to_transaction()")
            if not offsets:
                return  # an empty request starts no transaction at a broker, so a commit would be refused
            deadline = _deadline(seconds)
            try:
                self._is_begun = True
                if not self._is_version_2:
                    await self._requests.add_group(self._id_and_epoch, group.group_id, _left(deadline))
                    self._is_known_to_broker = True
                await self._requests.commit_offsets(
                    self._id_and_epoch, group, offsets, self._is_version_2, _left(deadline)
                )
            except ClientError as error:
                self._fail(await self._explain(_of_group(error, group), _left(deadline)))
                raise self.state.refusal() from self.state.cause
            except asyncio.CancelledError:
                self._fail(ClientError("send_offsets_to_transaction() was interrupted"))
                raise

    async def commit(self, seconds: float, attempt: CommitAttempt | None = None) -> None:
        """Commit the transaction. `attempt` is an unfinished attempt, from whose state this call continues."""
        if attempt is not None:
            attempt.give_up()
            if attempt.is_committed:
                return
        with self._exclusive():
            self.state.check_can_commit()
            deadline = _deadline(seconds)
            self._refuse_records(Phase.COMMITTING)
            await self._wait_for_acknowledgements("commit()", deadline)
            id_and_epoch = self._id_and_epoch
            if self._is_begun:
                self.state.is_decided = True
                id_and_epoch = await self._end(True, deadline, None if attempt is None else attempt.refusal)
            self._complete(id_and_epoch)

    async def abort(self, seconds: float) -> None:
        with self._exclusive():
            self.state.check_can_abort()
            deadline = _deadline(seconds)
            await self._abort(deadline)

    async def prepare(self, within_ms: int | None, seconds: float) -> PreparedTransaction:
        """Wait until all records are acknowledged, and leave the transaction open for another process to end."""
        with self._exclusive():
            self.state.check_is_open("prepare_transaction()")
            deadline = _deadline(seconds)
            self._refuse_records(Phase.PREPARED)
            try:
                await self._wait_for_acknowledgements("prepare_transaction()", deadline)
            except TransactionTimeoutError:
                self._accept_records()
                raise
            if not self._is_begun:
                self._accept_records()
                raise TransactionStateError(
                    f"prepare_transaction(): nothing was sent in {self.state}, so it can't be prepared; call commit() "
                    f"or abort()"
                )
            prepared = PreparedTransaction(self._name, *self._id_and_epoch)
            try:
                await two_phase.prepare(self._cluster, prepared, within_ms, _left(deadline))
            except UnsupportedVersionError:
                logger.debug("%s: the broker keeps it open only for transaction.timeout.ms", self.state)
            except ClientError as error:
                self._fail(await self._explain(error, _left(deadline)))
                raise self.state.refusal() from self.state.cause
            return prepared

    async def close(self, seconds: float) -> None:
        """Abort an open transaction, for at most `seconds`. First wait for a call of another thread to return. A
        prepared transaction stays prepared."""
        state = self.state
        deadline = _deadline(seconds)
        while self._is_busy and _left(deadline):
            await asyncio.sleep(_POLL_SECONDS)
        with self._beginning:
            is_open = state.phase in (Phase.OPEN, Phase.DOOMED, Phase.ABORTING, Phase.COMMITTING)
        if self._is_busy or not is_open:
            self._close()
            return
        try:
            if state.phase is Phase.COMMITTING and state.is_decided:
                logger.warning("%s: the producer was closed before its commit was confirmed", state)
            else:
                await self._abort(deadline)
        except ClientError as error:
            logger.warning("%s could not be aborted, so it stays open until its timeout: %s", state, error)
        finally:
            self._close()

    def _close(self) -> None:
        with self._beginning:
            self.state.phase = Phase.CLOSED
        if self._attempt is not None:
            self._attempt.give_up()
        # From now on nothing is sent: fail the waiting records at once.
        self.sender.fail_waiting(ClientClosedError("the producer was closed before the record was sent"))

    # The fast path of a commit

    def begin_attempt(self, attempt: CommitAttempt) -> bool:
        """Refuse more records and return True, or return False if the fast path can't be used."""
        if self._is_busy or not self._is_version_2 or self.state.phase is not Phase.OPEN:
            return False
        self._is_busy = True
        self._attempt = attempt
        self._refuse_records(Phase.COMMITTING)
        return True

    def end_attempt(self, attempt: CommitAttempt) -> None:
        if self._attempt is attempt:
            self._attempt = None
            self._is_busy = False

    def post_commit(self, on_response: Answered) -> bool:
        """Send a commit to the coordinator and return True, unless an error occurred or it is not connected."""
        if self.state.phase is not Phase.COMMITTING or not self._is_begun:
            return False
        self.state.is_decided = self._requests.post_commit(self._id_and_epoch, on_response)
        return self.state.is_decided

    def read_commit(self, response: memoryview) -> None:
        """Read the coordinator's response to `post_commit`: complete the commit, or raise the error."""
        self._complete(self._requests.read_end(response))

    # Steps

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        if self._is_busy:
            raise TransactionStateError(
                f"another thread is in a call for {self.state}; make these calls in one thread at a time"
            )
        self._is_busy = True
        try:
            yield
        finally:
            self._is_busy = False

    def _refuse_records(self, phase: Phase) -> None:
        self.state.phase = phase
        self._accumulator.refuse(self.state.refusal)

    async def _wait_for_acknowledgements(self, call: str, deadline: float) -> None:
        try:
            await self.sender.wait_for_acknowledgements(deadline)
        except TimeoutError:
            raise TransactionTimeoutError(
                f"{call}: not all records of {self.state} were acknowledged within max.block.ms; call it again, or "
                f"call abort()"
            ) from self._cluster.last_failure
        self.state.check_not_lost()

    async def _end(self, commit: bool, deadline: float, refusal: ClientError | None = None) -> IdAndEpoch:
        """Send EndTxn and return the ids from now on. Sending it again after a lost response is safe: the coordinator
        recognizes the same end. `refusal` is the coordinator's error in an earlier attempt."""
        call = "commit()" if commit else "abort()"
        try:
            if refusal is not None and not refusal.is_retriable:
                raise refusal
            return await self._requests.end(
                self._id_and_epoch, commit=commit, is_version_2=self._is_version_2, seconds=_left(deadline)
            )
        except ClientError as error:
            # By version 2, aborting a transaction that never started is not an error: invalid_txn_state means that the
            # transaction is committed.
            is_unknown = not self._is_version_2 and not self._is_known_to_broker
            if not commit and is_unknown and error.code == ErrorCode.invalid_txn_state:
                self._misses_sequence_numbers = True  # it never started; with another epoch, its records never will
                return self._id_and_epoch
            if commit and error.code == ErrorCode.invalid_txn_state:  # the coordinator may have aborted it
                error = await self._explain(error, _left(deadline))
            raise self._end_error(error, call) from error

    async def _start(self, producer: IdAndEpoch | None, call: str, deadline: float) -> None:
        try:
            id_and_epoch = await self._requests.start(producer, _left(deadline))
            await self._learn_version(deadline)
        except ClientError as error:
            raise self._end_error(error, call) from error
        self.producer_id, self.producer_epoch = id_and_epoch

    async def _explain(self, error: ClientError, seconds: float) -> ClientError:
        """Return the reason why an epoch has ended: either a newer producer has fenced this one, or the coordinator has
        aborted a transaction that was open for too long, after which this producer can continue. An abort request to
        the coordinator shows which."""
        if not self._is_version_2 or error.code not in _EPOCH_ENDED:
            return error
        try:
            self._id_after_abort = await self._requests.end(
                self._id_and_epoch, commit=False, is_version_2=True, seconds=seconds
            )
        except ClientError as answer:
            if not answer.is_retriable:
                return answer if answer.code in _EPOCH_ENDED else error
            why = f"{error}; the coordinator did not say why: {answer}"
        else:
            why = (
                f"the broker has aborted the transaction, which was open for longer than transaction.timeout.ms = "
                f"{self._timeout_ms}"
            )
        aborted = TransactionAbortedError(why)
        aborted.__cause__ = error
        return aborted

    def _end_error(self, error: ClientError, call: str) -> ClientError:
        is_unknown = self.state.is_decided and isinstance(error, MalformedResponseError)
        if error.is_retriable or is_unknown:
            return TransactionTimeoutError(
                f"{call}: the coordinator of {self.state} has not confirmed it within max.block.ms, so it may have "
                f"happened or not; call it again: {error}"
            )
        self._fail(error)
        return self.state.refusal() if self.state.cause is not None else error

    async def _learn_version(self, deadline: float) -> None:
        self._is_version_2 = await self._requests.uses_version_2(_left(deadline))
        self.highest_produce = HIGHEST if self._is_version_2 else _LAST_PRODUCE_OF_VERSION_1

    async def _abort(self, deadline: float) -> None:
        state = self.state
        is_forgotten = isinstance(state.cause, BrokerError) and state.cause.code in _FORGOTTEN
        self._refuse_records(Phase.ABORTING)
        if self._adding is not None:
            self._adding.cancel()  # a request that it has sent precedes the end on the same connection
            self._adding = None
        self._misses_sequence_numbers = self._misses_sequence_numbers or any(
            batch.base_sequence >= 0 for batch in self._accumulator.incomplete
        )
        aborted = TransactionAbortedError(f"{state} was aborted before the record was acknowledged")
        self.sender.fail_waiting(aborted)
        self.sender.fail_in_flight(aborted)
        try:
            await self.sender.wait_for_responses(deadline)
            if self._asking_why is not None:
                await asyncio.wait_for(asyncio.shield(self._asking_why), _left(deadline))
        except TimeoutError:
            raise TransactionTimeoutError(
                "abort(): a broker has not responded within max.block.ms; call it again"
            ) from self._cluster.last_failure
        state.check_not_lost()
        id_and_epoch = self._id_and_epoch
        if self._id_after_abort is not None:
            id_and_epoch = self._id_after_abort
        elif self._is_begun and not is_forgotten:
            id_and_epoch = await self._end(False, deadline)
        if is_forgotten or (self._misses_sequence_numbers and id_and_epoch == self._id_and_epoch):
            await self._start(None if is_forgotten else id_and_epoch, "abort()", deadline)
            id_and_epoch = self._id_and_epoch
        self._complete(id_and_epoch)

    def _complete(self, id_and_epoch: IdAndEpoch) -> None:
        self.producer_id, self.producer_epoch = id_and_epoch
        self._is_begun = self._is_known_to_broker = self._misses_sequence_numbers = self.state.is_decided = False
        self._id_after_abort = self.lost = None
        self._added.clear()
        self._to_add.clear()
        self.state.cause = None
        self.state.phase = Phase.READY

    def _fail(self, error: ClientError) -> None:
        """Record an error. If it dooms the transaction or the producer, stop sending and fail the waiting records."""
        self.state.fail(error)
        if self.state.phase in (Phase.DOOMED, Phase.FAILED):
            self._accumulator.refuse(self.state.refusal)
            if self.lost is None or self.state.phase is Phase.FAILED:
                self.lost = self._send_error(error)
            self.sender.fail_waiting(self.lost)

    def _send_error(self, error: ClientError) -> ClientError:
        """Return the error for records that are not sent any more."""
        if self.state.phase is Phase.FAILED:
            return self.state.refusal()
        lost = TransactionAbortedError(f"{self.state} can't be committed, so the record is not sent: {error}")
        lost.__cause__ = error
        return lost

    # Called by the sender

    def may_send(self, queue: PartitionQueue) -> bool:
        if self.state.phase not in (Phase.OPEN, Phase.COMMITTING, Phase.PREPARED):
            return False
        if queue.producer_id != self.producer_id or queue.producer_epoch != self.producer_epoch:
            if queue.in_flight:
                return False
            queue.begin_epoch(self.producer_id, self.producer_epoch)
        if self._is_version_2:
            self._is_begun = True
            return True
        partition = TopicPartition(queue.topic, queue.partition)
        if partition in self._added:
            return True
        self._to_add.add(partition)
        if self._adding is None:
            self._adding = self.sender.spawn(self._add())
        return False

    def failed(self, batch: Batch, error: ClientError) -> None:
        if batch.base_sequence >= 0:
            self._misses_sequence_numbers = True
        self._fail(error)

    def defers_failure(self, batch: Batch, error: ClientError) -> bool:
        """Keep a batch that its broker has refused because its epoch has ended, until the coordinator says why."""
        if not self._is_version_2 or batch.is_done:
            return False
        self._deferred.append(batch)
        if self._asking_why is None:
            self._asking_why = self.sender.spawn(self._ask_why(error))
        return True

    async def _ask_why(self, error: ClientError) -> None:
        why = await self._explain(error, self._request_timeout)
        self._asking_why = None
        batches, self._deferred = self._deferred, []
        for batch in batches:
            self.sender.fail(batch, why)
        self.sender.drain()

    async def _add(self) -> None:
        try:
            while self._to_add and self.state.phase in (Phase.OPEN, Phase.COMMITTING, Phase.PREPARED):
                partitions = set(self._to_add)
                self._is_begun = True
                try:
                    await self._requests.add_partitions(self._id_and_epoch, partitions, self._request_timeout)
                except ClientError as error:
                    if not error.is_retriable:  # retry until the records' own timeout
                        self._fail(error)
                else:
                    self._is_known_to_broker = True
                    self._added |= partitions
                    self._to_add -= partitions
                    self.sender.drain()
        finally:
            if self._adding is asyncio.current_task():
                self._adding = None


def _of_group(error: ClientError, group: GroupMetadata) -> ClientError:
    if error.code not in _NOT_OF_THE_GROUP:
        return error
    failed = CommitFailedError(
        f"group {group.group_id!r} has rebalanced since group_metadata() was called, and member {group.member_id!r} "
        f"may not commit for it ({error}); abort, poll, and call consumer.group_metadata() again"
    )
    failed.__cause__ = error
    return failed


def _deadline(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


def _left(deadline: float) -> float:
    return max(deadline - asyncio.get_running_loop().time(), 0.0)

"""A producer's transactions: what is sent between begin and commit is seen by readers of committed records as one.

What a broker knows of a transaction begins with its first batch or offsets, so `begin` asks nobody. A commit lets
nothing more in, waits until every record is acknowledged, and then tells the coordinator; an abort fails what is not
acknowledged, waits until nothing is under way, and tells it too. Nothing of one transaction is ever sent in another.
Where an end is not confirmed in time, the same call again goes on with it.

`begin` is for any thread; all else happens in the I/O thread, one call at a time.
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
from stratalog.client.producer_ids import ProducerIds
from stratalog.client.producer_settings import ProducerSettings
from stratalog.client.transaction_requests import Identity, TransactionRequests
from stratalog.client.transaction_state import Phase, TransactionState
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
_EPOCH_IS_OVER = {
    ErrorCode.invalid_producer_epoch,
    ErrorCode.producer_fenced,
    ErrorCode.invalid_txn_state,
}
_FORGOTTEN = {ErrorCode.invalid_producer_id_mapping, ErrorCode.unknown_producer_id}


class Transactions(ProducerIds):
    attributes = TRANSACTIONAL_BIT

    def __init__(self, cluster: Cluster, settings: ProducerSettings, accumulator: Accumulator) -> None:
        assert settings.transactional_id is not None
        self.transactional_id = settings.transactional_id.encode()
        self.state = TransactionState(settings.transactional_id)
        self._name = settings.transactional_id
        self._cluster = cluster
        self._accumulator = accumulator
        self._requests = TransactionRequests(cluster, settings)
        self._timeout_ms = settings.transaction_timeout_ms
        self._request_timeout = settings.request_timeout_ms / 1000
        self._is_version_2 = False
        self._is_begun = False  # a broker may know of the transaction,
        self._is_certain = False  # and has said so; by version 2 that does not matter
        self._misses_numbers = False  # sequence numbers that nobody will send
        self._added: set[TopicPartition] = set()
        self._to_add: set[TopicPartition] = set()
        self._adding: asyncio.Task[None] | None = None
        self._in_question: list[Batch] = []  # refused for an epoch that is over; it is asked why
        self._asking: asyncio.Task[None] | None = None
        self._ended_as: Identity | None = None  # the coordinator has aborted it by itself; who the producer is then
        self._is_busy = False
        self._attempt: CommitAttempt | None = None
        self._beginning = threading.Lock()
        accumulator.refuse(self.state.refusal)

    @property
    def _identity(self) -> Identity:
        return Identity(self.producer_id, self.producer_epoch)

    # Calls of the user

    async def initialize(self, seconds: float) -> None:
        """Claim the transactional id: older producers of it are fenced, and what they had open is aborted."""
        with self._alone():
            if self.state.phase is not Phase.NEW:
                self.state.check_not_lost()
                return
            await self._start(None, "init_transactions()", _deadline(seconds))
            self.state.phase = Phase.READY

    def begin(self) -> None:
        """In any thread."""
        with self._beginning:
            self.state.check_can_begin()
            self._let_in()

    def _let_in(self) -> None:
        self.state.phase = Phase.OPEN
        self._accumulator.refuse(None)

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: GroupMetadata, seconds: float
    ) -> None:
        """What fails, or takes too long, dooms the transaction: it would be committed without the offsets."""
        with self._alone():
            self.state.check_is_open("send_offsets_to_transaction()")
            if not offsets:
                return  # no broker would know of the transaction by that, and its commit would be refused
            deadline = _deadline(seconds)
            try:
                self._is_begun = True
                if not self._is_version_2:
                    await self._requests.add_group(self._identity, group.group_id, _left(deadline))
                    self._is_certain = True
                await self._requests.commit_offsets(self._identity, group, offsets, self._is_version_2, _left(deadline))
            except ClientError as error:
                self._fail(await self._find_out(_of_group(error, group), _left(deadline)))
                raise self.state.refusal() from self.state.cause
            except asyncio.CancelledError:
                self._fail(ClientError("send_offsets_to_transaction() was interrupted"))
                raise

    async def commit(self, seconds: float, attempt: CommitAttempt | None = None) -> None:
        """After an attempt that has not got there, if one was made."""
        if attempt is not None:
            attempt.give_up()
            if attempt.is_committed:
                return
        with self._alone():
            self.state.check_can_commit()
            deadline = _deadline(seconds)
            self._let_nothing_in(Phase.COMMITTING)
            await self._acknowledged("commit()", deadline)
            identity = self._identity
            if self._is_begun:
                self.state.is_decided = True
                identity = await self._end(True, deadline, None if attempt is None else attempt.refusal)
            self._over(identity)

    async def abort(self, seconds: float) -> None:
        with self._alone():
            self.state.check_can_abort()
            deadline = _deadline(seconds)
            await self._abort(deadline)

    async def prepare(self, within_ms: int | None, seconds: float) -> PreparedTransaction:
        """All is acknowledged; the transaction stays open for another to end."""
        with self._alone():
            self.state.check_is_open("prepare_transaction()")
            deadline = _deadline(seconds)
            self._let_nothing_in(Phase.PREPARED)
            try:
                await self._acknowledged("prepare_transaction()", deadline)
            except TransactionTimeoutError:
                self._let_in()
                raise
            if not self._is_begun:
                self._let_in()
                raise TransactionStateError(
                    f"prepare_transaction(): nothing was sent in {self.state}, so there is nothing to leave to "
                    f"another; commit() or abort() it"
                )
            prepared = PreparedTransaction(self._name, *self._identity)
            try:
                await two_phase.prepare(self._cluster, prepared, within_ms, _left(deadline))
            except UnsupportedVersionError:
                logger.debug("%s: the broker keeps it open for transaction.timeout.ms only", self.state)
            except ClientError as error:
                self._fail(await self._find_out(error, _left(deadline)))
                raise self.state.refusal() from self.state.cause
            return prepared

    async def close(self, seconds: float) -> None:
        """Abort what is open, for so long. What is prepared stays as it is, and a call of another thread has its time
        to end."""
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
                logger.warning("%s: the producer is closed before it was confirmed that it is committed", state)
            else:
                await self._abort(deadline)
        except ClientError as error:
            logger.warning("%s is left to its timeout, as it could not be aborted: %s", state, error)
        finally:
            self._close()

    def _close(self) -> None:
        with self._beginning:
            self.state.phase = Phase.CLOSED
        if self._attempt is not None:
            self._attempt.give_up()
        # From now on nothing is sent, so nobody has to wait for it.
        self.sender.fail_waiting(ClientClosedError("the producer was closed before the record was sent"))

    # A commit's usual course

    def begin_attempt(self, attempt: CommitAttempt) -> bool:
        """Whether nothing stands in the way. From here on nothing is let in."""
        if self._is_busy or not self._is_version_2 or self.state.phase is not Phase.OPEN:
            return False
        self._is_busy = True
        self._attempt = attempt
        self._let_nothing_in(Phase.COMMITTING)
        return True

    def end_attempt(self, attempt: CommitAttempt) -> None:
        if self._attempt is attempt:
            self._attempt = None
            self._is_busy = False

    def post_end(self, answered: Answered) -> bool:
        """Ask the coordinator to commit, if it is connected and all went well."""
        if self.state.phase is not Phase.COMMITTING or not self._is_begun:
            return False
        self.state.is_decided = self._requests.post_commit(self._identity, answered)
        return self.state.is_decided

    def ended_as(self, answer: memoryview) -> None:
        """The coordinator's answer: the transaction is committed, or what it says is raised."""
        self._over(self._requests.read_end(answer))

    # Steps

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if self._is_busy:
            raise TransactionStateError(f"another thread is in a call for {self.state}; use it from one thread")
        self._is_busy = True
        try:
            yield
        finally:
            self._is_busy = False

    def _let_nothing_in(self, phase: Phase) -> None:
        self.state.phase = phase
        self._accumulator.refuse(self.state.refusal)

    async def _acknowledged(self, call: str, deadline: float) -> None:
        try:
            await self.sender.until_acknowledged(deadline)
        except TimeoutError:
            raise TransactionTimeoutError(
                f"{call}: not all records of {self.state} were acknowledged within max.block.ms; call it again, or "
                f"abort()"
            ) from self._cluster.last_failure
        self.state.check_not_lost()

    async def _end(self, commit: bool, deadline: float, refusal: ClientError | None = None) -> Identity:
        """EndTxn. Also where the answer was lost and it comes again, it is the same end to the coordinator. What it has
        answered already is `refusal`."""
        call = "commit()" if commit else "abort()"
        try:
            if refusal is not None and not refusal.is_retriable:
                raise refusal
            return await self._requests.end(
                self._identity, commit=commit, is_version_2=self._is_version_2, seconds=_left(deadline)
            )
        except ClientError as error:
            # By version 2 an abort of what never got there is no error: this one says that it is committed.
            is_unknown = not self._is_version_2 and not self._is_certain
            if not commit and is_unknown and error.code == ErrorCode.invalid_txn_state:
                self._misses_numbers = True  # it never got there; and with another epoch it never will
                return self._identity
            if commit and error.code == ErrorCode.invalid_txn_state:  # it may be aborted
                error = await self._find_out(error, _left(deadline))
            raise self._not_done(error, call) from error

    async def _start(self, who: Identity | None, call: str, deadline: float) -> None:
        try:
            identity = await self._requests.start(who, _left(deadline))
            await self._learn_version(deadline)
        except ClientError as error:
            raise self._not_done(error, call) from error
        self.producer_id, self.producer_epoch = identity

    async def _find_out(self, error: ClientError, seconds: float) -> ClientError:
        """Why an epoch is over: a newer producer has taken it, which ends this one, or the coordinator has aborted a
        transaction that was open for too long, which does not. It says so when it is asked to abort."""
        if not self._is_version_2 or error.code not in _EPOCH_IS_OVER:
            return error
        try:
            self._ended_as = await self._requests.end(self._identity, commit=False, is_version_2=True, seconds=seconds)
        except ClientError as said:
            if not said.is_retriable:
                return said if said.code in _EPOCH_IS_OVER else error
            why = f"{error}; the coordinator could not be asked why: {said}"
        else:
            why = (
                f"the broker has aborted the transaction, which was open for longer than transaction.timeout.ms = "
                f"{self._timeout_ms}"
            )
        found = TransactionAbortedError(why)
        found.__cause__ = error
        return found

    def _not_done(self, error: ClientError, call: str) -> ClientError:
        says_nothing = self.state.is_decided and isinstance(error, MalformedResponseError)
        if error.is_retriable or says_nothing:
            return TransactionTimeoutError(
                f"{call}: not confirmed by the coordinator of {self.state} within max.block.ms; it may be done or not, "
                f"call it again: {error}"
            )
        self._fail(error)
        return self.state.refusal() if self.state.cause is not None else error

    async def _learn_version(self, deadline: float) -> None:
        self._is_version_2 = await self._requests.uses_version_2(_left(deadline))
        self.highest_produce = HIGHEST if self._is_version_2 else _LAST_PRODUCE_OF_VERSION_1

    async def _abort(self, deadline: float) -> None:
        state = self.state
        is_forgotten = isinstance(state.cause, BrokerError) and state.cause.code in _FORGOTTEN
        self._let_nothing_in(Phase.ABORTING)
        if self._adding is not None:
            self._adding.cancel()  # what it has sent comes before the end, on the same connection
            self._adding = None
        self._misses_numbers = self._misses_numbers or any(
            batch.base_sequence >= 0 for batch in self._accumulator.incomplete
        )
        aborted = TransactionAbortedError(f"{state} was aborted before the record was acknowledged")
        self.sender.fail_waiting(aborted)
        self.sender.fail_under_way(aborted)
        try:
            await self.sender.until_answered(deadline)
            if self._asking is not None:
                await asyncio.wait_for(asyncio.shield(self._asking), _left(deadline))
        except TimeoutError:
            raise TransactionTimeoutError(
                "abort(): a broker has not answered within max.block.ms; call it again"
            ) from self._cluster.last_failure
        state.check_not_lost()
        identity = self._identity
        if self._ended_as is not None:
            identity = self._ended_as
        elif self._is_begun and not is_forgotten:
            identity = await self._end(False, deadline)
        if is_forgotten or (self._misses_numbers and identity == self._identity):
            await self._start(None if is_forgotten else identity, "abort()", deadline)
            identity = self._identity
        self._over(identity)

    def _over(self, identity: Identity) -> None:
        self.producer_id, self.producer_epoch = identity
        self._is_begun = self._is_certain = self._misses_numbers = self.state.is_decided = False
        self._ended_as = self.lost = None
        self._added.clear()
        self._to_add.clear()
        self.state.cause = None
        self.state.phase = Phase.READY

    def _fail(self, error: ClientError) -> None:
        """Nothing of the transaction, or of the producer, is sent any more."""
        self.state.fail(error)
        if self.state.phase in (Phase.DOOMED, Phase.FAILED):
            self._accumulator.refuse(self.state.refusal)
            if self.lost is None or self.state.phase is Phase.FAILED:
                self.lost = self._lost(error)
            self.sender.fail_waiting(self.lost)

    def _lost(self, error: ClientError) -> ClientError:
        """What the records that are not sent any more fail with."""
        if self.state.phase is Phase.FAILED:
            return self.state.refusal()
        lost = TransactionAbortedError(f"{self.state} can't be committed, so the record is not sent: {error}")
        lost.__cause__ = error
        return lost

    # What the sender asks

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
        place = TopicPartition(queue.topic, queue.partition)
        if place in self._added:
            return True
        self._to_add.add(place)
        if self._adding is None:
            self._adding = self.sender.spawn(self._add())
        return False

    def failed(self, batch: Batch, error: ClientError) -> None:
        if batch.base_sequence >= 0:
            self._misses_numbers = True
        self._fail(error)

    def finds_out(self, batch: Batch, error: ClientError) -> bool:
        """An epoch that is over, says the batch's broker. The batch has its outcome when the coordinator says why."""
        if not self._is_version_2 or batch.is_done:
            return False
        self._in_question.append(batch)
        if self._asking is None:
            self._asking = self.sender.spawn(self._ask_why(error))
        return True

    async def _ask_why(self, error: ClientError) -> None:
        why = await self._find_out(error, self._request_timeout)
        self._asking = None
        batches, self._in_question = self._in_question, []
        for batch in batches:
            self.sender.fail(batch, why)
        self.sender.drain()

    async def _add(self) -> None:
        try:
            while self._to_add and self.state.phase in (Phase.OPEN, Phase.COMMITTING, Phase.PREPARED):
                places = set(self._to_add)
                self._is_begun = True
                try:
                    await self._requests.add_partitions(self._identity, places, self._request_timeout)
                except ClientError as error:
                    if not error.is_retriable:  # else the records' own time-out has the last word
                        self._fail(error)
                else:
                    self._is_certain = True
                    self._added |= places
                    self._to_add -= places
                    self.sender.drain()
        finally:
            if self._adding is asyncio.current_task():
                self._adding = None


def _of_group(error: ClientError, group: GroupMetadata) -> ClientError:
    if error.code not in _NOT_OF_THE_GROUP:
        return error
    failed = CommitFailedError(
        f"group {group.group_id!r} has rebalanced since its metadata was asked for, and member {group.member_id!r} may "
        f"not commit for it ({error}); abort, poll, and take consumer.group_metadata() anew"
    )
    failed.__cause__ = error
    return failed


def _deadline(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


def _left(deadline: float) -> float:
    return max(deadline - asyncio.get_running_loop().time(), 0.0)

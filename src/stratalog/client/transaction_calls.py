"""What a transactional producer can be asked beside sending: the calls that begin and end its transactions.

    with Producer("localhost:9092", transactional_id="billing-0") as producer:
        with producer.transaction():
            producer.send("invoices", b"...")
            producer.send_offsets_to_transaction(positions, consumer.group_metadata())

Each waits for max_block_ms at most. Records may be sent by many threads; these calls are for one at a time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from stratalog.client.commit_attempt import CommitAttempt
from stratalog.client.errors import ClientError, TransactionAbortableError
from stratalog.client.io_thread import IoThread
from stratalog.client.metadata import TopicPartition
from stratalog.client.offsets import GroupMetadata, OffsetAndMetadata, offsets_given
from stratalog.client.prepared_transaction import PreparedTransaction
from stratalog.client.producer_settings import ProducerSettings
from stratalog.client.transaction_state import Phase
from stratalog.client.transactions import Transactions

logger = logging.getLogger("stratalog.client.producer")

Offsets = Mapping[TopicPartition, OffsetAndMetadata | int]


class TransactionCalls:
    settings: ProducerSettings
    _io: IoThread
    _transactions: Transactions | None

    def init_transactions(self, timeout: float | None = None) -> None:
        """Claim the transactional id: older producers of it are fenced, and what they left open is aborted. The first
        `begin` does it too."""
        self._io.run(self._of_transactions("init_transactions()").initialize(self._seconds(timeout)))

    def begin(self) -> None:
        """From here on what is sent is part of a transaction, until `commit` or `abort`."""
        transactions = self._of_transactions("begin()")
        self._io.check_usable()
        if transactions.state.phase is Phase.NEW:
            self.init_transactions()
        transactions.begin()

    def commit(self, timeout: float | None = None) -> None:
        """Once all records are acknowledged, let readers of committed records see them, and the offsets count.

        TransactionTimeoutError: that is not known yet, call it again. TransactionAbortableError: it can't be done, call
        `abort`.
        """
        transactions = self._of_transactions("commit()")
        deadline = time.monotonic() + self._seconds(timeout)
        self._io.check_may_wait()
        attempt = CommitAttempt(transactions)
        try:
            self._io.call_soon(attempt.start)
            is_committed = attempt.wait(max(deadline - time.monotonic(), 0.0))
        except BaseException:  # as Ctrl-C
            with suppress(ClientError):
                self._io.call_soon(attempt.give_up)
            raise
        if not is_committed:
            self._io.run(transactions.commit(max(deadline - time.monotonic(), 0.0), attempt))

    def abort(self, timeout: float | None = None) -> None:
        """Let nobody see what was sent since `begin`. Deliveries that are not done fail with
        TransactionAbortedError."""
        self._io.run(self._of_transactions("abort()").abort(self._seconds(timeout)))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Begin, and at the end commit; where something is raised, also by the commit, abort, and raise it."""
        self.begin()
        try:
            yield
        except BaseException as error:
            self._abort_after(error)
            raise
        try:
            self.commit()
        except BaseException as error:
            if isinstance(error, TransactionAbortableError) or not isinstance(error, Exception):  # as Ctrl-C
                self._abort_after(error)
            raise

    def _abort_after(self, reason: BaseException) -> None:
        try:
            self.abort()
        except ClientError as error:
            reason.add_note(f"the transaction could not be aborted: {error}")

    def send_offsets_to_transaction(self, offsets: Offsets, group: GroupMetadata, timeout: float | None = None) -> None:
        """Commit these offsets, each that of the record to read next, for a consumer's group, with the transaction.

        `group` is what consumer.group_metadata() gives now: where the group has rebalanced since, that fails, and the
        transaction has to be aborted. Switch off the consumer's enable_auto_commit.
        """
        transactions = self._of_transactions("send_offsets_to_transaction()")
        wanted = offsets_given(offsets)
        if not isinstance(group, GroupMetadata) or not group.group_id:
            raise TypeError(f"group is {group!r}; what consumer.group_metadata() gives is wanted")
        self._io.run(transactions.send_offsets(wanted, group, self._seconds(timeout)))

    def prepare_transaction(self, within_ms: int | None = None, timeout: float | None = None) -> PreparedTransaction:
        """Wait until all records are acknowledged, and leave the transaction open for another to end.

        What is returned can be pickled: Admin.finish_transactions ends it, from any process, also after this one is
        gone. A Stratalog broker keeps it for `within_ms`, by default for ever; others for transaction_timeout_ms.
        """
        transactions = self._of_transactions("prepare_transaction()")
        return self._io.run(transactions.prepare(within_ms, self._seconds(timeout)))

    def _of_transactions(self, call: str) -> Transactions:
        if self._transactions is None:
            raise ClientError(f"{call} is for transactional producers; give this one a transactional_id")
        return self._transactions

    def _seconds(self, timeout: float | None) -> float:
        most = self.settings.max_block_ms / 1000
        return most if timeout is None else max(timeout, 0.0)

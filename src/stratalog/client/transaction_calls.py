"""The calls of a transactional producer that begin and end its transactions.

    with Producer("localhost:9092", transactional_id="billing-0") as producer:
        with producer.transaction():
            producer.send("invoices", b"...")
            producer.send_offsets_to_transaction(positions, consumer.group_metadata())

Each call waits for at most max_block_ms. Many threads may send records, but only one thread at a time may make these
calls.
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
from stratalog.client.offsets import GroupMetadata, OffsetAndMetadata, parse_offsets
from stratalog.client.prepared_transaction import PreparedTransaction
from stratalog.client.producer_settings import ProducerSettings
from stratalog.client.transaction_state import Phase
from stratalog.client.transactions import Transactions

logger = logging.getLogger("stratalog.client.producer")

Offsets = Mapping[TopicPartition, OffsetAndMetadata | int]


class TransactionCalls:
    """The transactional part of Producer's API."""

    settings: ProducerSettings
    _io: IoThread
    _transactions: Transactions | None

    def init_transactions(self, timeout: float | None = None) -> None:
        """Claim the transactional id: fence older producers that use it, and abort the transaction they left open. The
        first `begin` does this too."""
        self._io.run(self._require_transactions("init_transactions()").initialize(self._seconds(timeout)))

    def begin(self) -> None:
        """Begin a transaction. Everything that is sent until `commit` or `abort` belongs to it."""
        transactions = self._require_transactions("begin()")
        self._io.check_usable()
        if transactions.state.phase is Phase.NEW:
            self.init_transactions()
        transactions.begin()

    def commit(self, timeout: float | None = None) -> None:
        """Wait until all records are acknowledged, then commit the transaction: readers of committed records see its
        records, and its offsets count.

        After TransactionTimeoutError, the outcome is unknown: call `commit` again. After TransactionAbortableError, the
        transaction can't be committed: call `abort`.
        """
        transactions = self._require_transactions("commit()")
        deadline = time.monotonic() + self._seconds(timeout)
        self._io.check_may_wait()
        attempt = CommitAttempt(transactions)
        try:
            self._io.call_soon(attempt.start)
            is_committed = attempt.wait(max(deadline - time.monotonic(), 0.0))
        except BaseException:  # such as KeyboardInterrupt
            with suppress(ClientError):
                self._io.call_soon(attempt.give_up)
            raise
        if not is_committed:
            self._io.run(transactions.commit(max(deadline - time.monotonic(), 0.0), attempt))

    def abort(self, timeout: float | None = None) -> None:
        """Abort the transaction: no reader of committed records sees its records. Deliveries that are not done fail
        with TransactionAbortedError."""
        self._io.run(self._require_transactions("abort()").abort(self._seconds(timeout)))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Begin a transaction, and commit it at the end. Abort it if the body or the commit raises."""
        self.begin()
        try:
            yield
        except BaseException as error:
            self._abort_after(error)
            raise
        try:
            self.commit()
        except BaseException as error:
            if isinstance(error, TransactionAbortableError) or not isinstance(error, Exception):  # KeyboardInterrupt
                self._abort_after(error)
            raise

    def _abort_after(self, reason: BaseException) -> None:
        try:
            self.abort()
        except ClientError as error:
            reason.add_note(f"the transaction could not be aborted: {error}")

    def send_offsets_to_transaction(self, offsets: Offsets, group: GroupMetadata, timeout: float | None = None) -> None:
        """Commit offsets for a consumer's group as part of the transaction, each that of the record to read next.

        `group` must be a current result of consumer.group_metadata(). If the group has rebalanced since, the call
        fails, and the transaction must be aborted. Switch off the consumer's enable_auto_commit.
        """
        transactions = self._require_transactions("send_offsets_to_transaction()")
        parsed = parse_offsets(offsets)
        if not isinstance(group, GroupMetadata) or not group.group_id:
            raise TypeError(f"group is {group!r}; it must be the result of consumer.group_metadata()")
        self._io.run(transactions.send_offsets(parsed, group, self._seconds(timeout)))

    def prepare_transaction(self, within_ms: int | None = None, timeout: float | None = None) -> PreparedTransaction:
        """Wait until all records are acknowledged, and leave the transaction open for another process to end.

        The result can be pickled. Admin.finish_transactions ends the transaction from any process, even after this
        process has stopped. A Stratalog broker keeps the transaction open for `within_ms`, by default without limit;
        other brokers keep it for transaction_timeout_ms.
        """
        transactions = self._require_transactions("prepare_transaction()")
        return self._io.run(transactions.prepare(within_ms, self._seconds(timeout)))

    def _require_transactions(self, call: str) -> Transactions:
        if self._transactions is None:
            raise ClientError(f"{call} needs a transactional producer; set transactional_id")
        return self._transactions

    def _seconds(self, timeout: float | None) -> float:
        most = self.settings.max_block_ms / 1000
        return most if timeout is None else max(timeout, 0.0)

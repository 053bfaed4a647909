"""The fast path of a commit: one hand-over to the I/O thread, one request, one hand-over back.

It never waits, retries or raises. Each step is a callback of the step before, because the event loop turns that a task
takes cost more than the request. The attempt ends in every unusual case: an older protocol, a coordinator that is not
connected, a refusal, a timeout. `Transactions.commit` then continues from the state that the attempt has reached.
"""

from __future__ import annotations

from _thread import TIMEOUT_MAX, allocate_lock
from typing import TYPE_CHECKING

from stratalog.client.errors import ClientError, MalformedResponseError

if TYPE_CHECKING:
    from stratalog.client.transactions import Transactions


class CommitAttempt:
    """One attempt to commit. The I/O thread runs it, while the caller's thread waits in `wait`."""

    def __init__(self, transactions: Transactions) -> None:
        self.is_committed = False
        self.refusal: ClientError | None = None  # the coordinator's error, if it refused
        self._transactions = transactions
        self._is_over = False
        self._lock = allocate_lock()  # held until the attempt is over
        self._lock.acquire()

    def wait(self, seconds: float) -> bool:
        """Wait until the attempt is over, for at most `seconds`. Return whether the transaction is committed."""
        self._lock.acquire(timeout=min(seconds, TIMEOUT_MAX))
        return self.is_committed

    # In the I/O thread

    def start(self) -> None:
        if self._transactions.begin_attempt(self):
            self._transactions.sender.call_when_acknowledged(self.acknowledged)
        else:
            self._end()

    def acknowledged(self) -> None:
        """Request the end of the transaction, now that every record is acknowledged or has failed."""
        if self._is_over:
            return
        try:
            if not self._transactions.post_commit(self._on_response):
                self.give_up()
        except BaseException:
            self.give_up()
            raise

    def _on_response(self, response: memoryview | None, _: ClientError | None) -> None:
        if self._is_over:
            return  # Transactions.commit has sent the request again
        try:
            if response is not None:
                self._transactions.read_commit(response)
                self.is_committed = True
        except MalformedResponseError:
            pass  # the outcome is unknown, so Transactions.commit sends the request again
        except ClientError as refusal:
            self.refusal = refusal
        finally:
            self.give_up()

    def give_up(self) -> None:
        """End the attempt. `Transactions.commit` may continue from here."""
        if not self._is_over:
            self._transactions.end_attempt(self)
            self._end()

    def _end(self) -> None:
        self._is_over = True
        self._lock.release()

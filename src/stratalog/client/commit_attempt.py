"""A commit on its usual course: one hand-over to the I/O thread, one request, one hand-over back.

Nothing of it waits, tries again or makes an error: each step is a callback of the one before, as the turns of the
event loop that tasks take cost more than the request. Whatever is not as usual, as an older protocol, a coordinator
that is not connected, a refusal, or a wait that takes too long, ends the attempt, and `Transactions.commit` goes on
from where it is, with all that it can do.
"""

from __future__ import annotations

from _thread import TIMEOUT_MAX, allocate_lock
from typing import TYPE_CHECKING

from stratalog.client.errors import ClientError, MalformedResponseError

if TYPE_CHECKING:
    from stratalog.client.transactions import Transactions


class CommitAttempt:
    def __init__(self, transactions: Transactions) -> None:
        self.is_committed = False
        self.refusal: ClientError | None = None  # what the coordinator has said instead
        self._transactions = transactions
        self._is_over = False
        self._lock = allocate_lock()  # until it is over
        self._lock.acquire()

    def wait(self, seconds: float) -> bool:
        """For who wants to commit: whether it is done."""
        self._lock.acquire(timeout=min(seconds, TIMEOUT_MAX))
        return self.is_committed

    # In the I/O thread

    def start(self) -> None:
        if self._transactions.begin_attempt(self):
            self._transactions.sender.when_acknowledged(self.acknowledged)
        else:
            self._end()

    def acknowledged(self) -> None:
        """All that was sent, or has failed."""
        if self._is_over:
            return
        try:
            if not self._transactions.post_end(self._answered):
                self.give_up()
        except BaseException:
            self.give_up()
            raise

    def _answered(self, answer: memoryview | None, _: ClientError | None) -> None:
        if self._is_over:
            return  # it was asked again meanwhile
        try:
            if answer is not None:
                self._transactions.ended_as(answer)
                self.is_committed = True
        except MalformedResponseError:
            pass  # it says nothing of the transaction, so it is asked again
        except ClientError as refusal:
            self.refusal = refusal
        finally:
            self.give_up()

    def give_up(self) -> None:
        """What it has begun is the transaction's to go on with."""
        if not self._is_over:
            self._transactions.end_attempt(self)
            self._end()

    def _end(self) -> None:
        self._is_over = True
        self._lock.release()

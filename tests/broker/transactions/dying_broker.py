"""`stratalog serve`, which kills itself at a step of the first transaction that ends while it runs.

STRATALOG_TEST_DIES is the number of the step. Each step is an append to a log: PrepareCommit or PrepareAbort, a marker
in each partition, the completion. The process kills itself right after the append.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from stratalog.broker.transactions.coordinator import TransactionCoordinator
from stratalog.broker.transactions.markers import MarkerWriter
from stratalog.broker.transactions.state import Transaction
from stratalog.cli.main import run
from tests.broker.process import BrokerProcess

VARIABLE = "STRATALOG_TEST_DIES"


class DyingBroker(BrokerProcess):
    """A broker in a process of its own. With `dies_at` set, the next process kills itself at that step."""

    module = "tests.broker.transactions.dying_broker"
    dies_at: int | None = None

    def environment(self) -> dict[str, str]:
        return super().environment() | ({} if self.dies_at is None else {VARIABLE: str(self.dies_at)})


class Steps:
    """Counts the appends from the first PrepareCommit or PrepareAbort on. Transactions that the start completes for an
    earlier process do not count."""

    def __init__(self, dies_at: int) -> None:
        self._left = dies_at
        self._is_ending = False

    def wrote_state(self, _: object, transaction: Transaction | None) -> None:
        self._is_ending = self._is_ending or (transaction is not None and transaction.is_ending)
        self.wrote()

    def wrote(self, *_: object) -> None:
        if not self._is_ending:
            return
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1


def followed_by(original: Callable[..., Any], then: Callable[..., None]) -> Callable[..., Any]:
    def both(owner: Any, *arguments: Any) -> Any:
        answer = original(owner, *arguments)
        then(*arguments)
        return answer

    return both


if __name__ == "__main__":
    if VARIABLE in os.environ:
        steps = Steps(int(os.environ[VARIABLE]))
        MarkerWriter.write = followed_by(MarkerWriter.write, steps.wrote)  # type: ignore[method-assign]
        state_written = followed_by(TransactionCoordinator._append, steps.wrote_state)
        TransactionCoordinator._append = state_written  # type: ignore[method-assign]
    run()

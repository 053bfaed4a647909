"""`stratalog serve`, which kills itself at a step of the first transaction that is ended while it runs.

STRATALOG_TEST_DIES is that step's number. An end has these, each an append to a log: the decision, a marker in each
partition, the completion. It dies when that step is in its log, and before anything else is done.
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
    """With `dies_at` set, its next start is of one that dies so."""

    module = "tests.broker.transactions.dying_broker"
    dies_at: int | None = None

    def environment(self) -> dict[str, str]:
        return super().environment() | ({} if self.dies_at is None else {VARIABLE: str(self.dies_at)})


class Steps:
    """Counts from the first decision on: what a start completes, of a broker before, is none of it."""

    def __init__(self, dies_at: int) -> None:
        self._left = dies_at
        self._is_decided = False

    def wrote_state(self, _: object, transaction: Transaction | None) -> None:
        self._is_decided = self._is_decided or (transaction is not None and transaction.is_prepared)
        self.wrote()

    def wrote(self, *_: object) -> None:
        if not self._is_decided:
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

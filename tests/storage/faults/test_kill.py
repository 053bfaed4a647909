"""After kill -9 at any moment: what was acknowledged is there, once, and found; the log goes on."""

from __future__ import annotations

from tests.storage.faults.killing import kill_rounds

ROUNDS = 50  # many more in bench.faults


def test_kill_loses_nothing_that_was_acknowledged() -> None:
    seen: list[int] = []
    assert kill_rounds(ROUNDS, 1000, seen.append) == ROUNDS
    assert seen == list(range(1, ROUNDS + 1))

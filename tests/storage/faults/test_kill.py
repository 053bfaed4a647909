"""After kill -9 at any moment: what was acknowledged is there, once, and found; the log goes on."""

from __future__ import annotations

import pytest

from tests.campaigns import quick_and_full
from tests.storage.faults.killing import kill_rounds


@pytest.mark.parametrize("rounds", quick_and_full(8, 50))  # many more in bench.faults
def test_kill_loses_nothing_that_was_acknowledged(rounds: int) -> None:
    seen: list[int] = []
    assert kill_rounds(rounds, 1000, seen.append) == rounds
    assert seen == list(range(1, rounds + 1))

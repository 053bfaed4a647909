"""After kill -9 at any moment, every acknowledged record is there once and can be looked up, and appends work."""

from __future__ import annotations

import pytest

from tests.campaigns import quick_and_full
from tests.storage.faults.killing import kill_rounds


@pytest.mark.parametrize("rounds", quick_and_full(8, 50))  # bench.faults runs many more
def test_kill_loses_no_acknowledged_record(rounds: int) -> None:
    seen: list[int] = []
    assert kill_rounds(rounds, 1000, seen.append) == rounds
    assert seen == list(range(1, rounds + 1))

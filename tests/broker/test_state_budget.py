from __future__ import annotations

import logging

import pytest

from stratalog.broker.state_budget import StateBudget, text_bytes
from stratalog.clock import ManualClock
from stratalog.errors import StateBudgetError


def budget_of(limit: int, used: int, clock: ManualClock | None = None) -> StateBudget:
    budget = StateBudget(limit, (clock or ManualClock(0)).monotonic)
    budget.include(lambda: used)
    return budget


def test_new_state_may_fill_three_quarters_and_existing_state_all() -> None:
    budget = budget_of(1_000, used=700)
    budget.check(50, "a member", is_new=True)
    with pytest.raises(StateBudgetError, match=r"a member takes 51 bytes .* 750 of the 1000 bytes of stratalog\.max"):
        budget.check(51, "a member", is_new=True)
    budget.check(300, "an offset", is_new=False)
    with pytest.raises(StateBudgetError):
        budget.check(301, "an offset", is_new=False)
    assert budget.refusals == 2


def test_change_that_adds_no_bytes_always_fits() -> None:
    budget = budget_of(1_000, used=5_000)  # loaded at the start, and over the limit
    budget.check(0, "a member", is_new=True)
    budget.check(-10, "an offset", is_new=False)
    with pytest.raises(StateBudgetError):
        budget.check(1, "an offset", is_new=False)
    budget.limit = 10_000
    budget.check(1, "an offset", is_new=False)


def test_not_every_refusal_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock(0)
    budget = budget_of(1_000, 1_000, clock)
    with caplog.at_level(logging.WARNING):
        for _ in range(1_000):
            with pytest.raises(StateBudgetError):
                budget.check(1, "a member of group 'g'", is_new=True)
        assert len(caplog.records) == 1
        assert "Raise stratalog.max.coordinator.state.bytes" in caplog.text
        clock.advance(10_001)
        with pytest.raises(StateBudgetError):
            budget.check(1, "a member of group 'g'", is_new=True)
        assert len(caplog.records) == 2


def test_text_is_counted_as_python_stores_it() -> None:
    assert (text_bytes(None), text_bytes("abc"), text_bytes("\u00fc")) == (0, 3, 4)

"""Tests of two sizes: `make test` runs the small one, and `make test-slow` the campaign."""

from __future__ import annotations

from typing import Any

import pytest


def quick_and_full(quick: Any, full: Any) -> list[Any]:
    """Return the values of a parameter, such as a number of rounds: `quick` by default, `full` when slow tests run."""
    return [pytest.param(quick, id=f"quick-{quick}"), pytest.param(full, id=f"full-{full}", marks=pytest.mark.slow)]


def slow(*values: Any) -> Any:
    """Return a row of values for `parametrize` that only slow runs use."""
    return pytest.param(*values, marks=pytest.mark.slow)

"""Print the cost of a test run at its end: CPU seconds and wall seconds by folder.

CPU seconds include child processes, which count in the test that reaps them. A Spark session that several tests share
counts in the last of them.
"""

from __future__ import annotations

import resource
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

_HERE = Path(__file__).parent
_KEY = "stratalog_costs"


class CostReport:
    """A plugin in every process of a run. Workers send their costs to the process that prints them."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._costs: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])  # folder: tests, CPU, wall

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        before = _cpu_seconds()
        result = yield
        cost = self._costs[_folder(item.path)]
        cost[0] += 1
        cost[1] += _cpu_seconds() - before
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not hasattr(self._config, "workerinput"):
            self._costs[_folder(Path(report.fspath))][2] += report.duration

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        output = getattr(self._config, "workeroutput", None)
        if output is not None:
            output[_KEY] = {folder: list(cost) for folder, cost in self._costs.items()}

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        for folder, cost in getattr(node, "workeroutput", {}).get(_KEY, {}).items():
            self._costs[folder] = [mine + theirs for mine, theirs in zip(self._costs[folder], cost, strict=True)]

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if sum(cost[0] for cost in self._costs.values()) < 100:  # the cost of a few tests is not interesting
            return
        terminalreporter.section("cost by folder: tests, CPU seconds, wall seconds")
        rows = sorted(self._costs.items(), key=lambda row: -row[1][1])
        total = [sum(cost[column] for _, cost in rows) for column in range(3)]
        for folder, (tests, cpu, wall) in [*rows, ("all", total)]:
            terminalreporter.write_line(f"{folder:<28}{tests:>7.0f}{cpu:>9.1f}{wall:>9.1f}")


def _folder(path: Path) -> str:
    absolute = path if path.is_absolute() else _HERE.parent / path
    parts = absolute.relative_to(_HERE).parts
    return "/".join(parts[: min(2, len(parts) - 1)]) or "."


def _cpu_seconds() -> float:
    uses = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return sum(use.ru_utime + use.ru_stime for use in uses)

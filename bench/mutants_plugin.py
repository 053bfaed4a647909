"""A pytest plugin for mutation testing (`bench.mutants`): records the lines and the time of each test, or runs some
tests.

It is loaded with `-p bench.mutants_plugin` in the processes that run the tests. Environment variables control it:
MUTANTS_TIMES is a file for the time of each test, MUTANTS_SELECTION a file with the ids of the tests to run, in order,
MUTANTS_FAILED a file for the id of a test that failed.
"""

from __future__ import annotations

import json
import os
import resource
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import coverage
import hypothesis
import pytest

# A mutant may loop without end. It must not use up the machine's memory or disk.
MEMORY_LIMIT = 8 << 30
FILE_LIMIT = 2 << 30

_seconds: dict[str, float] = defaultdict(float)
_unusable: set[str] = set()  # skipped or failed


def pytest_configure() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_LIMIT, FILE_LIMIT))
    hypothesis.settings.register_profile(
        "mutants",
        parent=hypothesis.settings(),
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],  # shrinking an example would take minutes
        suppress_health_check=list(hypothesis.HealthCheck),  # a slow machine must not kill a mutant
        report_multiple_bugs=False,
        database=None,
    )
    hypothesis.settings.load_profile("mutants")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if selection := os.environ.get("MUTANTS_SELECTION"):
        rank = {test: number for number, test in enumerate(json.loads(Path(selection).read_text()))}
        items[:] = sorted((item for item in items if item.nodeid in rank), key=lambda item: rank[item.nodeid])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    # The context stays until the next test begins, so lines that threads execute in between count for this test.
    _switch(item.nodeid)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any, request: Any) -> Generator[None, Any, Any]:
    """Count the lines that a shared fixture executes for all tests of the file, not only for the first."""
    if fixturedef.scope == "function":
        return (yield)
    item = request._pyfuncitem.nodeid
    _switch(item.partition("::")[0])
    try:
        return (yield)
    finally:
        _switch(item)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds[report.nodeid] += report.duration
    if not report.passed:
        _unusable.add(report.nodeid)
    if report.failed and (path := os.environ.get("MUTANTS_FAILED")):
        Path(path).write_text(report.nodeid)


def pytest_sessionfinish() -> None:
    if path := os.environ.get("MUTANTS_TIMES"):
        usable = {test: seconds for test, seconds in _seconds.items() if test not in _unusable}
        Path(path).write_text(json.dumps({"usable": usable, "unusable": sorted(_unusable)}))


def _switch(context: str) -> None:
    running = coverage.Coverage.current()
    if running is not None:
        running.switch_context(context)

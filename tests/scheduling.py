"""The distribution of tests over the processes of a parallel run. The tests of a file stay together, and so do all
tests that share Spark.

Files have brokers of their own that their tests share. A Spark session takes a JVM and many seconds to start, so one
process runs every test that uses one. It starts first, as it takes longest.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

_ROOT = Path(__file__).parent.parent
_SPARK = "spark"
# The slowest folders come first, so that the processes finish at about the same time.
_FOLDERS_BY_COST = ("pipelines", "spark", "clients", "cli", "client", "storage", "testing", "demo", "broker")


class ByFileAndSpark(LoadScopeScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return _SPARK if uses_spark(file) else file


@cache
def uses_spark(file: str) -> bool:
    """Return whether the tests of a file use the Spark session of conftest.py."""
    return "spark: SparkSession" in (_ROOT / file).read_text()


def in_order_of_cost(items: list[pytest.Item]) -> None:
    """Sort the tests: those with Spark first, then folder by folder."""

    def cost(item: pytest.Item) -> tuple[bool, int]:
        file = item.path.relative_to(_ROOT)
        folder = file.parts[1] if len(file.parts) > 2 else ""
        rank = _FOLDERS_BY_COST.index(folder) if folder in _FOLDERS_BY_COST else len(_FOLDERS_BY_COST)
        return not uses_spark(str(file)), rank

    items.sort(key=cost)


def scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    config.option.loadscopereorder = False  # don't sort by the number of tests: a hundred tests may take a second
    return ByFileAndSpark(config, log)

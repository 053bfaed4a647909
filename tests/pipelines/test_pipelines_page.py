"""The snippets of docs/pipelines.md run as they are, with the test's broker instead of localhost:9092."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from stratalog.testing import BrokerProcess
from tests.cli.running import invoke

PAGE = Path(__file__).parents[2] / "docs" / "pipelines.md"


def test_snippets_run_on_a_broker_without_topics(
    spark: SparkSession,
    stratalog_new_broker: Callable[[], BrokerProcess],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    snippets = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(snippets) == 1
    address = stratalog_new_broker().bootstrap_servers
    for code in snippets:
        exec(code.replace("localhost:9092", address), {"__name__": "__snippet__"})


def test_options_on_the_page_exist() -> None:
    named = set(re.findall(r"`(--[a-z-]+)", PAGE.read_text())) - {"--help"}
    commands = ("query", "export", "backfill", "rekey", "repartition", "verify", "compact")
    shown = " ".join(invoke("spark", command, "--help").stdout for command in commands)
    assert len(named) > 15
    assert {option for option in named if option not in shown} == set()

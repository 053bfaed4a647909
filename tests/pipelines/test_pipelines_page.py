"""The snippets of docs/pipelines.md run as they stand, with a broker of the test's in the place of localhost:9092."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from stratalog.testing import BrokerProcess
from tests.cli.running import invoke

PAGE = Path(__file__).parents[2] / "docs" / "pipelines.md"
TOPICS = ("drinks", "drinks-by-kind")


def test_snippets_of_the_page_run(
    spark: SparkSession, stratalog_broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    snippets = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(snippets) == 1
    stratalog_broker.create_topic("drinks")
    try:
        for code in snippets:
            exec(code.replace("localhost:9092", stratalog_broker.bootstrap_servers), {"__name__": "__snippet__"})
    finally:
        for topic in TOPICS:
            stratalog_broker.delete_topic(topic, if_exists=True)


def test_options_that_the_page_names_are_there() -> None:
    named = set(re.findall(r"`(--[a-z-]+)", PAGE.read_text())) - {"--help"}
    commands = ("query", "export", "backfill", "rekey", "repartition", "verify", "compact")
    shown = " ".join(invoke("spark", command, "--help").stdout for command in commands)
    assert len(named) > 15
    assert {option for option in named if option not in shown} == set()

"""docs/spark.md: its snippets run one after the other, and its tables list every option."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from stratalog import Producer
from stratalog.spark.options import READ_OPTIONS
from stratalog.spark.write_options import WRITE_OPTIONS
from stratalog.testing import BrokerProcess

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "spark.md"
ADDRESS = "localhost:9092"
SNIPPET = re.compile(r"^```(?:python|py)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.timeout(600)
def test_snippets_run_in_order_on_a_broker_without_topics(
    spark: SparkSession, stratalog_new_broker: Callable[[], BrokerProcess], tmp_path: Path
) -> None:
    snippets = SNIPPET.findall(PAGE.read_text())
    broker = stratalog_new_broker()
    assert len(snippets) >= 6
    names: dict[str, object] = {"__name__": "__snippet__"}
    for number, code in enumerate(snippets):
        located = code.replace(ADDRESS, broker.bootstrap_servers)
        located = located.replace('"checkpoints/', f'"{tmp_path}/')  # a relative path depends on Java's directory
        exec(compile(located, f"docs/spark.md, snippet {number}", "exec"), names)


def test_readme_example_sums_up_the_records_of_its_producer(
    spark: SparkSession, stratalog_new_broker: Callable[[], BrokerProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    address = stratalog_new_broker().bootstrap_servers
    with Producer(address) as producer:
        for number in range(100_000):
            producer.send("numbers", b"%d" % number)
    (code,) = re.findall(r"^```py\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    exec(compile(code.replace(ADDRESS, address), "README.md", "exec"), {})
    assert capsys.readouterr().out == "4999950000\n"


@pytest.mark.parametrize(
    ("heading", "options"),
    [("## Reading: options", READ_OPTIONS), ("## Writing", ("kafka.bootstrap.servers", *WRITE_OPTIONS))],
)
def test_table_lists_exactly_the_options(heading: str, options: tuple[str, ...]) -> None:
    section = PAGE.read_text().split(f"{heading}\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    described = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert sorted(described) == sorted(options)

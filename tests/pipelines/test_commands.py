"""The commands on a real Spark: their output, and their end after an interrupt."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from stratalog.pipelines.cluster import ClusterAddress
from tests.cli.running import COMMAND, invoke, one_line_error
from tests.inspect.written_logs import damage, logs_of
from tests.pipelines.conftest import FilledTopic
from tests.pipelines.test_compact import write

TIMEOUT_SECONDS = 200  # includes the start of Spark on a busy machine


@pytest.fixture
def server(cluster: ClusterAddress, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("STRATALOG_BOOTSTRAP_SERVER", cluster.bootstrap_servers)
    return cluster.bootstrap_servers


def test_query_prints_rows_or_writes_files(
    spark: SparkSession, server: str, filled_topic: FilledTopic, tmp_path: Path
) -> None:
    topic = filled_topic(3)
    sql = f"SELECT offset, key FROM `{topic}` ORDER BY offset"
    lines = invoke("spark", "query", sql, "--format", "json").stdout.splitlines()
    assert [json.loads(line) for line in lines] == [{"offset": n, "key": f"key-{n}"} for n in range(3)]
    for format in ("csv", "parquet"):
        assert invoke("spark", "query", sql, "-f", format, "-o", tmp_path / format).exit_code == 0
    assert spark.read.parquet(str(tmp_path / "parquet")).count() == 3
    timed = invoke("spark", "query", f"SELECT timestamp FROM `{topic}`", "-f", "parquet", "-o", tmp_path / "times")
    assert timed.exit_code == 0
    assert str(pq.read_table(tmp_path / "times").schema.field("timestamp").type) == "timestamp[us, tz=UTC]"
    assert spark.read.option("header", "true").csv(str(tmp_path / "csv")).count() == 3
    plan = invoke("spark", "query", f"SELECT offset FROM `{topic}` WHERE key IN ('key-1', X'FF')", "--explain").stdout
    assert "In(key, ['key-1', X'FF'])" in plan


def test_prompt_runs_the_statements_of_a_script_in_one_session(
    spark: SparkSession, server: str, filled_topic: FilledTopic
) -> None:
    topic = filled_topic(3)
    script = f"""
        SET spark.sql.shuffle.partitions=2;
        CREATE TEMPORARY VIEW keys AS SELECT string(key) AS k FROM `{topic}`;
        SELECT count(*) AS n -- of; all
        FROM `{topic}`;
        SELECT max(k) AS n FROM keys;
        DROP VIEW keys; SELECT nothing FROM `{topic}`; SELECT 'not run' AS n"""
    ran = invoke("spark", "sql", "--format", "csv", stdin=script.encode())
    assert ran.stdout.splitlines()[-4:] == ["n", "3", "n", "key-2"]
    assert ran.exit_code == 2
    assert "stratalog: A column, variable, or function parameter with name `nothing`" in ran.stderr
    assert topic in invoke("spark", "sql", stdin=b"\\d\n").stdout
    shown = invoke("spark", "sql", "--format", "json", stdin=b"show tables").stdout
    assert {"topic": topic, "partitions": 1} in [json.loads(line) for line in shown.splitlines()]


def test_mistakes_in_a_query_are_one_line(spark: SparkSession, server: str) -> None:
    assert "there is no topic or view 'nothing'" in one_line_error(invoke("spark", "query", "SELECT * FROM nothing"))
    assert "Syntax error" in one_line_error(invoke("spark", "query", "SELEKT 1"))


def test_directory_is_verified_and_compacted(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, "table", partitions=2)
    assert "no problems" in invoke("spark", "verify", tmp_path).stdout
    assert "would be saved" in invoke("spark", "compact", tmp_path, "-t", "table", "--dry-run").stdout
    done = invoke("spark", "compact", tmp_path, "-t", "table", "--json")
    assert [json.loads(line)["failure"] for line in done.stdout.splitlines()] == [None, None]
    damage(logs_of(tmp_path / "table-1")[0], 100, b"\xfe")
    verified = invoke("spark", "verify", tmp_path, "--json")
    assert verified.exit_code == 1
    lines = [json.loads(line) for line in verified.stdout.splitlines()]
    assert [line["what"][:8] for line in lines if line.get("severity") == "error"] == ["checksum"]
    assert (lines[-1]["type"], lines[-1]["errors"]) == ("summary", 1)


@pytest.mark.slow
def test_interrupted_export_keeps_its_steps_and_continues(
    spark: SparkSession, server: str, filled_topic: FilledTopic, tmp_path: Path
) -> None:
    topic, table = filled_topic(20), tmp_path / "table"
    command = [*COMMAND, "spark", "export", topic, "--to", str(table), "--every", "1", "--master", "local[1]"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ) as run:
        try:
            deadline = time.monotonic() + TIMEOUT_SECONDS
            while run.poll() is None and not any(table.glob("topic=*/*/*.parquet")) and time.monotonic() < deadline:
                time.sleep(0.05)
            run.send_signal(signal.SIGINT)
            stdout, stderr = run.communicate(timeout=60)
        finally:
            run.kill()
    assert (run.returncode, stdout) == (130, "")
    first, *lines, last = stderr.splitlines()
    assert last == "stratalog: interrupted; what is done is kept: the same command continues from there"
    assert first == "starting Spark …"
    assert all(line.startswith("exporting: ") for line in lines)
    filled_topic(5, name=topic)
    done = invoke("spark", "export", topic, "--to", table)
    assert done.stdout == f"5 records exported to {table} in 1 step\n"
    assert spark.read.parquet(str(table)).count() == 25

"""One Spark with both connectors: Apache's as `kafka`, ours as `stratalog`. What they read is compared row for row."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.compat.fetch_spark_kafka import connector_jars

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
Rows = list[tuple[Any, ...]]


@pytest.fixture(scope="session")
def spark_with_both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    local: Path = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2]")
        .appName("stratalog and kafka")
        .config("spark.jars", ",".join(str(jar) for jar in connector_jars()))
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(local / "warehouse"))
        .config("spark.local.dir", str(local))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


def read(spark: SparkSession, connector: str, servers: str, **options: str) -> DataFrame:
    reader = spark.read.format(connector).option("kafka.bootstrap.servers", servers)
    return reader.options(**{name.replace("__", "."): value for name, value in options.items()}).load()


def rows_of(frame: DataFrame) -> Rows:
    """In one order, times as milliseconds, so that they can be compared and printed."""
    names = [name for name in (*COLUMNS, "headers") if name in frame.columns]
    selected = frame.selectExpr(*[f"unix_millis({name}) as {name}" if name == "timestamp" else name for name in names])
    return sorted((tuple(map(_plain, row)) for row in selected.collect()), key=_place)


def _place(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return row[2], row[3], row[4]


def _plain(value: Any) -> Any:
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, list):
        return tuple((one["key"], None if one["value"] is None else bytes(one["value"])) for one in value)
    return value


def same_rows(spark: SparkSession, servers: str, **options: str) -> Rows:
    """What both connectors read with these options, after a comparison: ours over the wire and, where the files can be
    seen, direct. Where a batch is split into tasks and which come first is not compared."""
    theirs = rows_of(read(spark, "kafka", servers, **options))
    assert rows_of(read(spark, "stratalog", servers, log__dirs="none", **options)) == theirs
    assert rows_of(read(spark, "stratalog", servers, **options)) == theirs
    return theirs

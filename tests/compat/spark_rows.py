"""One Spark with both connectors: Apache's as `kafka`, ours as `stratalog`. What they read is compared row for row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.compat.fetch_spark_kafka import connector_jars
from tests.spark.queries import started
from tests.spark_sessions import small_session

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
Rows = list[tuple[Any, ...]]


@pytest.fixture(scope="session")
def spark_with_both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    jars = ",".join(map(str, connector_jars()))
    with small_session(tmp_path_factory.mktemp("spark"), **{"spark.jars": jars}) as session:
        yield session


def read(spark: SparkSession, connector: str, servers: str, **options: str) -> DataFrame:
    reader = spark.read.format(connector).option("kafka.bootstrap.servers", servers)
    return reader.options(**{name.replace("__", "."): value for name, value in options.items()}).load()


def rows_of(frame: DataFrame) -> Rows:
    """Return the rows in a fixed order, with times in milliseconds, so that they can be compared and printed."""
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
    """Read with both connectors and these options, ours over the wire and, if the files are accessible, directly. Fail
    if the rows differ, and return them. How a batch is split into tasks, and their order, is not compared."""
    theirs = rows_of(read(spark, "kafka", servers, **options))
    assert rows_of(read(spark, "stratalog", servers, log__dirs="none", **options)) == theirs
    assert rows_of(read(spark, "stratalog", servers, **options)) == theirs
    return theirs


def stream(spark: SparkSession, connector: str, servers: str, topic: str, directory: Path, **options: str) -> None:
    """Stream all available rows into files."""
    given = {"kafka.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest"}

    def start() -> StreamingQuery:
        frame = spark.readStream.format(connector).options(**given, **options).load()
        return (
            frame.writeStream.format("parquet")
            .option("path", str(directory / "rows"))
            .option("checkpointLocation", str(directory / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    started(start)


def streamed(spark: SparkSession, directory: Path) -> Rows:
    return rows_of(spark.read.parquet(str(directory / "rows")))

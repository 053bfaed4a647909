"""Loads files into a topic: Parquet, CSV, JSON or ORC, or a table that export has written. Keeps keys and timestamps.

A stream reads the files, oldest first, several per micro-batch. Its state records which files are done. A job that was
stopped continues after them, and writes nothing twice; started again later, it loads the files that have been added.
Files must not change once they are loaded. Within a micro-batch, each key's records are written in the order of their
timestamps.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from stratalog.client.administration.topics import CHOSEN_BY_BROKER
from stratalog.errors import ConfigError
from stratalog.pipelines.cluster import ClusterAddress
from stratalog.pipelines.job_state import JobState
from stratalog.pipelines.progress import NoProgress, Progress
from stratalog.pipelines.record_columns import ColumnChoice, record_columns
from stratalog.pipelines.spark_errors import first_line
from stratalog.pipelines.streams import in_order_of_time, option_texts, run_stream
from stratalog.pipelines.table_files import absolute_path
from stratalog.pipelines.target_topic import find_target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

FORMATS = ("parquet", "csv", "json", "orc")
_NOT_THERE = "PATH_NOT_FOUND"
_DEFAULTS: Mapping[str, Mapping[str, str]] = {"csv": {"header": "true"}}


@dataclass(frozen=True)
class BackfillOptions:
    """`format` is by default derived from the path's suffix, else it is parquet. `reading` has options of Spark's
    reader for that format, such as sep. `step_bytes` is the approximate size of the files in a micro-batch, which has
    at least one. `schema` is Spark's DDL; without it, Spark infers the schema, for CSV and JSON by reading the files
    once. `partitions` is the number for a topic that is created, by default the broker's."""

    format: str | None = None
    columns: ColumnChoice = field(default_factory=ColumnChoice)
    reading: Mapping[str, str] = field(default_factory=dict)
    schema: str | None = None
    state: str | None = None
    step_bytes: int = 256 * 1024**2
    every: float | None = None
    dry_run: bool = False
    partitions: int | None = None


@dataclass(frozen=True)
class Loaded:
    """`records` counts the records loaded by this run; in a dry run, all in the files, including those loaded before.
    `columns` maps the columns of a record to expressions. `goes_on` is True if an earlier run has loaded files.
    `created` is True if this run created the topic, or in a dry run would. `partitions` may be unknown in a
    dry run."""

    records: int
    state: str
    columns: Mapping[str, str]
    goes_on: bool = False
    created: bool = False
    partitions: int | None = None


def backfill(
    spark: SparkSession,
    cluster: ClusterAddress,
    path: str,
    topic: str,
    options: BackfillOptions | None = None,
    *,
    progress: Progress | None = None,
    stop: threading.Event | None = None,
) -> Loaded:
    """Load files into a topic, which is created if it is missing. Records older than its retention are deleted soon.

    Raises ConfigError, SparkFailedError, and Spark's errors for the files.
    """
    options = options or BackfillOptions()
    progress = progress or NoProgress()
    if options.step_bytes < 1:
        raise ConfigError(f"step_bytes is {options.step_bytes}; it must be 1 or more")
    kind = format_of(path, options.format)
    path = absolute_path(spark, path)
    reading = {**_DEFAULTS.get(kind, {}), **options.reading}
    state = JobState(spark, options.state, {"job": "backfill", "topic": topic}, "backfill", topic)
    with cluster.admin() as admin:
        target = find_target(admin, topic, options.partitions, state)
    partitions = options.partitions if target is None else len(target.partitions)
    schema = _schema(spark, path, kind, reading, options)
    if options.dry_run:
        frame = spark.read.format(kind).options(**reading).schema(schema).load(path)
        columns = record_columns(frame, options.columns)
        return Loaded(frame.count(), state.path, columns, state.is_started, target is None, partitions)
    stepwise = option_texts({**reading, "maxBytesPerTrigger": options.step_bytes})
    frame = spark.readStream.format(kind).options(**stepwise).schema(schema).load(_streamed(path))
    columns = record_columns(frame, options.columns)
    state.claim()
    if target is None:
        # After the columns were checked, so that a mistake in them leaves no topic behind.
        partitions = _create(cluster, topic, options.partitions)
        progress.note(f"created topic {topic} with {partitions} partition{'s' if partitions != 1 else ''}")
    progress.begin(f"loading {topic}", None, "records")
    ordered = _in_order(frame.selectExpr(*(f"{sql} as {name}" for name, sql in columns.items())), columns)
    records = run_stream(ordered, cluster, topic, state.path, progress, every=options.every, stop=stop)
    return Loaded(records, state.path, columns, state.is_started, target is None, partitions)


def _create(cluster: ClusterAddress, topic: str, partitions: int | None) -> int:
    with cluster.admin() as admin:
        admin.create_topic(topic, CHOSEN_BY_BROKER if partitions is None else partitions)
        return len(admin.describe_topic(topic).partitions)


def format_of(path: str, format: str | None) -> str:
    if format is not None and format not in FORMATS:
        raise ConfigError(f"the format is {format!r}; it must be one of: {', '.join(FORMATS)}")
    ending = path.rstrip("/").rpartition(".")[2].lower()
    return format or {"jsonl": "json", "ndjson": "json"}.get(ending, ending if ending in FORMATS else "parquet")


def _streamed(path: str) -> str:
    """Turn a single file into a pattern that matches only it: Spark streams folders and patterns, but not one file."""
    return f"{path[:-1]}[{path[-1]}]" if Path(path).is_file() and path[-1].isalnum() else path


def _schema(
    spark: SparkSession, path: str, kind: str, reading: Mapping[str, str], options: BackfillOptions
) -> StructType:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import ParseException, PySparkException

    reader = spark.read.format(kind).options(**reading)
    try:
        return (reader.schema(options.schema) if options.schema else reader).load(path).schema
    except (PySparkException, Py4JJavaError) as error:
        if isinstance(error, PySparkException) and error.getCondition() == _NOT_THERE:
            raise ConfigError(f"{path}: no file or folder matches; check --from") from error
        if isinstance(error, ParseException):
            raise ConfigError(f"schema (--schema) is {options.schema!r}: {first_line(error)}") from error
        if options.format is not None or path.endswith(f".{kind}"):
            raise
        raise ConfigError(
            f"{path} can't be read as {kind}, and its name does not show its format; set the format (--format "
            f"{'|'.join(FORMATS)})"
        ) from error


def _in_order(frame: DataFrame, columns: Mapping[str, str]) -> DataFrame:
    """Sort by timestamp if there is one; otherwise the order of the files stays."""
    if "timestamp" not in columns or "key" not in columns:
        return frame
    return in_order_of_time(frame)

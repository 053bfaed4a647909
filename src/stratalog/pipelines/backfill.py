"""Files loaded into a topic: Parquet, CSV, JSON or ORC, or a table that export has made. Keys and timestamps are kept.

A stream over the files, oldest first, some of them a step. Its state says which are done: a job that was stopped goes
on behind them, and what it wrote counts once; started again later, it loads the files that have come since. Files must
not change once they are loaded. Of each key the records of one step are written in the order of their timestamps.
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
from stratalog.pipelines.streams import in_order_of_time, options_text, run_stream
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
    """`format`: None: as the path's end says, else parquet. `reading`: options of Spark's reader for it, like sep.
    `step_bytes`: files of about so many bytes a step, at least one file.
    `schema`: in Spark's DDL; without it, it is found out from the files, which for CSV and JSON reads them once.
    `partitions`: of a topic that is created; None: as many as the broker gives a new topic."""

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
    """`records`: by this run; in a dry run, all that the files have, also those that are loaded. `columns`: what
    becomes what. `goes_on`: whether a run before this one has loaded files. `created`: whether this run created the
    topic, or in a dry run would. `partitions`: of the topic; None where a dry run can't know."""

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
    """Load files into a topic, which is created where it is missing; what is older than its retention goes again soon.
    Raises ConfigError, and Spark's errors for the files."""
    given, told = options or BackfillOptions(), progress or NoProgress()
    if given.step_bytes < 1:
        raise ConfigError(f"step_bytes is {given.step_bytes}; it must be 1 or more")
    kind = format_of(path, given.format)
    path = absolute_path(spark, path)
    reading = {**_DEFAULTS.get(kind, {}), **given.reading}
    state = JobState(spark, given.state, {"job": "backfill", "topic": topic}, "backfill", topic)
    with cluster.admin() as admin:
        target = find_target(admin, topic, given.partitions, state)
    partitions = given.partitions if target is None else len(target.partitions)
    schema = _schema(spark, path, kind, reading, given)
    if given.dry_run:
        frame = spark.read.format(kind).options(**reading).schema(schema).load(path)
        columns = record_columns(frame, given.columns)
        return Loaded(frame.count(), state.path, columns, state.is_started, target is None, partitions)
    stepwise = options_text({**reading, "maxBytesPerTrigger": given.step_bytes})
    frame = spark.readStream.format(kind).options(**stepwise).schema(schema).load(_streamed(path))
    columns = record_columns(frame, given.columns)
    state.claim()
    if target is None:
        # Not before: a mistake in the columns leaves no topic behind.
        partitions = _create(cluster, topic, given.partitions)
        told.note(f"topic {topic} is created, with {partitions} partition{'s' if partitions != 1 else ''}")
    told.begin(f"loading {topic}", None, "records")
    ordered = _in_order(frame.selectExpr(*(f"{sql} as {name}" for name, sql in columns.items())), columns)
    records = run_stream(ordered, cluster, topic, state.path, told, every=given.every, stop=stop)
    return Loaded(records, state.path, columns, state.is_started, target is None, partitions)


def _create(cluster: ClusterAddress, topic: str, partitions: int | None) -> int:
    with cluster.admin() as admin:
        admin.create_topic(topic, CHOSEN_BY_BROKER if partitions is None else partitions)
        return len(admin.describe_topic(topic).partitions)


def format_of(path: str, given: str | None) -> str:
    if given is not None and given not in FORMATS:
        raise ConfigError(f"the format is {given!r}; it must be one of: {', '.join(FORMATS)}")
    ending = path.rstrip("/").rpartition(".")[2].lower()
    return given or {"jsonl": "json", "ndjson": "json"}.get(ending, ending if ending in FORMATS else "parquet")


def _streamed(path: str) -> str:
    """Spark streams folders and patterns, and no single file: so that is made a pattern that only it matches."""
    return f"{path[:-1]}[{path[-1]}]" if Path(path).is_file() and path[-1].isalnum() else path


def _schema(
    spark: SparkSession, path: str, kind: str, reading: Mapping[str, str], given: BackfillOptions
) -> StructType:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import ParseException, PySparkException

    reader = spark.read.format(kind).options(**reading)
    try:
        return (reader.schema(given.schema) if given.schema else reader).load(path).schema
    except (PySparkException, Py4JJavaError) as error:
        if isinstance(error, PySparkException) and error.getCondition() == _NOT_THERE:
            raise ConfigError(f"{path}: there is no such file or folder, or nothing matches; check --from") from error
        if isinstance(error, ParseException):
            raise ConfigError(f"schema (--schema) is {given.schema!r}: {first_line(error)}") from error
        if given.format is not None or path.endswith(f".{kind}"):
            raise
        what = f"{path} can't be read as {kind}, and its name does not say what it holds"
        raise ConfigError(f"{what}; give the format (--format {'|'.join(FORMATS)})") from error


def _in_order(frame: DataFrame, columns: Mapping[str, str]) -> DataFrame:
    """Without a time there is no order but that of the files, which stays."""
    if "timestamp" not in columns or "key" not in columns:
        return frame
    return in_order_of_time(frame)

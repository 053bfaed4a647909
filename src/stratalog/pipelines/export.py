"""Exports topics to a table: Parquet files in folders topic=NAME/date=DAY, the day of a record's timestamp in UTC.

An export is incremental. Each run continues where the last one ended, in steps of some million records. Each step
becomes part of the table exactly once (table_commits.py). A step writes files as large as possible; small files of many
steps are merged.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from stratalog.client.metadata import TopicInfo, TopicPartition
from stratalog.errors import ConfigError, OffsetOutOfRangeError, StorageError
from stratalog.pipelines.cluster import ClusterAddress, bounds_of
from stratalog.pipelines.export_plan import PartitionBounds, Step, after, plan_merges, plan_step
from stratalog.pipelines.job_watch import Counts, watched
from stratalog.pipelines.parquet_times import utc_times
from stratalog.pipelines.progress import NoProgress, Progress
from stratalog.pipelines.spark_errors import failures_explained
from stratalog.pipelines.table_commits import Commit, TableCommits, moves_for
from stratalog.pipelines.table_files import TableFile, table_files
from stratalog.spark.source import load_planned

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MIB = 1024**2
_NO_LIMIT = 2**63
_TASK_RECORDS = 250_000
_COLUMNS = ("key", "value", "headers", "partition", "offset", "timestamp", "timestampType", "topic")
# Not to_date(): that uses the session's time zone, and a table must not depend on the session that writes it.
_DAY = "date_from_unix_date(cast(floor(unix_micros(timestamp) / 86400000000) as int)) as date"


@dataclass(frozen=True)
class ExportOptions:
    """`step_records` is the most offsets in a step. `every` is the seconds between checks for new records, or None for
    one run. `merge_from` is the number of small files in a folder that are merged, or 0 for never. `allow_data_loss`
    continues if records were deleted before they were exported."""

    step_records: int = 10_000_000
    every: float | None = None
    file_bytes: int = 128 * MIB
    merge_from: int = 16
    allow_data_loss: bool = False
    dry_run: bool = False


@dataclass(frozen=True)
class Exported:
    """The outcome of a run, or the expected outcome of a dry run: `records` are then offsets, some without a record."""

    records: int = 0
    steps: int = 0
    merged_files: int = 0
    lost: int = 0


def export(
    spark: SparkSession,
    cluster: ClusterAddress,
    topics: Sequence[str],
    table: str,
    options: ExportOptions | None = None,
    *,
    progress: Progress | None = None,
    stop: threading.Event | None = None,
) -> Exported:
    """Export what the table does not contain yet. `stop` ends a continuous run after its current step.

    Raises ConfigError, TableInUseError, OffsetOutOfRangeError, SparkFailedError, and the errors of the broker and the
    disk.
    """
    with failures_explained():
        run = _Export(spark, cluster, topics, table, options or ExportOptions(), progress or NoProgress())
        return run.run(stop or threading.Event())


class _Export:
    def __init__(
        self,
        spark: SparkSession,
        cluster: ClusterAddress,
        topics: Sequence[str],
        table: str,
        options: ExportOptions,
        progress: Progress,
    ) -> None:
        _check(topics, options)
        self._spark = spark
        self._cluster = cluster
        self._topics = topics
        self._options = options
        self._progress = progress
        self._source_name = f"stratalog-export-{uuid.uuid4().hex}"
        self._reached = 0  # records reported as progress
        self._lost: dict[tuple[TopicPartition, int], int] = {}
        self._files = table_files(spark, table)
        self._commits = TableCommits(self._files)

    def run(self, stop: threading.Event) -> Exported:
        last = self._commits.last() if self._options.dry_run else self._commits.recover()
        done = Exported()
        with self._cluster.admin() as admin:
            while True:
                topics = [admin.describe_topic(name) for name in self._topics]
                _check_ids(last, topics)
                bounds = bounds_of(admin, topics)
                if self._options.dry_run:
                    return _expected(plan_step(last.offsets, bounds, _NO_LIMIT), self._options)
                last, done = self._catch_up(last, done, topics, bounds, stop)
                if self._options.every is None or stop.wait(self._options.every):
                    return replace(done, lost=sum(self._lost.values()))

    def _catch_up(
        self,
        last: Commit,
        done: Exported,
        topics: Sequence[TopicInfo],
        bounds: Mapping[TopicPartition, PartitionBounds],
        stop: threading.Event,
    ) -> tuple[Commit, Exported]:
        """Export in steps up to `bounds`."""
        self._progress.begin("exporting", plan_step(last.offsets, bounds, _NO_LIMIT).size, "records")
        topic_ids = {topic.name: str(topic.id) for topic in topics if topic.id}
        self._reached = 0
        while not stop.is_set():
            step = plan_step(last.offsets, bounds, self._options.step_records)
            self._note_loss(step, last)
            if not step.ranges:
                break
            last = self._write(last, step, topic_ids)
            self._reached += step.size
            self._progress.reached(self._reached)
            records = last.records
            last, merged = self._merge(last)
            done = Exported(done.records + records, done.steps + 1, done.merged_files + merged)
        return last, done

    def _note_loss(self, step: Step, last: Commit) -> None:
        for partition, count in step.lost.items():
            position = (partition, last.offsets[partition.topic][partition.partition])
            if position in self._lost:
                continue  # the partition is empty, so no export has moved its position since
            message = f"{count} records of {partition} were deleted before they were exported"
            if not self._options.allow_data_loss:
                raise OffsetOutOfRangeError(f"{message}; allow data loss to continue without them")
            self._progress.note(message)
            self._lost[position] = count

    def _write(self, last: Commit, step: Step, topic_ids: dict[str, str]) -> Commit:
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        number = last.number + 1
        folder = self._commits.stage(number)
        written = Observation()
        frame = self._read(step).observe(written, f.count(f.lit(1)).alias("records"))
        # The hint brings rows of a day together, in partitions of the size that Spark advises.
        frame = frame.hint("rebalance", "topic", "date").sortWithinPartitions("topic", "date", "partition", "offset")
        with utc_times(self._spark), watched(self._spark, lambda counts: self._report(step, counts)):
            frame.write.partitionBy("topic", "date").parquet(f"{self._files.root}/{folder}")
        staged = [file.path for file in self._files.files(folder)]
        commit = Commit(
            number,
            after(last.offsets, step),
            {**last.topic_ids, **topic_ids},
            int(written.get["records"]),
            moves_for(number, staged, folder),
        )
        self._commits.commit(commit)
        return commit

    def _report(self, step: Step, counts: Counts) -> None:
        """Count reading, shuffling and writing a record as a third of its progress each."""
        self._progress.within(self._reached + min(step.size, sum(counts) // 3))

    def _read(self, step: Step) -> DataFrame:
        # More tasks than partitions use all cores and show progress earlier.
        tasks = -(-step.size // _TASK_RECORDS) if step.size > _TASK_RECORDS else None
        options = self._cluster.range_options(
            step.ranges, fail_on_data_loss=not self._options.allow_data_loss, min_partitions=tasks
        )
        return load_planned(self._spark, self._source_name, options).selectExpr(*_COLUMNS, _DAY)

    def _merge(self, last: Commit) -> tuple[Commit, int]:
        """Merge small files in the folders of the last step. Return the last commit, and the number of merged files."""
        if not self._options.merge_from:
            return last, 0
        folders = {move.final.rpartition("/")[0] for move in last.moves}
        files = [file for folder in folders for file in self._files.files(folder)]
        groups = plan_merges(files, self._options.file_bytes, self._options.merge_from)
        if not groups:
            return last, 0
        number = last.number + 1
        folder = self._commits.stage(number)
        for group in groups:
            self._merge_group(group, folder)
        staged = [file.path for file in self._files.files(folder)]
        merged = [file.path for group in groups for file in group]
        commit = replace(last, number=number, records=0, moves=moves_for(number, staged, folder), removes=merged)
        self._commits.commit(commit)
        return commit, len(merged)

    def _merge_group(self, group: Sequence[TableFile], folder: str) -> None:
        root, target = self._files.root, group[0].path.rpartition("/")[0]
        frame = self._spark.read.parquet(*(f"{root}/{file.path}" for file in group))
        merged = frame.drop("topic", "date").coalesce(1).sortWithinPartitions("partition", "offset")
        with utc_times(self._spark):
            merged.write.mode("append").parquet(f"{root}/{folder}/{target}")


def _expected(step: Step, options: ExportOptions) -> Exported:
    return Exported(step.size, -(-step.size // options.step_records), 0, sum(step.lost.values()))


def _check(topics: Sequence[str], options: ExportOptions) -> None:
    if not topics:
        raise ConfigError("no topic is named; name at least one")
    least = {"step_records": 1, "file_bytes": 1, "merge_from": 0}
    for name, smallest in least.items():
        if getattr(options, name) < smallest:
            raise ConfigError(f"{name} is {getattr(options, name)}; it must be {smallest} or more")
    if options.every is not None and not options.every > 0:
        raise ConfigError(f"every is {options.every}; it must be more than 0 seconds")


def _check_ids(last: Commit, topics: Sequence[TopicInfo]) -> None:
    """A topic that was created again starts at offset 0, so its records would count as exported already."""
    for topic in topics:
        known = last.topic_ids.get(topic.name)
        if known is not None and topic.id is not None and known != str(topic.id):
            raise StorageError(
                f"topic {topic.name!r} was deleted and created again since the last export; export it to another table"
            )

"""Copies a topic into another one: with new keys (rekey), or with a new number of partitions (repartition).

Values, headers and timestamps are kept; the target assigns new offsets. Each record is written once, even if the job is
stopped and started again. This holds for Stratalog brokers; docs/spark.md describes others.

Order: records of one source partition are written in the order of their offsets. If all records of a key are in one
partition and keep their key, they stay in order. With new keys, the records of a key may come from several partitions,
which have no common order. `sort_by_time` sorts each key's records of one micro-batch by timestamp; this also reorders
records of one partition whose timestamps are out of order.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stratalog.client.admin import Admin, ConfigResource
from stratalog.client.metadata import TopicPartition
from stratalog.errors import ConfigError, TopicExistsError
from stratalog.pipelines.cluster import FORMAT, ClusterAddress, bounds_of
from stratalog.pipelines.export_plan import PartitionBounds
from stratalog.pipelines.job_state import JobState
from stratalog.pipelines.progress import NoProgress, Progress
from stratalog.pipelines.record_columns import as_bytes
from stratalog.pipelines.streams import in_order_of_time, run_stream
from stratalog.pipelines.target_topic import find_target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_KEPT_SETTINGS = ("cleanup.policy", "retention.ms", "retention.bytes", "max.message.bytes", "segment.bytes")


@dataclass(frozen=True)
class CopyOptions:
    """`key` is SQL over the columns key, value, headers, partition, offset, timestamp, or None to keep keys.
    `partitions` is the number for a new target, by default that of the source. `append` allows a target with records.
    """

    key: str | None = None
    partitions: int | None = None
    sort_by_time: bool = False
    append: bool = False
    state: str | None = None
    step_records: int = 1_000_000
    every: float | None = None
    dry_run: bool = False


@dataclass(frozen=True)
class Copied:
    """`records` counts the records written by this run; in a dry run, the offsets left to copy. `made` is True if the
    target was created, or in a dry run would be."""

    records: int
    state: str
    partitions: int
    made: bool


def rekey(
    spark: SparkSession,
    cluster: ClusterAddress,
    source: str,
    target: str,
    options: CopyOptions,
    *,
    progress: Progress | None = None,
    stop: threading.Event | None = None,
) -> Copied:
    """Copy with the key that `options.key` gives. Raises ConfigError, UnknownTopicError, TopicExistsError."""
    if not options.key or not options.key.strip():
        raise ConfigError("key is empty; set an SQL expression, like get_json_object(string(value), '$.customer')")
    return _copy("rekey", spark, cluster, source, target, options, progress or NoProgress(), stop)


def repartition(
    spark: SparkSession,
    cluster: ClusterAddress,
    source: str,
    target: str,
    options: CopyOptions,
    *,
    progress: Progress | None = None,
    stop: threading.Event | None = None,
) -> Copied:
    """Copy into a topic of `options.partitions` partitions. Raises ConfigError, UnknownTopicError, TopicExistsError."""
    if options.key is not None:
        raise ConfigError(f"key is {options.key!r}; repartition keeps the keys, rekey sets new ones")
    return _copy("repartition", spark, cluster, source, target, options, progress or NoProgress(), stop)


def _copy(
    job: str,
    spark: SparkSession,
    cluster: ClusterAddress,
    source: str,
    target: str,
    options: CopyOptions,
    progress: Progress,
    stop: threading.Event | None,
) -> Copied:
    if source == target:
        raise ConfigError(f"source and target are both {source!r}; copy into another topic, then move the readers")
    if options.step_records < 1:
        raise ConfigError(f"step_records is {options.step_records}; it must be 1 or more")
    identity = {"job": job, "source": source, "target": target, "key": options.key}
    state = JobState(spark, options.state, identity, job, source, target)
    with cluster.admin() as admin:
        info = admin.describe_topic(source)
        left = _left(bounds_of(admin, [info]), state.offsets().get(source, {}))
        frame = _frame(spark, cluster, source, options)
        partitions, exists = _check_target(admin, target, len(info.partitions), options, state)
        if options.dry_run:
            return Copied(left, state.path, partitions, made=not exists)
        state.claim()
        if not exists:
            admin.create_topic(target, partitions, config=_settings_of(admin, source))
    progress.begin(f"{job} {source}", None if options.every else left, "records")
    records = run_stream(frame, cluster, target, state.path, progress, every=options.every, stop=stop)
    return Copied(records, state.path, partitions, made=not exists)


def _left(bounds: Mapping[TopicPartition, PartitionBounds], done: Mapping[int, int]) -> int:
    starts = {partition: max(bound.earliest, done.get(partition.partition, 0)) for partition, bound in bounds.items()}
    return sum(max(bound.latest - starts[partition], 0) for partition, bound in bounds.items())


def _frame(spark: SparkSession, cluster: ClusterAddress, source: str, options: CopyOptions) -> DataFrame:
    read = {
        **cluster.read_options(),
        "subscribe": source,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(options.step_records),
    }
    frame = spark.readStream.format(FORMAT).options(**read).load()
    key = "key" if options.key is None else as_bytes(frame, options.key, "key")
    frame = frame.selectExpr(f"{key} as key", "value", "headers", "timestamp")
    return in_order_of_time(frame) if options.sort_by_time else frame


def _check_target(
    admin: Admin, target: str, source_partitions: int, options: CopyOptions, state: JobState
) -> tuple[int, bool]:
    """Return the number of partitions of the existing or future target, and whether it exists."""
    info = find_target(admin, target, options.partitions, state)
    if info is None:
        return options.partitions or source_partitions, False
    is_empty = all(bound.latest == 0 for bound in bounds_of(admin, [info]).values())
    if not is_empty and not state.is_started and not options.append:
        raise TopicExistsError(
            f"topic {target!r} contains records, and this job has no state that shows that it wrote them; name another "
            "target, or append to it (--append)"
        )
    return len(info.partitions), True


def _settings_of(admin: Admin, topic: str) -> dict[str, object]:
    """Return the settings to copy: those of _KEPT_SETTINGS that differ from the default."""
    entries = admin.describe_config(ConfigResource.topic(topic), names=_KEPT_SETTINGS)
    return {name: entry.value for name, entry in entries.items() if not entry.is_default and entry.value is not None}

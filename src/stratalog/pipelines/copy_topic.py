"""A topic copied into another: with other keys (rekey), or over another number of partitions (repartition).

Values, headers and timestamps are kept; offsets are the target's own. Each record is written once, also when the job is
stopped and started again (on a broker of ours; on others see the sink's page).

Order: records of one source partition are written in the order of their offsets. So with keys as they were, where all
records of a key are in one partition, each key's records stay in order. With new keys, records of a key that come from
several partitions have no order between them to keep; `sort_by_time` puts those of one step in the order of their
timestamps, and then records of one partition with timestamps out of order change places.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stratalog.client.admin import Admin, ConfigResource
from stratalog.errors import ConfigError, TopicExistsError
from stratalog.pipelines.cluster import FORMAT, ClusterAddress, bounds_of
from stratalog.pipelines.export_plan import Bounds
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
    """`key`: SQL over the columns key, value, headers, partition, offset, timestamp; None: as it is. `partitions`: of a
    target that is made, by default as many as the source has. `append`: also to a target that has records."""

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
    """`records`: written by this run; in a dry run, offsets that are left to copy. `made`: whether the target was."""

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
        raise ConfigError("key is empty; give an expression in SQL, like get_json_object(string(value), '$.customer')")
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
        raise ConfigError("key is given; repartition keeps keys as they are, rekey gives new ones")
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
        raise ConfigError(f"source and target are both {source!r}; copy into another topic, then let readers move over")
    if options.step_records < 1:
        raise ConfigError(f"step_records is {options.step_records}; it must be 1 or more")
    whose = {"job": job, "source": source, "target": target, "key": options.key}
    state = JobState(spark, options.state, whose, job, source, target)
    with cluster.admin() as admin:
        found = admin.describe_topic(source)
        left = _left(bounds_of(admin, [found]), state.offsets().get(source, {}))
        frame = _frame(spark, cluster, source, options)
        partitions, is_there = _check_target(admin, target, len(found.partitions), options, state)
        if options.dry_run:
            return Copied(left, state.path, partitions, made=not is_there)
        state.claim()
        if not is_there:
            admin.create_topic(target, partitions, config=_settings_of(admin, source))
    progress.begin(f"{job} {source}", None if options.every else left, "records")
    records = run_stream(frame, cluster, target, state.path, progress, every=options.every, stop=stop)
    return Copied(records, state.path, partitions, made=not is_there)


def _left(bounds: Mapping[tuple[str, int], Bounds], done: Mapping[int, int]) -> int:
    starts = {place: max(bound.earliest, done.get(place[1], 0)) for place, bound in bounds.items()}
    return sum(max(bound.latest - starts[place], 0) for place, bound in bounds.items())


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
    """How many partitions it has or is to get, and whether it is there."""
    found = find_target(admin, target, options.partitions, state)
    if found is None:
        return options.partitions or source_partitions, False
    is_empty = all(bound.latest == 0 for bound in bounds_of(admin, [found]).values())
    if not is_empty and not state.is_started and not options.append:
        what = f"topic {target!r} has records already, and no state of this job says that they are its own"
        raise TopicExistsError(f"{what}; name another target, or append to it (--append)")
    return len(found.partitions), True


def _settings_of(admin: Admin, topic: str) -> dict[str, object]:
    """Those that its owner chose, for a copy that is kept as long."""
    found = admin.describe_config(ConfigResource.topic(topic), names=_KEPT_SETTINGS)
    return {name: entry.value for name, entry in found.items() if not entry.is_default and entry.value is not None}

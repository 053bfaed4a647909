"""The options of a read as data: which partitions, from where to where, and how. Pure.

options.py makes them from the strings that Spark passes; a job that has planned its ranges makes them itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from stratalog.client.metadata import TopicPartition
from stratalog.spark.predicate import EVERYTHING, Predicate
from stratalog.spark.scan_request import DEFAULT_PATIENCE_SECONDS, READ_UNCOMMITTED, OffsetRange

LATEST, EARLIEST = -1, -2  # stand for an offset, in options as in requests
DEFAULT_TRIGGER_DELAY_MS = 15 * 60 * 1000


# Start and end


@dataclass(frozen=True)
class AtEdge:
    """All partitions at their start (EARLIEST) or at their end (LATEST)."""

    edge: int


@dataclass(frozen=True)
class AtOffsets:
    """For each partition an offset, EARLIEST or LATEST."""

    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True)
class AtTimestamps:
    """The first record at or after a time in milliseconds: a time for each partition, or one for all (`everywhere`).

    If there is no such record, a start is an error, or the end of the partition with `or_latest`. An end is then always
    the end of the partition.
    """

    timestamps: Mapping[TopicPartition, int] = field(default_factory=dict)
    everywhere: int | None = None
    or_latest: bool = False


Limit = AtEdge | AtOffsets | AtTimestamps


# Partitions


@dataclass(frozen=True)
class Subscribed:
    topics: tuple[str, ...]

    def __str__(self) -> str:
        return f"subscribe={','.join(self.topics)}"


@dataclass(frozen=True)
class Matching:
    pattern: str

    def __str__(self) -> str:
        return f"subscribePattern={self.pattern}"


@dataclass(frozen=True)
class Assigned:
    partitions: tuple[TopicPartition, ...]

    def __str__(self) -> str:
        return f"assign={','.join(map(str, self.partitions))}"


Strategy = Subscribed | Matching | Assigned


@dataclass(frozen=True)
class ReadOptions:
    """The options of one read. `kafka` has the settings of the client, by Kafka's names.

    Without `data_dirs`, the data directories are detected. An empty tuple means that files must not be read directly.
    """

    strategy: Strategy
    kafka: Mapping[str, str]
    starting: Limit
    ending: Limit
    predicate: Predicate = EVERYTHING
    isolation: str = READ_UNCOMMITTED
    fail_on_data_loss: bool = True
    include_headers: bool = False
    push_filters: bool | None = None  # for frames that are used once, see push_down.py
    data_dirs: tuple[str, ...] | None = None
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    max_trigger_delay_ms: int = DEFAULT_TRIGGER_DELAY_MS
    group_id: str | None = None
    patience_seconds: float = DEFAULT_PATIENCE_SECONDS
    offset_attempts: int = 3  # before an end offset that went back is believed
    offset_interval_ms: int = 1000
    ignored: tuple[str, ...] = ()  # options of streams that were given for a batch


def options_for_ranges(
    ranges: Iterable[OffsetRange],
    kafka: Mapping[str, str],
    *,
    isolation: str,
    include_headers: bool,
    fail_on_data_loss: bool,
    data_dirs: tuple[str, ...] | None,
    min_partitions: int | None,
) -> ReadOptions:
    """Return the options of a batch that reads exactly these ranges."""
    by_partition = {TopicPartition(each.topic, each.partition): each for each in ranges}
    return ReadOptions(
        strategy=Assigned(tuple(sorted(by_partition))),
        kafka=kafka,
        starting=AtOffsets({partition: each.start for partition, each in by_partition.items()}),
        ending=AtOffsets({partition: each.end for partition, each in by_partition.items()}),
        isolation=isolation,
        include_headers=include_headers,
        fail_on_data_loss=fail_on_data_loss,
        data_dirs=data_dirs,
        min_partitions=min_partitions,
    )

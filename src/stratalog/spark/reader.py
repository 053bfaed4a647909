"""A batch read: offsets are looked up once, when the query is planned, and each task scans its range.

A task reads the files if it can access them, and otherwise over the wire; the rows are the same. Spark's plans show
only the name of a Python source. The way of reading is therefore logged at level INFO, and `describe_read` returns it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from stratalog.client.metadata import TopicPartition
from stratalog.errors import ClientError
from stratalog.spark.broker_offsets import NONE_FOUND, BrokerOffsets, Partitions
from stratalog.spark.direct_plan import FilesUnavailableError, partition_directory
from stratalog.spark.options import batch_options
from stratalog.spark.planning import prune, split
from stratalog.spark.read_options import ReadOptions
from stratalog.spark.scan_request import OffsetRange, ScanRequest
from stratalog.spark.scan_task import ScanPartition, TaskReader, read_partition
from stratalog.spark.schema import ALL_COLUMNS, COLUMNS, columns_of
from stratalog.spark.worker_process import freeze_modules

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

logger = logging.getLogger("stratalog.spark")


def scan_request(options: ReadOptions, schema: StructType) -> ScanRequest:
    return _request(options, columns_of(schema))


def _request(options: ReadOptions, columns: tuple[str, ...]) -> ScanRequest:
    return ScanRequest(
        columns=columns,
        kafka=options.kafka,
        predicate=options.predicate,
        isolation=options.isolation,
        fail_on_data_loss=options.fail_on_data_loss,
        data_dirs=options.data_dirs or (),
        patience_seconds=options.patience_seconds,
    )


class StratalogBatchReader(DataSourceReader):
    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.request = scan_request(options, schema)

    def partitions(self) -> list[InputPartition]:
        planned = plan_batch(self.options, self.request)
        freeze_modules()
        return list(planned)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self.request)

    def __reduce__(self) -> tuple[Any, ...]:
        return TaskReader, (self.request,)


def plan_batch(options: ReadOptions, request: ScanRequest) -> list[ScanPartition]:
    """Plan the tasks of a batch. The request's predicate includes the filters that Spark pushed down."""
    broker = BrokerOffsets(options.kafka, options.strategy, options.isolation)
    partitions = broker.partitions()
    start = broker.resolve(options.starting, partitions.partitions, is_start=True)
    end = broker.resolve(options.ending, partitions.partitions, is_start=False)
    ranges = [
        OffsetRange(*partition, start[partition], end[partition], partitions.topic_ids.get(partition.topic))
        for partition in partitions.partitions
    ]
    ranges = _after_timestamp(broker, prune(ranges, request.predicate), request)
    tasks = split(ranges, options.min_partitions, options.max_records_per_partition)
    planned = plan_tasks(tasks, data_dirs(options, broker, partitions), broker, partitions)
    logger.info("%s", _described(options, request, planned))
    return planned


def plan_tasks(
    tasks: Sequence[OffsetRange], dirs: tuple[str, ...], broker: BrokerOffsets, known: Partitions
) -> list[ScanPartition]:
    """Return the tasks. Those that read files get the replicas that are in sync now, after the end offsets were looked
    up: one that was in sync only before may lack records, or have others."""
    in_sync = broker.in_sync(known) if dirs and tasks else {}
    return [ScanPartition(task, dirs, in_sync.get(TopicPartition(task.topic, task.partition), ())) for task in tasks]


def _after_timestamp(broker: BrokerOffsets, ranges: list[OffsetRange], request: ScanRequest) -> list[OffsetRange]:
    """Start the ranges at the first record at or after the predicate's timestamp, which the broker looks up. Drop
    ranges without such a record."""
    first = request.predicate.from_timestamp
    if first <= 0 or not ranges:  # a record without a timestamp has -1, which brokers can't look up
        return ranges
    by_partition = {TopicPartition(each.topic, each.partition): each for each in ranges}
    offsets = broker.lookup(dict.fromkeys(by_partition, first))
    return [
        replace(each, start=max(each.start, offsets[partition]))
        for partition, each in by_partition.items()
        if offsets[partition] != NONE_FOUND
    ]


def data_dirs(options: ReadOptions, broker: BrokerOffsets, partitions: Partitions) -> tuple[str, ...]:
    """Return the directories in which tasks look for files: those of the option, or by default those of the brokers, if
    this process sees there the files of all partitions, with the same topic ids."""
    if options.data_dirs is not None:
        return options.data_dirs
    try:
        reported = broker.directories(partitions.partitions)
        directories = tuple(sorted({path for paths in reported.values() for path in paths}))
        in_sync = broker.in_sync(partitions)
        for partition in partitions.partitions:
            topic_id = partitions.topic_ids.get(partition.topic)
            if topic_id is None:
                return ()  # without an id, these could be the files of another broker
            partition_directory(directories, *partition, topic_id, in_sync.get(partition, ()))
    except (FilesUnavailableError, ClientError, OSError) as error:
        logger.info("reading over the wire: %s", error)
        return ()
    return directories


def describe_read(options: Mapping[str, str]) -> str:
    """Describe a batch read in one line: direct or over the wire, offsets, tasks, columns and filter."""
    parsed = batch_options(options)
    columns = ALL_COLUMNS if parsed.include_headers else COLUMNS
    request = _request(parsed, columns)
    return _described(parsed, request, plan_batch(parsed, request))


def _described(options: ReadOptions, request: ScanRequest, planned: list[ScanPartition]) -> str:
    way = "direct" if any(task.data_dirs for task in planned) else "over the wire"
    size = sum(task.range.size for task in planned)
    return (
        f"stratalog[{options.strategy}] {way}: {size} offsets in {len(planned)} tasks, columns "
        f"{', '.join(request.columns)}, where {request.predicate}"
    )

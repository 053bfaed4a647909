"""A batch read: offsets are looked up once, when the query is planned, and each task scans its range.

Each task takes the files where it sees them, and the wire where it does not: the rows are the same. Spark shows a
Python source in its plans by name alone, so which way it is, is logged at level INFO, and `describe_read` tells it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
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
from stratalog.spark.schema import ALL_COLUMNS, COLUMNS, wanted_columns
from stratalog.spark.worker_memory import settle

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

logger = logging.getLogger("stratalog.spark")


def scan_request(options: ReadOptions, schema: StructType) -> ScanRequest:
    return _request(options, wanted_columns(schema))


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
        settle()
        return list(planned)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self.request)

    def __reduce__(self) -> tuple[Any, ...]:
        return TaskReader, (self.request,)


def plan_batch(options: ReadOptions, request: ScanRequest) -> list[ScanPartition]:
    """The tasks of a batch. `request` has the predicate, which filters that Spark pushed down may have narrowed."""
    broker = BrokerOffsets(options.kafka, options.strategy, options.isolation)
    partitions = broker.partitions()
    start = broker.resolve(options.starting, partitions.places, is_start=True)
    end = broker.resolve(options.ending, partitions.places, is_start=False)
    ranges = [
        OffsetRange(place.topic, place.partition, start[place], end[place], partitions.topic_ids.get(place.topic))
        for place in partitions.places
    ]
    ranges = _after_timestamp(broker, prune(ranges, request.predicate), request)
    tasks = split(ranges, options.min_partitions, options.max_records_per_partition)
    dirs = data_dirs(options, broker, partitions)
    planned = [ScanPartition(one, dirs) for one in tasks]
    logger.info("%s", _described(options, request, planned))
    return planned


def _after_timestamp(broker: BrokerOffsets, ranges: list[OffsetRange], request: ScanRequest) -> list[OffsetRange]:
    """Nothing before the first record at or after a time can be wanted: the broker's index knows where that is."""
    first = request.predicate.from_timestamp
    if first <= 0 or not ranges:  # a record without a time has -1, which no broker looks up
        return ranges
    places = {TopicPartition(one.topic, one.partition): one for one in ranges}
    found = broker.lookup(dict.fromkeys(places, first))
    return [
        replace(one, start=max(one.start, found[place])) for place, one in places.items() if found[place] != NONE_FOUND
    ]


def data_dirs(options: ReadOptions, broker: BrokerOffsets, partitions: Partitions) -> tuple[str, ...]:
    """Where tasks look for files: what the option says. Where it says nothing, the brokers' own directories, if the
    files of all partitions are to be seen there from here, and are those of the same topics."""
    if options.data_dirs is not None:
        return options.data_dirs
    try:
        told = broker.directories(partitions.places)
        found = tuple(sorted({path for paths in told.values() for path in paths}))
        for place in partitions.places:
            topic_id = partitions.topic_ids.get(place.topic)
            if topic_id is None:
                return ()  # nothing would tell these files from those of another broker
            partition_directory(found, place.topic, place.partition, topic_id)
    except (FilesUnavailableError, ClientError, OSError) as error:
        logger.info("reading over the wire: %s", error)
        return ()
    return found


def describe_read(options: Mapping[str, str]) -> str:
    """What a batch read with these options would do, in a line: which way, how much, in how many tasks."""
    parsed = batch_options(options)
    columns = ALL_COLUMNS if parsed.include_headers else COLUMNS
    request = _request(parsed, columns)
    return _described(parsed, request, plan_batch(parsed, request))


def _described(options: ReadOptions, request: ScanRequest, planned: list[ScanPartition]) -> str:
    way = "direct" if any(one.data_dirs for one in planned) else "over the wire"
    size = sum(one.range.size for one in planned)
    return (
        f"stratalog[{options.strategy}] {way}: {size} offsets in {len(planned)} tasks, columns "
        f"{', '.join(request.columns)}, where {request.predicate}"
    )

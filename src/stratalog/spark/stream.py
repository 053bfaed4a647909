"""The stream reader: plans micro-batches, and handles topics that change while the query runs.

Offsets in the checkpoint have the format of Spark's Kafka connector, {"topic": {"0": 23}}, so each can continue from
the other's checkpoint. If the end of a micro-batch is before its start, the topic was created again, and the new topic
is read from its beginning to that end. Progress is committed to the consumer group `group.id`, so that tools can show
its lag.

Spark calls the reader in a separate process, one call at a time, and `read` in the executors.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from stratalog.client.metadata import TopicPartition
from stratalog.errors import ClientError
from stratalog.spark.broker_offsets import BrokerOffsets, Offsets, Partitions
from stratalog.spark.data_loss import report_data_loss
from stratalog.spark.latest_offsets import LatestOffsets
from stratalog.spark.planning import Json, backlog, from_json, limit_bytes, limit_rows, prune, split, to_json
from stratalog.spark.read_options import LATEST, AtEdge, AtOffsets, AtTimestamps, ReadOptions
from stratalog.spark.reader import data_dirs, plan_tasks, scan_request
from stratalog.spark.scan_request import OffsetRange
from stratalog.spark.scan_task import TaskReader, read_partition
from stratalog.spark.worker_process import freeze_modules

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

logger = logging.getLogger("stratalog.spark")

_SIZES_SECONDS = 10.0  # how long average record sizes are reused


class StratalogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Create a reader without connecting, because Spark also creates one to plan a query."""
        self.options = options
        self.request = scan_request(options, schema)
        self._broker = BrokerOffsets(options.kafka, options.strategy, options.isolation)
        self._latest = LatestOffsets(self._broker)
        self._initial: Offsets | None = None
        self._holds_initial = False  # the first micro-batch must be empty
        self._has_planned = False  # False while a micro-batch of the checkpoint may be repeated
        self._target: Offsets | None = None  # of Trigger.AvailableNow
        self._is_available_now = False
        self._reported: Offsets | None = None
        self._triggered_at = float("-inf")
        self._committed: Json | None = None
        self._seen_ids: dict[str, UUID] = {}
        self._sizes: dict[TopicPartition, float] = {}
        self._sizes_until = float("-inf")
        self._dirs: tuple[frozenset[TopicPartition], tuple[str, ...]] | None = None

    # Offsets

    def initialOffset(self) -> Json:  # noqa: N802 - Spark's names
        """Return the start of the first micro-batch.

        Spark calls this again if the first micro-batch has not been completed. A start like `latest` would then differ.
        So such a start becomes the end of an empty first micro-batch, and is in the checkpoint.
        """
        partitions = self._latest.partitions()
        self._initial = self._broker.resolve(self.options.starting, partitions.partitions, is_start=True)
        self._holds_initial = _varies(self.options)
        self._has_planned = False
        self._remember(partitions)
        freeze_modules()
        return to_json(self._initial)

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: N802
        self._commit(start)
        self._has_planned = True
        begin = from_json(start)
        holds, self._holds_initial = self._holds_initial, False
        if holds and begin == self._initial:
            return start
        latest = self._available(begin)
        self._reported = latest
        end = self._limited(begin, latest, limit)
        return start if end is None else to_json(end)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return one of the limits; `latestOffset` applies all that are set."""
        options = self.options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> Json | None:  # noqa: N802
        return None if self._reported is None else to_json(self._reported)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._is_available_now = True
        self._target = None

    def _available(self, begin: Offsets) -> Offsets:
        """Return the end offsets of all existing partitions, and of those that were read before."""
        if self._is_available_now:
            if self._target is None:
                self._target = self._existing(begin)
            return self._target
        return self._existing(begin)

    def _existing(self, begin: Offsets) -> Offsets:
        latest, partitions = self._plausible(begin)
        recreated = self._recreated(partitions)
        ends = dict(latest)
        for partition, offset in begin.items():
            if partition not in latest:
                self._report_missing(partition, partitions)
                ends[partition] = offset  # nothing to read; if the partition comes back, reading continues here
            elif partition.topic in recreated and offset > 0:
                ends[partition] = min(latest[partition], offset - 1)
        for partition, end in ends.items():
            if end < begin.get(partition, end):
                event = "created again" if partition.topic in recreated else "created again, or lost its last records"
                report_data_loss(
                    f"{partition} was {event}: it was read up to offset {begin[partition]}, and now ends at offset "
                    f"{latest[partition]}",
                    self.options.fail_on_data_loss,
                )
        self._remember(partitions)
        return ends

    def _plausible(self, begin: Offsets) -> tuple[Offsets, Partitions]:
        """Look up the end offsets. A new leader may not know its end yet, so an end before the offsets that were read
        is looked up again a few times, unless the topic is known to be another one."""
        latest, partitions = self._latest.get()
        for _ in range(self.options.offset_attempts - 1):
            recreated = self._recreated(partitions)
            if all(
                end >= begin.get(partition, end) or partition.topic in recreated for partition, end in latest.items()
            ):
                break
            time.sleep(self.options.offset_interval_ms / 1000)
            latest, partitions = self._latest.get(fresh=True)
        return latest, partitions

    def _report_missing(self, partition: TopicPartition, partitions: Partitions) -> None:
        key = frozenset(partitions.partitions)
        if key != self._warned_for:
            report_data_loss(f"{partition} does not exist any more", self.options.fail_on_data_loss)
            self._warned_for = key

    _warned_for: frozenset[TopicPartition] | None = None

    def _recreated(self, partitions: Partitions) -> set[str]:
        return {
            topic
            for topic, topic_id in partitions.topic_ids.items()
            if topic_id is not None and self._seen_ids.get(topic, topic_id) != topic_id
        }

    def _remember(self, partitions: Partitions) -> None:
        self._seen_ids |= {topic: known for topic, known in partitions.topic_ids.items() if known is not None}

    # Limits of a micro-batch

    def _limited(self, begin: Offsets, latest: Offsets, limit: ReadLimit) -> Offsets | None:
        """Return the end of the micro-batch, or None to wait for more records."""
        options = self.options
        if isinstance(limit, ReadAllAvailable):
            return latest
        known = {partition: begin[partition] for partition in latest if partition in begin}
        added = [partition for partition in latest if partition not in begin]
        known |= self._broker.earliest(added) if added else {}
        if self._waits(backlog(known, latest)):
            return None
        ends = latest
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else options.max_offsets_per_trigger
        if most is not None:
            ends = limit_rows(known, ends, most)
        most = limit.max_bytes if isinstance(limit, ReadMaxBytes) else options.max_bytes_per_trigger
        if most is not None:
            by_bytes = limit_bytes(known, latest, self._bytes_per_offset(latest), most)
            ends = {partition: min(end, by_bytes[partition]) for partition, end in ends.items()}
        return ends

    def _waits(self, rows: int) -> bool:
        """Return whether to wait for minOffsetsPerTrigger, which ends after maxTriggerDelay. A trigger availableNow
        does not wait."""
        least = self.options.min_offsets_per_trigger
        if least is None or self._is_available_now:
            return False
        now = time.monotonic()
        is_late = (now - self._triggered_at) * 1000 >= self.options.max_trigger_delay_ms
        if rows < least and not is_late:
            return True
        self._triggered_at = now
        return False

    def _bytes_per_offset(self, latest: Offsets) -> Mapping[TopicPartition, float]:
        """Return the average size of a record in each partition, compressed as on the broker's disk."""
        now = time.monotonic()
        if now >= self._sizes_until or any(partition not in self._sizes for partition in latest):
            earliest = self._broker.earliest(latest)
            sizes = self._broker.sizes(latest)
            self._sizes = {
                partition: sizes.get(partition, 0) / max(1, latest[partition] - earliest[partition])
                for partition in latest
            }
            self._sizes_until = now + _SIZES_SECONDS
        return self._sizes

    # Micro-batches

    def partitions(self, start: Json, end: Json) -> list[InputPartition]:
        begin, until = from_json(start), from_json(end)
        if begin == until:
            return []
        is_first = begin == self._initial and not self._has_planned
        begin = self._starts(begin, until, is_first)
        known = self._latest.known()
        ranges = [
            OffsetRange(*partition, begin[partition], until[partition], known.topic_ids.get(partition.topic))
            for partition in sorted(until)
            if partition in begin
        ]
        ranges = prune(ranges, self.request.predicate)
        tasks = split(ranges, self.options.min_partitions, self.options.max_records_per_partition)
        return list(plan_tasks(tasks, self._data_dirs(known) if tasks else (), self._broker, known))

    def _starts(self, begin: Offsets, until: Offsets, is_first: bool) -> Offsets:
        fail = self.options.fail_on_data_loss
        added = [partition for partition in until if partition not in begin]
        recreated = [partition for partition in until if until[partition] < begin.get(partition, 0)]
        if is_first:
            # A repetition of the first, empty micro-batch, whose start was at another end of the log.
            return {
                partition: min(offset, until[partition]) for partition, offset in begin.items() if partition in until
            }
        starts = {partition: begin[partition] for partition in until if partition in begin}
        for partition in begin:
            if partition not in until:
                report_data_loss(f"{partition} does not exist any more", fail)
        for partition in recreated:
            report_data_loss(
                f"{partition} went back from offset {begin[partition]} to {until[partition]}: it was created again",
                fail,
            )
        for partition, offset in self._broker.earliest([*added, *recreated]).items():
            if offset and partition in added:
                report_data_loss(f"{partition} is new, but starts at offset {offset} instead of 0", fail)
            starts[partition] = min(offset, until[partition])
        return starts

    def _data_dirs(self, known: Partitions) -> tuple[str, ...]:
        """Return the data directories. They are looked up once, and again when the partitions have changed."""
        key = frozenset(known.partitions)
        if self._dirs is None or self._dirs[0] != key:
            self._dirs = (key, data_dirs(self.options, self._broker, known))
        return self._dirs[1]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self.request)

    def __reduce__(self) -> tuple[Any, ...]:
        return TaskReader, (self.request,)

    # Groups

    def commit(self, end: Json) -> None:
        self._commit(end)

    def _commit(self, done: Json) -> None:
        """Commit progress to `group.id`. Spark requests the next offsets only when everything before is done, so this
        does not wait for Spark's own commit, which comes with the next micro-batch."""
        group = self.options.group_id
        if group is None or done == self._committed:
            return
        self._committed = done
        try:
            self._broker.commit(group, from_json(done)).check()
        except ClientError as error:
            logger.warning(
                "progress could not be committed to group.id %r; the next commit will include it: %s", group, error
            )

    def stop(self) -> None:
        """Do nothing: the process ends after this call, and closes its connections."""


def _varies(options: ReadOptions) -> bool:
    """Return whether the same options may resolve to another start later."""
    starting = options.starting
    if isinstance(starting, AtEdge):
        return starting.edge == LATEST
    if isinstance(starting, AtOffsets):
        return LATEST in starting.offsets.values()
    assert isinstance(starting, AtTimestamps)
    return starting.or_latest

"""A stream: what each micro-batch reads, and what becomes of topics that change meanwhile.

Offsets in the checkpoint have the stock connector's form, {"topic": {"0": 23}}, so that either can go on from the
other's checkpoint. An end that lies before its start says that the topic was made again: all of the new one up to that
end is read then. What has been read is committed to the consumer group `group.id`, so that its lag is to be seen.

Spark calls this in a process of its own, one call at a time; `read` in the executors.
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
from stratalog.spark.reader import data_dirs, scan_request
from stratalog.spark.scan_request import OffsetRange
from stratalog.spark.scan_task import ScanPartition, TaskReader, read_partition
from stratalog.spark.worker_memory import settle

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

logger = logging.getLogger("stratalog.spark")

_SIZES_SECONDS = 10.0  # how long the average sizes of records are taken for known


class StratalogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Does not connect: one is made to plan a query, too."""
        self.options = options
        self.request = scan_request(options, schema)
        self._broker = BrokerOffsets(options.kafka, options.strategy, options.isolation)
        self._latest = LatestOffsets(self._broker)
        self._initial: Offsets | None = None
        self._holds_initial = False  # whether the first micro-batch has to end where it begins
        self._is_under_way = False  # whether micro-batches are being made, and not one of the checkpoint done again
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
        """Spark asks for it again where the first micro-batch has not been done yet. One that would be another then, as
        `latest` is, must not be the start of anything: so it is the end of a first, empty micro-batch."""
        partitions = self._latest.partitions()
        self._initial = self._broker.resolve(self.options.starting, partitions.places, is_start=True)
        self._holds_initial = _varies(self.options)
        self._is_under_way = False
        self._remember(partitions)
        settle()
        return to_json(self._initial)

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: N802
        self._commit(start)
        self._is_under_way = True
        begin = from_json(start)
        holds, self._holds_initial = self._holds_initial, False
        if holds and begin == self._initial:
            return start
        latest = self._available(begin)
        self._reported = latest
        end = self._limited(begin, latest, limit)
        return start if end is None else to_json(end)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """One of them; `latestOffset` keeps to all that are set."""
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
        """How far there is something to read: of all that exist and of those that were being read."""
        if self._is_available_now:
            if self._target is None:
                self._target = self._existing(begin)
            return self._target
        return self._existing(begin)

    def _existing(self, begin: Offsets) -> Offsets:
        latest, partitions = self._believable(begin)
        again = self._made_again(partitions)
        ends = dict(latest)
        for place, offset in begin.items():
            if place not in latest:
                self._gone(place, partitions)
                ends[place] = offset  # nothing to read, and where to go on should it come back
            elif place.topic in again and offset > 0:
                ends[place] = min(latest[place], offset - 1)
        for place, end in ends.items():
            if end < begin.get(place, end):
                what = "made again" if place.topic in again else "made again, or lost its last records"
                report_data_loss(
                    f"{place} was {what}: {begin[place]} had been read, and now it ends at {latest[place]}",
                    self.options.fail_on_data_loss,
                )
        self._remember(partitions)
        return ends

    def _believable(self, begin: Offsets) -> tuple[Offsets, Partitions]:
        """A leader that has just taken over may not know its end yet: one that lies before what was read, of a topic
        that is the same as far as is known, is asked for some times more."""
        latest, partitions = self._latest.get()
        for _ in range(self.options.offset_attempts - 1):
            again = self._made_again(partitions)
            if all(end >= begin.get(place, end) or place.topic in again for place, end in latest.items()):
                break
            time.sleep(self.options.offset_interval_ms / 1000)
            latest, partitions = self._latest.get(anew=True)
        return latest, partitions

    def _gone(self, place: TopicPartition, partitions: Partitions) -> None:
        key = frozenset(partitions.places)
        if key != self._warned_for:
            report_data_loss(f"{place} does not exist any more", self.options.fail_on_data_loss)
            self._warned_for = key

    _warned_for: frozenset[TopicPartition] | None = None

    def _made_again(self, partitions: Partitions) -> set[str]:
        return {
            topic
            for topic, topic_id in partitions.topic_ids.items()
            if topic_id is not None and self._seen_ids.get(topic, topic_id) != topic_id
        }

    def _remember(self, partitions: Partitions) -> None:
        self._seen_ids |= {topic: known for topic, known in partitions.topic_ids.items() if known is not None}

    # How much at once

    def _limited(self, begin: Offsets, latest: Offsets, limit: ReadLimit) -> Offsets | None:
        """None: not yet."""
        options = self.options
        if isinstance(limit, ReadAllAvailable):
            return latest
        known = {place: begin[place] for place in latest if place in begin}
        added = [place for place in latest if place not in begin]
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
            ends = {place: min(end, by_bytes[place]) for place, end in ends.items()}
        return ends

    def _waits(self, rows: int) -> bool:
        """For minOffsetsPerTrigger, as long as maxTriggerDelay allows. What is available now is not waited for."""
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
        """Averages over what each partition has on its broker's disk, compressed as it is there."""
        now = time.monotonic()
        if now >= self._sizes_until or any(place not in self._sizes for place in latest):
            earliest = self._broker.earliest(latest)
            sizes = self._broker.sizes(latest)
            self._sizes = {place: sizes.get(place, 0) / max(1, latest[place] - earliest[place]) for place in latest}
            self._sizes_until = now + _SIZES_SECONDS
        return self._sizes

    # Micro-batches

    def partitions(self, start: Json, end: Json) -> list[InputPartition]:
        begin, until = from_json(start), from_json(end)
        if begin == until:
            return []
        is_first = begin == self._initial and not self._is_under_way
        begin = self._starts(begin, until, is_first)
        known = self._latest.known()
        ranges = [
            OffsetRange(place.topic, place.partition, begin[place], until[place], known.topic_ids.get(place.topic))
            for place in sorted(until)
            if place in begin
        ]
        ranges = prune(ranges, self.request.predicate)
        tasks = split(ranges, self.options.min_partitions, self.options.max_records_per_partition)
        dirs = self._data_dirs(known) if tasks else ()
        return [ScanPartition(one, dirs) for one in tasks]

    def _starts(self, begin: Offsets, until: Offsets, is_first: bool) -> Offsets:
        fail = self.options.fail_on_data_loss
        added = [place for place in until if place not in begin]
        again = [place for place in until if until[place] < begin.get(place, 0)]
        if is_first:
            # The first micro-batch once more: it ended where it began, at another end of the log than now.
            return {place: min(offset, until[place]) for place, offset in begin.items() if place in until}
        starts = {place: begin[place] for place in until if place in begin}
        for place in begin:
            if place not in until:
                report_data_loss(f"{place} does not exist any more", fail)
        for place in again:
            report_data_loss(f"{place} went from offset {begin[place]} back to {until[place]}: it was made again", fail)
        for place, offset in self._broker.earliest([*added, *again]).items():
            if offset and place in added:
                report_data_loss(f"{place} is new and begins at {offset}, not at 0", fail)
            starts[place] = min(offset, until[place])
        return starts

    def _data_dirs(self, known: Partitions) -> tuple[str, ...]:
        """Looked for once, and again when there are other partitions."""
        key = frozenset(known.places)
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
        """Spark asks for what comes after an offset only when all before it is done; so this is said at once, where its
        own commit comes with the next micro-batch."""
        group = self.options.group_id
        if group is None or done == self._committed:
            return
        self._committed = done
        try:
            self._broker.commit(group, from_json(done)).check()
        except ClientError as error:
            logger.warning(
                "progress could not be committed to group.id %r, and will be with the next: %s", group, error
            )

    def stop(self) -> None:
        """The process ends after this, and its connections with it."""


def _varies(options: ReadOptions) -> bool:
    """Whether the same options may give another start a moment later."""
    starting = options.starting
    if isinstance(starting, AtEdge):
        return starting.edge == LATEST
    if isinstance(starting, AtOffsets):
        return LATEST in starting.offsets.values()
    assert isinstance(starting, AtTimestamps)
    return starting.or_latest

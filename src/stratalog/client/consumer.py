"""The consumer: reads topics or partitions, record by record, in lists, or as Arrow tables, alone or in a group.

    with Consumer("localhost:9092", group_id="billing", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["orders"])
        for record in consumer:
            print(record.topic, record.partition, record.offset, record.value)

A background thread prefetches records and keeps the group membership. Rebalance listeners and commit callbacks run in
the caller's thread, within poll, iteration, commit and close. A consumer is for one thread at a time; only `wakeup` may
be called from any thread. Timeouts are in seconds; timestamps are in milliseconds since 1970, as everywhere in Kafka.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from stratalog.client._consumer_records import ConsumerRecord, FetchedRecords, RecordIterator
from stratalog.client.consumer_core import ConsumerCore
from stratalog.client.consumer_settings import ConsumerOptions, ConsumerSettings
from stratalog.client.fetch_buffer import FetchFailure
from stratalog.client.metadata import PartitionInfo, TopicPartition, to_topic_partition
from stratalog.client.offset_reset import EARLIEST, LATEST, TO_BEGINNING, TO_END, OffsetReset
from stratalog.client.offsets import GroupMetadata, OffsetAndMetadata, OffsetAndTimestamp, parse_offsets
from stratalog.client.subscription import RebalanceListener
from stratalog.errors import ClientError, RequestTimeoutError

if TYPE_CHECKING:
    import pyarrow as pa

    from stratalog.client.consumer_arrow import ArrowColumns

__all__ = [
    "Consumer",
    "ConsumerRecord",
    "GroupMetadata",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "RebalanceListener",
    "TopicPartition",
]

T = TypeVar("T")
PartitionArgument = tuple[str, int]  # a TopicPartition or a plain pair
Committed = Callable[[dict[TopicPartition, OffsetAndMetadata], ClientError | None], object]
CLOSE_SECONDS = 30.0
_CLOSE_AFTER_ERROR_SECONDS = 5.0
ARROW_BYTES = 4 * 1024 * 1024
"""The approximate amount of fetched records in a table without `max_records`. What fits into the processor's caches is
decoded several times as fast, into memory that the previous table has released."""
_NO_LIMIT = 2**62


class Consumer:
    """A consumer. Its settings are Kafka's, with underscores for dots: `group_id`, `auto_offset_reset` and so on;
    `from_config` takes them with dots. ConsumerSettings describes each."""

    def __init__(self, bootstrap_servers: str | Iterable[str], /, **options: Unpack[ConsumerOptions]) -> None:
        servers = bootstrap_servers if isinstance(bootstrap_servers, str) else list(bootstrap_servers)
        self._start(ConsumerSettings.from_options(servers, options))

    @classmethod
    def from_config(cls, config: Mapping[str, object]) -> Self:
        """Create a Consumer from Kafka's setting names: {"bootstrap.servers": ..., "group.id": ...}."""
        consumer = cls.__new__(cls)
        consumer._start(ConsumerSettings.parse(config))
        return consumer

    def _start(self, settings: ConsumerSettings) -> None:
        self._settings = settings
        self._core = ConsumerCore(settings)
        self._in_use = threading.RLock()
        self._is_closed = False
        self._columns: ArrowColumns | None = None
        self._iterator = RecordIterator(self._refill, self._core.buffer.interrupt)

    # Topics and partitions

    def subscribe(
        self, topics: str | Iterable[str] | re.Pattern[str], listener: RebalanceListener | None = None
    ) -> None:
        """Join the group and read topics by name, or all existing and future topics whose whole names match a pattern.
        No topics: unsubscribe."""
        with self._exclusive():
            if self._settings.group_id is None:
                raise ClientError("subscribe() needs a group_id; set it, or call assign()")
            pattern = topics if isinstance(topics, re.Pattern) else None
            names = [] if isinstance(topics, re.Pattern) else [topics] if isinstance(topics, str) else list(topics)
            if pattern is None and not names:
                self._unsubscribe()
                return
            self._core.subscribe(names, pattern, listener)

    def assign(self, partitions: Iterable[PartitionArgument]) -> None:
        """Read exactly these partitions, without the group. Partitions that stay assigned keep their position."""
        with self._exclusive():
            assigned = [to_topic_partition(partition) for partition in partitions]
            self._core.autocommit.now(self._core.subscription.partitions)
            self._core.assign(assigned)

    def unsubscribe(self) -> None:
        """Give up all topics and partitions, and leave the group."""
        with self._exclusive():
            self._unsubscribe()

    def _unsubscribe(self) -> None:
        self._core.leave()

    def assignment(self) -> set[TopicPartition]:
        return set(self._core.subscription.partitions)

    def subscription(self) -> set[str]:
        """Return the topics that the consumer subscribes to; with a pattern, the topics that match it."""
        return set(self._core.subscription.topics)

    # Records

    def poll(
        self, timeout: float | None = None, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Return prefetched records by partition, at most `max_records` (by default max.poll.records). Without
        any, wait for records for up to `timeout` seconds (None: without limit), and return {} if none arrive."""
        left = self._settings.max_poll_records if max_records is None else max_records
        if left < 1:
            raise ValueError(f"max_records is {max_records}; it must be at least 1")
        polled: dict[TopicPartition, list[ConsumerRecord]] = {}
        with self._polling(timeout) as deadline:
            fetched = self._next_fetched(deadline)
            while fetched is not None:
                try:
                    records = fetched.take(left)
                except Exception:
                    if polled:
                        break  # the next poll raises it
                    raise
                if records:
                    polled.setdefault(fetched.partition, []).extend(records)
                left -= len(records)
                if not fetched.is_exhausted:
                    break  # max_records is reached, or there is an error, which the next poll raises
                self._core.done(fetched)
                fetched = self._ready_fetched() if polled else self._next_fetched(deadline)
        return polled

    def poll_arrow(self, timeout: float | None = None, max_records: int | None = None) -> pa.Table:
        """Poll, and return a table with the columns topic, partition, offset, timestamp, key, value and headers.

        Without `max_records` it has what was prefetched, up to some MiB. Deserializers are not applied.
        """
        from stratalog.client.consumer_arrow import ArrowColumns

        if self._columns is None:
            self._columns = ArrowColumns()
        columns, buffer = self._columns, self._core.buffer
        columns.start()
        left = _NO_LIMIT if max_records is None else max_records
        room = ARROW_BYTES
        with self._polling(timeout) as deadline:
            fetched = self._next_fetched(deadline)
            while fetched is not None:
                try:
                    left -= columns.add(fetched, left, min(room, buffer.bytes))
                except Exception:
                    if columns.rows:
                        break
                    raise
                room -= fetched.size
                if not fetched.is_exhausted:
                    break
                self._core.done(fetched)
                if room <= 0 or left <= 0:
                    break
                fetched = self._ready_fetched() if columns.rows else self._next_fetched(deadline)
        return columns.table()

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Iterate over records without end; `wakeup` ends the iteration with WakeupError. A record counts as consumed
        when the next record is requested."""
        return self._iterator

    def _refill(self, current: FetchedRecords | None) -> FetchedRecords | None:
        with self._polling(None) as deadline:
            if current is not None and not self._core.buffer.interrupt.is_set:
                self._core.done(current)
            return self._next_fetched(deadline)

    def _next_fetched(self, deadline: float | None) -> FetchedRecords | None:
        """Do all other work of the polling thread, then return the fetched records to take from. Wait for them until
        the deadline; then return None."""
        core, buffer = self._core, self._core.buffer
        while True:
            buffer.look()
            core.attend()
            fetched = self._ready_fetched()
            if fetched is not None:
                return fetched
            failure = buffer.current()
            if isinstance(failure, FetchFailure):
                buffer.done(failure)
                failure.handle()
                continue
            core.wake_fetcher_if_room()  # records that were dropped, or set aside while paused, make room
            seconds = None if deadline is None else deadline - core.clock.monotonic()
            if seconds is not None and seconds <= 0:
                return None
            buffer.wait(seconds)

    def _ready_fetched(self) -> FetchedRecords | None:
        fetched = self._core.buffer.current()
        return fetched if isinstance(fetched, FetchedRecords) else None

    def wakeup(self) -> None:
        """End the current or the next call that waits for records with WakeupError. May be called in any thread."""
        self._core.is_woken = True
        self._core.buffer.announce()

    # Positions

    def position(self, partition: PartitionArgument, timeout: float | None = None) -> int:
        """Return the offset of the record to read next. Waits until the partition's position has been looked up."""
        with self._exclusive():
            topic_partition = to_topic_partition(partition)
            seconds = self._seconds(timeout)
            deadline = self._core.clock.monotonic() + seconds
            while True:
                self._core.buffer.look()
                position = self._core.subscription.state(topic_partition).position
                if position is not None:
                    return position
                self._core.check_positions([topic_partition])
                left = deadline - self._core.clock.monotonic()
                if left <= 0:
                    raise RequestTimeoutError(
                        f"{topic_partition}: the position could not be looked up within {seconds:g} s"
                    )
                self._core.buffer.wait(left)

    def seek(self, partition: PartitionArgument, offset: int | OffsetAndMetadata) -> None:
        """Continue reading at this offset."""
        with self._exclusive():
            topic_partition = to_topic_partition(partition)
            target = offset if isinstance(offset, OffsetAndMetadata) else OffsetAndMetadata(offset)
            if target.offset < 0:
                raise ValueError(f"offset is {target.offset}; it must not be negative")
            self._core.seek(self._core.subscription.state(topic_partition), target.offset, target.leader_epoch)

    def seek_to_beginning(self, partitions: Iterable[PartitionArgument] = ()) -> None:
        """Continue at the log start offset of these partitions, or of all assigned partitions."""
        self._seek_to(partitions, TO_BEGINNING)

    def seek_to_end(self, partitions: Iterable[PartitionArgument] = ()) -> None:
        """Continue at the end of these partitions, or of all assigned partitions."""
        self._seek_to(partitions, TO_END)

    def _seek_to(self, partitions: Iterable[PartitionArgument], reset: OffsetReset) -> None:
        with self._exclusive():
            subscription = self._core.subscription
            targets = [to_topic_partition(partition) for partition in partitions] or list(subscription.partitions)
            self._core.reset([subscription.state(target) for target in targets], reset)

    def pause(self, partitions: Iterable[PartitionArgument]) -> None:
        """Return no records of these partitions until `resume`. They stay assigned."""
        self._set_paused(partitions, True)

    def resume(self, partitions: Iterable[PartitionArgument]) -> None:
        self._set_paused(partitions, False)

    def paused(self) -> set[TopicPartition]:
        return {partition for partition, state in self._core.subscription.partitions.items() if state.is_paused}

    def _set_paused(self, partitions: Iterable[PartitionArgument], paused: bool) -> None:
        with self._exclusive():
            states = [self._core.subscription.state(to_topic_partition(partition)) for partition in partitions]
            self._core.set_paused(states, paused)

    def lag(self) -> dict[TopicPartition, int | None]:
        """Return the distance from each partition's position to its end in offsets; None if it is not known yet."""
        lags: dict[TopicPartition, int | None] = {}
        for partition, state in self._core.subscription.partitions.items():
            committed_only = self._settings.isolation_level == "read_committed"
            end = state.last_stable_offset if committed_only else state.high_watermark
            position = state.position
            lags[partition] = None if end < 0 or position is None else max(0, end - position)
        return lags

    # Offsets in the log

    def beginning_offsets(
        self, partitions: Iterable[PartitionArgument], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the log start offset of each partition."""
        return self._offsets(partitions, EARLIEST, timeout)

    def end_offsets(
        self, partitions: Iterable[PartitionArgument], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the high watermark of each partition; with read_committed, its last stable offset."""
        return self._offsets(partitions, LATEST, timeout)

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the offset of the first record at or after each timestamp; None if there is no such record."""
        timestamps = {to_topic_partition(partition): timestamp for partition, timestamp in times.items()}
        for partition, timestamp in timestamps.items():
            if timestamp < 0:
                raise ValueError(f"timestamp of {partition} is {timestamp}; it must not be negative")
        offsets = self._look_up(timestamps, timeout)
        return {partition: offsets[partition] if offsets[partition].offset >= 0 else None for partition in timestamps}

    def partitions_for(self, topic: str, timeout: float | None = None) -> tuple[PartitionInfo, ...]:
        """Return the topic's partitions with their leaders and replicas."""
        with self._exclusive():
            return self._core.io.run(self._core.cluster.topic(topic, timeout=self._seconds(timeout))).partitions

    def _offsets(
        self, partitions: Iterable[PartitionArgument], timestamp: int, timeout: float | None
    ) -> dict[TopicPartition, int]:
        timestamps = {to_topic_partition(partition): timestamp for partition in partitions}
        offsets = self._look_up(timestamps, timeout)
        return {partition: offsets[partition].offset for partition in timestamps}

    def _look_up(
        self, timestamps: Mapping[TopicPartition, int], timeout: float | None
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        with self._exclusive():
            return self._core.io.run(self._core.lookup.offsets(timestamps, self._seconds(timeout)))

    # Commits

    def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None, timeout: float | None = None
    ) -> None:
        """Commit these offsets, each that of the record to read next, and wait; by default commit the positions."""
        with self._exclusive():
            self._core.io.run(self._core.commits.commit(self._to_commit(offsets), self._seconds(timeout)))
            self._core.run_callbacks()

    def commit_async(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None, callback: Committed | None = None
    ) -> None:
        """Start a commit as `commit` does, and don't wait. `callback` gets the offsets and the error or None, within a
        later call in this thread. The commit is not retried if a later commit may have overtaken it."""
        with self._exclusive():
            self._core.commit_async(self._to_commit(offsets), callback)

    def committed(
        self, partitions: Iterable[PartitionArgument], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's committed offset of each partition, by whichever member; None if it has none."""
        with self._exclusive():
            requested = [to_topic_partition(partition) for partition in partitions]
            return self._core.io.run(self._core.commits.committed(requested, self._seconds(timeout)))

    def _to_commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        self._core.commits.group_id  # noqa: B018 - raises if the consumer has no group
        if offsets is None:
            return self._core.positions_of(self._core.subscription.partitions)
        return parse_offsets(offsets)

    def group_metadata(self) -> GroupMetadata:
        """Return this member's group metadata, for a producer that commits offsets on the member's behalf."""
        identity = self._core.identity()
        return GroupMetadata(self._core.commits.group_id, *identity)

    # Closing

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Commit the positions if enable.auto.commit is on, leave the group, and close, within `timeout` seconds. A
        second call does nothing."""
        if self._is_closed:
            return
        with self._exclusive(check=False):
            self._is_closed = True
            self._core.close(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After an error, the broker may be unreachable: don't delay the exception by half a minute.
        self.close() if error is None else self.close(min(CLOSE_SECONDS, _CLOSE_AFTER_ERROR_SECONDS))

    def _seconds(self, timeout: float | None) -> float:
        return self._settings.default_api_timeout_ms / 1000 if timeout is None else timeout

    @contextmanager
    def _exclusive(self, *, check: bool = True) -> Iterator[None]:
        """Reserve the consumer for this thread. The same thread may enter again, from a listener."""
        if not self._in_use.acquire(blocking=False):
            raise ClientError("another thread is using this consumer; create one for each thread, or call wakeup()")
        try:
            if check:
                self._core.io.check_usable()
            yield
        finally:
            self._in_use.release()

    @contextmanager
    def _polling(self, timeout: float | None) -> Iterator[float | None]:
        """Run a poll, and yield its deadline (None: without limit)."""
        with self._exclusive():
            if not self._core.subscription.partitions and not self._core.subscription.is_group:
                raise ClientError("the consumer has nothing to read; call subscribe() or assign() first")
            self._core.handoff.begin_poll()
            try:
                yield None if timeout is None else self._core.clock.monotonic() + timeout
            finally:
                self._core.handoff.end_poll()

    def __repr__(self) -> str:
        return f"Consumer(group_id={self._settings.group_id!r}, assignment={sorted(map(str, self.assignment()))})"

    def __del__(self) -> None:
        core: Any = getattr(self, "_core", None)
        if core is not None and not self._is_closed:
            core.abandon()

"""A consumer: records of topics or partitions, one by one, in lists, or as Arrow tables, alone or as a member of a
group.

    with Consumer("localhost:9092", group_id="billing", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["orders"])
        for record in consumer:
            print(record.topic, record.partition, record.offset, record.value)

A thread of its own fetches ahead and stays in the group; everything that a user sees happens in the thread that calls:
rebalance listeners and callbacks of commits are called from within poll, iteration, commit and close. A consumer is for
one thread at a time; only `wakeup` may be called from any. Times are in seconds; timestamps in milliseconds since 1970,
as everywhere in Kafka.
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
from stratalog.client.metadata import PartitionInfo, TopicPartition, place_of
from stratalog.client.offset_reset import EARLIEST, LATEST, TO_BEGINNING, TO_END, OffsetReset
from stratalog.client.offsets import GroupMetadata, OffsetAndMetadata, OffsetAndTimestamp, offsets_given
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
Place = tuple[str, int]  # a TopicPartition, or what is one in all but name
Committed = Callable[[dict[TopicPartition, OffsetAndMetadata], ClientError | None], object]
CLOSE_SECONDS = 30.0
_CLOSE_AFTER_ERROR_SECONDS = 5.0
ARROW_BYTES = 4 * 1024 * 1024
"""Of fetched records in a table, about, where no number of records is given: what fits into a processor's caches is
decoded several times as fast, into memory that the table before it gave back."""
_NO_LIMIT = 2**62


class Consumer:
    """Settings are Kafka's, with underscores for dots: `group_id`, `auto_offset_reset`, and so on, each with its
    meaning in ConsumerSettings; `from_config` takes them with dots."""

    def __init__(self, bootstrap_servers: str | Iterable[str], /, **options: Unpack[ConsumerOptions]) -> None:
        servers = bootstrap_servers if isinstance(bootstrap_servers, str) else list(bootstrap_servers)
        self._start(ConsumerSettings.from_options(servers, options))

    @classmethod
    def from_config(cls, config: Mapping[str, object]) -> Self:
        """From Kafka's dotted names: {"bootstrap.servers": ..., "group.id": ...}."""
        made = cls.__new__(cls)
        made._start(ConsumerSettings.parse(config))
        return made

    def _start(self, settings: ConsumerSettings) -> None:
        self._settings = settings
        self._core = ConsumerCore(settings)
        self._in_use = threading.RLock()
        self._is_closed = False
        self._columns: ArrowColumns | None = None
        self._iterator = RecordIterator(self._refill, self._core.buffer.interrupt)

    # What to read

    def subscribe(
        self, topics: str | Iterable[str] | re.Pattern[str], listener: RebalanceListener | None = None
    ) -> None:
        """As a member of the group: topics by name, or all that match a pattern as a whole, those to come too."""
        with self._exclusive():
            if self._settings.group_id is None:
                raise ClientError("to subscribe, a consumer needs a group_id; without one, assign partitions by hand")
            pattern = topics if isinstance(topics, re.Pattern) else None
            names = [] if isinstance(topics, re.Pattern) else [topics] if isinstance(topics, str) else list(topics)
            if pattern is None and not names:
                self._unsubscribe()
                return
            self._core.subscribe(names, pattern, listener)

    def assign(self, partitions: Iterable[Place]) -> None:
        """Exactly these, by hand. Those that the consumer has already keep their position."""
        with self._exclusive():
            places = [place_of(place) for place in partitions]
            self._core.autocommit.now(self._core.subscription.partitions)
            self._core.assign(places)

    def unsubscribe(self) -> None:
        """From all topics and partitions; the group is left."""
        with self._exclusive():
            self._unsubscribe()

    def _unsubscribe(self) -> None:
        self._core.leave()

    def assignment(self) -> set[TopicPartition]:
        return set(self._core.subscription.partitions)

    def subscription(self) -> set[str]:
        """Topics that are subscribed to; with a pattern, those that match it."""
        return set(self._core.subscription.topics)

    # Records

    def poll(
        self, timeout: float | None = None, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Records that are there, at most `max_records` (by default max.poll.records); where there are none, the first
        that come within `timeout` seconds, None: however long that takes."""
        left = self._settings.max_poll_records if max_records is None else max_records
        if left < 1:
            raise ValueError(f"max_records is {max_records}; it must be at least 1")
        found: dict[TopicPartition, list[ConsumerRecord]] = {}
        with self._polling(timeout) as deadline:
            fetched = self._next_fetched(deadline)
            while fetched is not None:
                try:
                    records = fetched.take(left)
                except Exception:
                    if found:
                        break  # the next poll raises it
                    raise
                if records:
                    found.setdefault(fetched.partition, []).extend(records)
                left -= len(records)
                if not fetched.is_exhausted:
                    break  # as many as may be, or there is an error, which the next poll raises
                self._core.done(fetched)
                fetched = self._ready_fetched() if found else self._next_fetched(deadline)
        return found

    def poll_arrow(self, timeout: float | None = None, max_records: int | None = None) -> pa.Table:
        """As `poll`, a table with the columns topic, partition, offset, timestamp, key, value and headers. Without
        `max_records` it is what was fetched ahead, up to some MiB. Deserializers are not applied."""
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
        """One record after the other, without an end; `wakeup` ends it with WakeupError. A record counts as consumed
        when the next one is asked for."""
        return self._iterator

    def _refill(self, current: FetchedRecords | None) -> FetchedRecords | None:
        with self._polling(None) as deadline:
            if current is not None and not self._core.buffer.interrupt.is_set:
                self._core.done(current)
            return self._next_fetched(deadline)

    def _next_fetched(self, deadline: float | None) -> FetchedRecords | None:
        """What to take from; waits for it. Whatever else waits for the polling thread comes first."""
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
            core.tell_of_room()  # what was dropped, or set aside for a paused partition, makes some
            seconds = None if deadline is None else deadline - core.clock.monotonic()
            if seconds is not None and seconds <= 0:
                return None
            buffer.wait(seconds)

    def _ready_fetched(self) -> FetchedRecords | None:
        fetched = self._core.buffer.current()
        return fetched if isinstance(fetched, FetchedRecords) else None

    def wakeup(self) -> None:
        """From any thread: ends the call that waits for records, or the next one, with WakeupError."""
        self._core.is_woken = True
        self._core.buffer.announce()

    # Positions

    def position(self, partition: Place, timeout: float | None = None) -> int:
        """The offset of the record that comes next. Waits until it is known where a partition begins."""
        with self._exclusive():
            place = place_of(partition)
            seconds = self._seconds(timeout)
            deadline = self._core.clock.monotonic() + seconds
            while True:
                self._core.buffer.look()
                position = self._core.subscription.state(place).position
                if position is not None:
                    return position
                self._core.check_positions([place])
                left = deadline - self._core.clock.monotonic()
                if left <= 0:
                    raise RequestTimeoutError(f"{place}: where to begin could not be found out within {seconds:g} s")
                self._core.buffer.wait(left)

    def seek(self, partition: Place, offset: int | OffsetAndMetadata) -> None:
        """Read on there."""
        with self._exclusive():
            place = place_of(partition)
            wanted = offset if isinstance(offset, OffsetAndMetadata) else OffsetAndMetadata(offset)
            if wanted.offset < 0:
                raise ValueError(f"offset is {wanted.offset}; it must not be negative")
            self._core.seek(self._core.subscription.state(place), wanted.offset, wanted.leader_epoch)

    def seek_to_beginning(self, partitions: Iterable[Place] = ()) -> None:
        """Of these partitions, or all that the consumer has."""
        self._seek_to(partitions, TO_BEGINNING)

    def seek_to_end(self, partitions: Iterable[Place] = ()) -> None:
        self._seek_to(partitions, TO_END)

    def _seek_to(self, partitions: Iterable[Place], reset: OffsetReset) -> None:
        with self._exclusive():
            subscription = self._core.subscription
            places = [place_of(place) for place in partitions] or list(subscription.partitions)
            self._core.reset([subscription.state(place) for place in places], reset)

    def pause(self, partitions: Iterable[Place]) -> None:
        """No records of these, until they are resumed; the consumer keeps them."""
        self._set_paused(partitions, True)

    def resume(self, partitions: Iterable[Place]) -> None:
        self._set_paused(partitions, False)

    def paused(self) -> set[TopicPartition]:
        return {place for place, state in self._core.subscription.partitions.items() if state.is_paused}

    def _set_paused(self, partitions: Iterable[Place], paused: bool) -> None:
        with self._exclusive():
            states = [self._core.subscription.state(place_of(place)) for place in partitions]
            self._core.set_paused(states, paused)

    def lag(self) -> dict[TopicPartition, int | None]:
        """How many offsets each partition's end is ahead of the position; None where that is not known yet."""
        lags: dict[TopicPartition, int | None] = {}
        for place, state in self._core.subscription.partitions.items():
            committed_only = self._settings.isolation_level == "read_committed"
            end = state.last_stable_offset if committed_only else state.high_watermark
            position = state.position
            lags[place] = None if end < 0 or position is None else max(0, end - position)
        return lags

    # Offsets in the log

    def beginning_offsets(self, partitions: Iterable[Place], timeout: float | None = None) -> dict[TopicPartition, int]:
        return self._offsets(partitions, EARLIEST, timeout)

    def end_offsets(self, partitions: Iterable[Place], timeout: float | None = None) -> dict[TopicPartition, int]:
        """The offset behind the last record; with read_committed, behind the last that can be read."""
        return self._offsets(partitions, LATEST, timeout)

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after each timestamp; None where there is none."""
        wanted = {place_of(place): timestamp for place, timestamp in times.items()}
        for place, timestamp in wanted.items():
            if timestamp < 0:
                raise ValueError(f"timestamp of {place} is {timestamp}; it must not be negative")
        found = self._look_up(wanted, timeout)
        return {place: found[place] if found[place].offset >= 0 else None for place in wanted}

    def partitions_for(self, topic: str, timeout: float | None = None) -> tuple[PartitionInfo, ...]:
        """The topic's partitions, with their leaders and replicas."""
        with self._exclusive():
            return self._core.io.run(self._core.cluster.topic(topic, timeout=self._seconds(timeout))).partitions

    def _offsets(self, partitions: Iterable[Place], timestamp: int, timeout: float | None) -> dict[TopicPartition, int]:
        places = [place_of(place) for place in partitions]
        found = self._look_up(dict.fromkeys(places, timestamp), timeout)
        return {place: found[place].offset for place in places}

    def _look_up(
        self, wanted: Mapping[TopicPartition, int], timeout: float | None
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        with self._exclusive():
            return self._core.io.run(self._core.lookup.offsets(wanted, self._seconds(timeout)))

    # Commits

    def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None, timeout: float | None = None
    ) -> None:
        """These offsets, each that of the record to read next; by default the positions. Returns when it is done."""
        with self._exclusive():
            self._core.io.run(self._core.commits.commit(self._to_commit(offsets), self._seconds(timeout)))
            self._core.run_callbacks()

    def commit_async(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None, callback: Committed | None = None
    ) -> None:
        """As `commit`, without waiting for it. `callback` gets the offsets, and the error or None, in a later call of
        this thread. It is not retried where a later commit may have overtaken it."""
        with self._exclusive():
            self._core.commit_async(self._to_commit(offsets), callback)

    def committed(
        self, partitions: Iterable[Place], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group committed last, by whichever member; None where nothing is committed."""
        with self._exclusive():
            places = [place_of(place) for place in partitions]
            return self._core.io.run(self._core.commits.committed(places, self._seconds(timeout)))

    def _to_commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        self._core.commits.group_id  # noqa: B018 - raises where there is none
        if offsets is None:
            return self._core.positions_of(self._core.subscription.partitions)
        return offsets_given(offsets)

    def group_metadata(self) -> GroupMetadata:
        """For a producer that commits in this member's name."""
        identity = self._core.identity()
        return GroupMetadata(self._core.commits.group_id, *identity)

    # The end

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Commits, where that is automatic, and leaves the group; within `timeout` seconds. A second call does
        nothing."""
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
        # After an error, of which the broker may be the reason, nobody wants to wait for half a minute more.
        self.close() if error is None else self.close(min(CLOSE_SECONDS, _CLOSE_AFTER_ERROR_SECONDS))

    def _seconds(self, timeout: float | None) -> float:
        return self._settings.default_api_timeout_ms / 1000 if timeout is None else timeout

    @contextmanager
    def _exclusive(self, *, check: bool = True) -> Iterator[None]:
        """A consumer's state is one thread's at a time. The same thread may come again: from a listener."""
        if not self._in_use.acquire(blocking=False):
            raise ClientError("another thread is using this consumer; give each thread its own, or call wakeup()")
        try:
            if check:
                self._core.io.check_usable()
            yield
        finally:
            self._in_use.release()

    @contextmanager
    def _polling(self, timeout: float | None) -> Iterator[float | None]:
        """The deadline, None: there is none."""
        with self._exclusive():
            if not self._core.subscription.partitions and not self._core.subscription.is_group:
                raise ClientError("there is nothing to read: subscribe to topics, or assign partitions, before")
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

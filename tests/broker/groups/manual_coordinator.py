"""A coordinator whose clock, timers and log are controlled by the test."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stratalog.broker.groups.config import GroupConfig
from stratalog.broker.groups.coordinator import GroupCoordinator
from stratalog.broker.groups.group import GroupRecord, GroupTable, ReplayConsumerRecord
from stratalog.broker.groups.offsets_topic import LoadedOffsets
from stratalog.clock import ManualClock
from stratalog.errors import StratalogError


class Timer:
    def __init__(self, at: float, call: Callable[[], None]) -> None:
        self.at = at
        self.call = call
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class ManualTimers:
    """The `call_later` of an event loop whose time passes with `advance`."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self._timers: list[Timer] = []
        self.made = 0

    def call_later(self, seconds: float, call: Callable[[], None]) -> Timer:
        assert seconds >= 0
        timer = Timer(self.clock.monotonic() + seconds, call)
        self._timers.append(timer)
        self.made += 1
        return timer

    @property
    def waiting(self) -> int:
        self._timers = [timer for timer in self._timers if not timer.cancelled]
        return len(self._timers)

    def advance(self, milliseconds: int) -> None:
        """Let time pass, and fire each timer at its time."""
        end = self.clock.monotonic() + milliseconds / 1000
        while self.waiting:
            timer = min(self._timers, key=lambda one: one.at)
            if timer.at > end + 1e-9:
                break
            self._timers.remove(timer)
            self._step_to(timer.at)
            timer.call()
        self._step_to(end)

    def _step_to(self, at: float) -> None:
        self.clock.advance(max(round((at - self.clock.monotonic()) * 1000), 0))


class ListLog:
    """__consumer_offsets as lists. `failure` is raised by the next appends."""

    def __init__(self, partitions: int | None = 3) -> None:
        self.partition_count: int | None = partitions
        self.partitions: dict[int, list[GroupRecord]] = {}
        self.appends = 0
        self.created = 0
        self.failure: StratalogError | None = None
        self.unreadable: set[int] = set()
        self.pending: dict[int, list[GroupRecord]] = {}

    async def create(self) -> None:
        if self.failure is not None:
            raise self.failure
        self.created += 1
        self.partition_count = 3

    async def read(self, partition: int) -> LoadedOffsets:
        if partition in self.unreadable:
            raise StratalogError("the disk is broken")
        latest: dict[bytes, bytes | None] = {}
        for key, value in self.partitions.get(partition, []):
            latest.pop(key, None)
            latest[key] = value
        records: list[GroupRecord] = [(key, value) for key, value in latest.items() if value is not None]
        return LoadedOffsets(records, {producer: dict(written) for producer, written in self.pending.items()})

    def append_in_transaction(
        self, partition: int, records: Sequence[GroupRecord], timestamp_ms: int, producer_id: int, epoch: int
    ) -> None:
        if self.failure is not None:
            raise self.failure
        self.pending.setdefault(producer_id, []).extend(records)

    def append(self, partition: int, records: Sequence[GroupRecord], timestamp_ms: int) -> None:
        if self.failure is not None:
            raise self.failure
        assert records, "an append without records"
        assert self.partition_count is not None
        assert 0 <= partition < self.partition_count
        self.appends += 1
        self.partitions.setdefault(partition, []).extend(records)

    @property
    def records(self) -> list[GroupRecord]:
        return [record for partition in sorted(self.partitions) for record in self.partitions[partition]]


def no_consumer_records(groups: GroupTable, key: bytes, value: bytes | None) -> None:
    raise AssertionError(f"a record of a KIP-848 group: {key!r}")


class ManualCoordinator(GroupCoordinator):
    def __init__(
        self,
        config: GroupConfig | None = None,
        offsets_log: ListLog | None = None,
        replay_consumer_record: ReplayConsumerRecord = no_consumer_records,
        clock: ManualClock | None = None,
    ) -> None:
        self.manual_clock = clock or ManualClock()
        self.timers = ManualTimers(self.manual_clock)
        self.log = offsets_log or ListLog()
        super().__init__(
            config or GroupConfig(), self.manual_clock, self.log, self.timers.call_later, replay_consumer_record
        )

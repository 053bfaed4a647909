"""The surroundings of a KIP-848 group in tests: topics that can change, and a host with a log and timers in memory."""

from __future__ import annotations

import heapq
import itertools
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode

from stratalog.broker.groups.config import GroupConfig
from stratalog.broker.groups.consumer_coordinator import ConsumerGroups
from stratalog.broker.groups.consumer_group import ConsumerGroup, replay
from stratalog.broker.groups.consumer_records import Assignment
from stratalog.broker.groups.consumer_requests import Heartbeat, HeartbeatResponse
from stratalog.broker.groups.group import Group, GroupRecord
from stratalog.broker.groups.offset_records import StoredGroup
from stratalog.broker.state_budget import StateBudget
from stratalog.errors import StratalogError

T = TypeVar("T")
REBALANCE_TIMEOUT_MS = 300_000


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("it waits")


class InBackground(Awaitable[T]):
    """A RunInBackground that runs the call when the waiting task is resumed."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call

    def __await__(self) -> Generator[None, None, T]:
        yield
        return self._call()


@dataclass(frozen=True)
class FakeTopic:
    name: str
    id: uuid.UUID
    partition_count: int


class FakeTopics:
    def __init__(self, **partition_counts: int) -> None:
        self._topics: dict[str, FakeTopic] = {}
        self._listeners: list[Callable[[], None]] = []
        self._ids = itertools.count(1)
        for name, count in partition_counts.items():
            self.create(name, count)

    def get(self, name: str) -> FakeTopic | None:
        return self._topics.get(name)

    def by_id(self, topic_id: uuid.UUID) -> FakeTopic | None:
        return next((topic for topic in self._topics.values() if topic.id == topic_id), None)

    def all(self) -> list[FakeTopic]:
        return sorted(self._topics.values(), key=lambda topic: topic.name)

    def on_change(self, call: Callable[[], None]) -> None:
        self._listeners.append(call)

    def create(self, name: str, partition_count: int) -> FakeTopic:
        return self._put(FakeTopic(name, uuid.UUID(int=next(self._ids)), partition_count))

    def grow(self, name: str, partition_count: int) -> FakeTopic:
        return self._put(replace(self._topics[name], partition_count=partition_count))

    def delete(self, name: str) -> None:
        del self._topics[name]
        self._changed()

    def forget_listeners(self) -> None:
        self._listeners.clear()

    def _put(self, topic: FakeTopic) -> FakeTopic:
        self._topics[topic.name] = topic
        self._changed()
        return topic

    def _changed(self) -> None:
        for call in self._listeners:
            call()

    def partitions(self, **topics: set[int]) -> dict[uuid.UUID, frozenset[int]]:
        return {self._topics[name].id: frozenset(partitions) for name, partitions in topics.items()}

    def named(self, assignment: Assignment) -> dict[str, set[int]]:
        names = {topic.id: topic.name for topic in self._topics.values()}
        return {names[topic_id]: set(partitions) for topic_id, partitions in assignment.items()}


class FakeTimer:
    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class FakeHost:
    """A GroupHost."""

    def __init__(self, log: Sequence[GroupRecord] = (), now_ms: int = 1_000_000) -> None:
        self.log = list(log)
        self.failure: StratalogError | None = None
        self.readiness = ErrorCode.none
        self._now_ms = now_ms
        self._groups: dict[str, Group] = {}
        self.classic: dict[str, StoredGroup] = {}
        self.budget = StateBudget(2**40, lambda: self._now_ms / 1000)
        self.budget.include(lambda: sum(group.state_bytes for group in self._groups.values()))
        self._timers: list[tuple[int, int, FakeTimer]] = []
        self.tasks: list[Coroutine[Any, Any, None]] = []
        self._count = itertools.count()
        for key, value in self.log:
            replay(self, key, value)

    async def prepare(self, group_id: str, *, may_be_empty: bool = False) -> ErrorCode:
        return self.status(group_id)

    def status(self, group_id: str, *, may_be_empty: bool = False) -> ErrorCode:
        return self.readiness

    def group(self, group_id: str) -> Group | None:
        return self._groups.get(group_id)

    def put(self, group: Group) -> None:
        self._groups[group.group_id] = group

    def remove(self, group_id: str) -> None:
        self._groups.pop(group_id, None)

    def check_room(self, more: int, what: str, *, is_new: bool) -> None:
        self.budget.check(more, what, is_new=is_new)

    def become_classic(self, group_id: str, stored: StoredGroup, protocols: Mapping[str, Mapping[str, bytes]]) -> None:
        self.classic[group_id] = stored
        self.remove(group_id)

    def recount(self, group: Group) -> None:
        assert self._groups[group.group_id] is group

    def append(self, group_id: str, records: Sequence[GroupRecord]) -> None:
        if self.failure is not None:
            raise self.failure
        self.log.extend(records)

    def start_task(self, work: Coroutine[Any, Any, None]) -> None:
        work.send(None)  # up to its first await
        self.tasks.append(work)

    def step(self) -> None:
        """Run each task up to its next await."""
        for task in list(self.tasks):
            try:
                task.send(None)
            except StopIteration:
                self.tasks.remove(task)

    def call_later(self, seconds: float, call: Callable[[], None]) -> FakeTimer:
        timer = FakeTimer(call)
        heapq.heappush(self._timers, (self._now_ms + round(seconds * 1000), next(self._count), timer))
        return timer

    def now_ms(self) -> int:
        return self._now_ms

    def on_loaded(self, call: Callable[[Group], None]) -> None:
        for group in list(self._groups.values()):
            call(group)

    def advance(self, milliseconds: int) -> None:
        end = self._now_ms + milliseconds
        while self._timers and self._timers[0][0] <= end:
            self._now_ms, _, timer = heapq.heappop(self._timers)
            if timer.call is not None:
                timer.call()
        self._now_ms = end

    @property
    def running_timers(self) -> int:
        return sum(timer.call is not None for _, _, timer in self._timers)


class World:
    """One broker, its topics, and the group "g"."""

    def __init__(self, topics: FakeTopics, config: GroupConfig | None = None) -> None:
        self.topics = topics
        self.config = config or GroupConfig()
        self.host = FakeHost()
        self.groups = ConsumerGroups(self.host, topics, self.config, InBackground)

    def restart(self) -> None:
        self.host.readiness = ErrorCode.coordinator_not_available
        for task in self.host.tasks:
            task.close()
        self.topics.forget_listeners()
        self.host = FakeHost(self.host.log, self.host.now_ms())
        self.groups = ConsumerGroups(self.host, self.topics, self.config, InBackground)

    def resolve(self) -> None:
        """Run the resolution of all patterns that are due."""
        while self.host.tasks:
            self.host.step()

    @property
    def group(self) -> ConsumerGroup:
        group = self.host.group("g")
        assert isinstance(group, ConsumerGroup)
        return group

    def send(self, request: Heartbeat, api_version: int = 1) -> HeartbeatResponse:
        return run(self.groups.heartbeat(request, api_version))

    def join(self, member_id: str, *names: str, **fields: Any) -> HeartbeatResponse:
        return self.send(joining(member_id, *names, **fields))

    def beat(self, member_id: str, epoch: int, owned: Assignment | None = None, **fields: Any) -> HeartbeatResponse:
        return self.send(Heartbeat("g", member_id, epoch, owned=owned, client_id="c", client_host="/h", **fields))

    def leave(self, member_id: str, **fields: Any) -> HeartbeatResponse:
        return self.send(Heartbeat("g", member_id, -1, **fields))


def joining(member_id: str, *names: str, **fields: Any) -> Heartbeat:
    return replace(
        Heartbeat(
            "g",
            member_id,
            0,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            subscribed_topic_names=names,
            owned={},
            client_id="c",
            client_host="/h",
        ),
        **fields,
    )

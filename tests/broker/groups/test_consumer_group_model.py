"""Simulated members that follow the protocol, with random events for them, the topics and the broker.

Two members of the group never read the same partition at the same time. When nothing changes any more, every partition
of a subscribed topic is read by a member, and all members have the group epoch. A restart does not change the group.
"""

from __future__ import annotations

import itertools
import uuid

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kio.schema.errors import ErrorCode

from stratalog.broker.groups.assignors import ASSIGNORS
from stratalog.broker.groups.consumer_group import ConsumerGroup
from stratalog.broker.groups.consumer_records import Assignment
from stratalog.broker.groups.consumer_requests import GroupRefusedError, Heartbeat, HeartbeatResponse
from tests.broker.groups.consumer_world import FakeTopics, World, joining

SESSION_MS = 45_000
NAMES = ("a", "b", "ab")
SUBSCRIPTIONS: list[tuple[tuple[str, ...], str]] = [
    (("a",), ""),
    (("a", "b"), ""),
    (("b", "ab"), ""),
    ((), "a.*"),
    (("b",), "a"),
    ((), ""),
]

Partition = tuple[uuid.UUID, int]


def flat(assignment: Assignment) -> set[Partition]:
    return {(topic_id, partition) for topic_id, partitions in assignment.items() for partition in partitions}


class Client:
    """A consumer that follows the protocol. It reads a new partition at once, and revokes a partition at any time."""

    def __init__(self, world: World, member_id: str, subscription: tuple[tuple[str, ...], str], instance: str | None):
        self.world = world
        self.member_id = member_id
        self.instance_id = instance
        self.names, self.regex = subscription
        self.assignor: str | None = None
        self.epoch = 0
        self.reading: set[Partition] = set()
        self.to_give_up: set[Partition] = set()
        self.is_replaced = False  # True if another process has its instance id
        self._sent: set[Partition] | None = None
        self._sends_all = True

    def beat(self, *, answer_is_lost: bool = False) -> None:
        try:
            answer = self.world.send(self._request())
        except GroupRefusedError as refused:
            self._start_anew()
            if refused.code in (ErrorCode.fenced_instance_id, ErrorCode.unreleased_instance_id):
                self.is_replaced = True
            elif refused.code not in (ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id):
                raise
            return
        if answer_is_lost:
            self._sends_all = True
        else:
            self._take(answer)

    def give_up(self) -> None:
        self.reading -= self.to_give_up
        self.to_give_up = set()

    def leave(self, epoch: int) -> None:
        try:
            self.world.send(Heartbeat("g", self.member_id, epoch, instance_id=self.instance_id))
        except GroupRefusedError as refused:
            assert refused.code in (
                ErrorCode.unknown_member_id,
                ErrorCode.group_id_not_found,
                ErrorCode.fenced_instance_id,
            ), refused
        self.reading = set()

    def resubscribe(self, subscription: tuple[tuple[str, ...], str]) -> None:
        self.names, self.regex = subscription
        self._sends_all = True

    @property
    def is_member(self) -> bool:
        group = self.world.host.group("g")
        return isinstance(group, ConsumerGroup) and self.member_id in group.members and self.epoch > 0

    def _request(self) -> Heartbeat:
        owned: dict[uuid.UUID, frozenset[int]] = {}
        for topic_id, partition in self.reading:
            owned[topic_id] = owned.get(topic_id, frozenset()) | {partition}
        if self.epoch == 0 or self._sends_all:
            request = joining(
                self.member_id,
                *self.names,
                member_epoch=self.epoch,
                subscribed_topic_regex=self.regex,
                instance_id=self.instance_id,
                server_assignor=self.assignor,
                owned=owned,
            )
        else:
            said = self._sent == self.reading
            request = Heartbeat(
                "g",
                self.member_id,
                self.epoch,
                instance_id=self.instance_id,
                owned=None if said else owned,
                client_id="c",
                client_host="/h",
            )
        self._sent = set(self.reading)
        self._sends_all = False
        return request

    def _take(self, answer: HeartbeatResponse) -> None:
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            assigned = flat(answer.assignment)
            self.to_give_up = self.reading - assigned
            self.reading |= assigned

    def _start_anew(self) -> None:
        self.epoch = 0
        self.reading = set()
        self.to_give_up = set()
        self._sends_all = True


class GroupMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.topics = FakeTopics()
        self.world = World(self.topics)
        self.clients: list[Client] = []
        self.ids = itertools.count()

    def client(self, number: int) -> Client:
        return self.clients[number % len(self.clients)]

    @initialize(count=st.integers(1, 4), members=st.lists(st.sampled_from(SUBSCRIPTIONS), min_size=2, max_size=4))
    def a_topic_and_members(self, count: int, members: list[tuple[tuple[str, ...], str]]) -> None:
        self.topics.create("a", count)
        for subscription in members:
            self.joins(subscription, None, None, False)

    @precondition(lambda self: len(self.clients) < 5)
    @rule(
        subscription=st.sampled_from(SUBSCRIPTIONS),
        assignor=st.none() | st.sampled_from(sorted(ASSIGNORS)),
        instance=st.sampled_from((None, None, None, "x", "y")),
        lost=st.booleans(),
    )
    def joins(
        self, subscription: tuple[tuple[str, ...], str], assignor: str | None, instance: str | None, lost: bool
    ) -> None:
        client = Client(self.world, f"m{next(self.ids)}", subscription, instance)
        client.assignor = assignor
        group = self.world.host.group("g")
        holder = group.static_member(instance) if isinstance(group, ConsumerGroup) and instance else None
        if holder is None or holder.member_epoch == -2:
            client.beat(answer_is_lost=lost)
            self.clients.append(client)
        else:
            client.beat()
            assert client.is_replaced

    @rule(numbers=st.lists(st.integers(0, 4), min_size=1, max_size=8), slow=st.integers(0, 4))
    def some_beat(self, numbers: list[int], slow: int) -> None:
        for number in numbers:
            if self.clients:
                client = self.client(number)
                self.beat(client)
                if number != slow:
                    client.give_up()
                self.no_partition_is_read_by_two()

    @precondition(lambda self: self.clients)
    @rule(number=st.integers(0, 4))
    def misses_an_answer(self, number: int) -> None:
        self.beat(self.client(number), lost=True)

    def beat(self, client: Client, *, lost: bool = False) -> None:
        client.beat(answer_is_lost=lost)
        if client.is_replaced:
            self.clients.remove(client)

    @precondition(lambda self: self.clients)
    @rule(number=st.integers(0, 4), subscription=st.sampled_from(SUBSCRIPTIONS))
    def resubscribes(self, number: int, subscription: tuple[tuple[str, ...], str]) -> None:
        self.client(number).resubscribe(subscription)

    @precondition(lambda self: len(self.clients) > 2)
    @rule(number=st.integers(0, 4), how=st.sampled_from(("leaves", "leaves for a while", "dies")))
    def goes(self, number: int, how: str) -> None:
        client = self.client(number)
        if how != "dies":
            client.leave(-1 if how == "leaves" or client.instance_id is None else -2)
        self.clients.remove(client)

    @rule(milliseconds=st.sampled_from((100, 5_000, 10_000, 20_000, SESSION_MS)))
    def time_passes(self, milliseconds: int) -> None:
        self.world.host.advance(milliseconds)

    @rule(name=st.sampled_from(NAMES), count=st.integers(0, 4))
    def topic_changes(self, name: str, count: int) -> None:
        topic = self.topics.get(name)
        if topic is None:
            self.topics.create(name, count or 1)
        elif count > topic.partition_count:
            self.topics.grow(name, count)
        elif count == 0:
            self.topics.delete(name)

    @rule()
    def a_pattern_is_matched(self) -> None:
        self.world.host.step()

    @rule()
    def broker_starts_again(self) -> None:
        group = self.world.host.group("g")
        before = vars(group.copy()) if isinstance(group, ConsumerGroup) else None
        self.world.restart()
        after = self.world.host.group("g")
        if before is None:
            assert after is None
            return
        assert isinstance(after, ConsumerGroup)
        soft = ("topics_seen", "patterns_seen", "_topic_names")
        assert {k: v for k, v in vars(after).items() if k not in soft} == {
            k: v for k, v in before.items() if k not in soft
        }

    def teardown(self) -> None:
        """Run all members until nothing changes, and until the sessions of crashed ones have expired."""
        for _ in range(SESSION_MS // 5_000 + 3 + 3 * (len(self.clients) + 1)):
            for client in list(self.clients):
                self.beat(client)
                client.give_up()
            self.world.resolve()
            self.world.host.advance(5_000)
        group = self.world.host.group("g")
        if not isinstance(group, ConsumerGroup):
            assert not self.clients
            return
        assert group.members.keys() == {client.member_id for client in self.clients}
        assert group.state_name == ("Stable" if self.clients else "Empty")
        for client in self.clients:
            assert client.epoch == group.epoch
            assert client.reading == flat(group.members[client.member_id].assigned)
            assert client.reading == flat(group.target.get(client.member_id, {}))
            assert not group.members[client.member_id].pending_revocation
        expected = {
            (topic.id, partition)
            for topic in self.topics.all()
            if any(
                topic.name in client.names
                or (topic.name.startswith("a") if client.regex == "a.*" else topic.name == client.regex)
                for client in self.clients
            )
            for partition in range(topic.partition_count)
        }
        assert set().union(*(client.reading for client in self.clients)) == expected

    @invariant()
    def no_partition_is_read_by_two(self) -> None:
        readers: dict[Partition, str] = {}
        for client in self.clients:
            if client.is_member:
                for partition in client.reading:
                    assert partition not in readers, f"{readers[partition]} and {client.member_id} read {partition}"
                    readers[partition] = client.member_id

    @invariant()
    def what_it_takes_in_memory_is_counted(self) -> None:
        group = self.world.host.group("g")
        if isinstance(group, ConsumerGroup):
            parts = {*group.members, *group.target, *group.resolved}
            assert group.state_bytes == ConsumerGroup("g").state_bytes + sum(map(group._bytes_of, parts))

    @invariant()
    def timers_are_only_for_members(self) -> None:
        group = self.world.host.group("g")
        members = len(group.members) if isinstance(group, ConsumerGroup) else 0
        assert members <= self.world.host.running_timers <= 2 * members


GroupMachine.TestCase.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestGroup = GroupMachine.TestCase

"""Consumers of both protocols join, leave, crash and lose responses, in one group, while topics grow and the broker is
killed.

Two members of the group never read the same partition at the same time. A member that has to rejoin can commit before
it does (`ClassicConsumer.step` checks that). When nothing changes any more, every partition is read, and the group has
the kind of its members.
"""

from __future__ import annotations

import itertools

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.broker.groups.consumer_world import FakeTopics
from tests.broker.groups.migration_lab import COOPERATIVE, EAGER, ClassicConsumer, MigrationLab, NewConsumer


class MigrationMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.lab = MigrationLab(FakeTopics(t=4))
        self.consumers: list[ClassicConsumer | NewConsumer] = []
        self.ids = itertools.count()

    @initialize(protocol=st.sampled_from((EAGER, COOPERATIVE)), new=st.lists(st.booleans(), min_size=1, max_size=3))
    def some_consumers(self, protocol: str, new: list[bool]) -> None:
        self.protocol = protocol
        for is_new in new:
            self.starts(is_new)
        self.all_step(3)

    @precondition(lambda self: len(self.consumers) < 4)
    @rule(is_new=st.booleans())
    def starts(self, is_new: bool) -> None:
        if is_new:
            self.consumers.append(NewConsumer(self.lab, f"new-{next(self.ids)}", "t"))
        else:
            self.consumers.append(ClassicConsumer(self.lab, "t", protocol=self.protocol))

    @rule(rounds=st.integers(1, 6))
    def all_step(self, rounds: int) -> None:
        for _ in range(rounds):
            for one in self.consumers:
                one.step()
                self.no_partition_is_read_by_two()
            self.lab.advance(1)

    @rule(numbers=st.lists(st.integers(0, 3), min_size=1, max_size=8))
    def some_step(self, numbers: list[int]) -> None:
        for number in numbers:
            if self.consumers:
                self.consumers[number % len(self.consumers)].step()
                self.no_partition_is_read_by_two()

    @precondition(lambda self: self.consumers)
    @rule(number=st.integers(0, 3), dies=st.booleans())
    def goes(self, number: int, dies: bool) -> None:
        one = self.consumers.pop(number % len(self.consumers))
        if not dies:
            one.close()

    @precondition(lambda self: self.consumers)
    @rule(number=st.integers(0, 3))
    def misses_an_answer(self, number: int) -> None:
        one = self.consumers[number % len(self.consumers)]
        if isinstance(one, ClassicConsumer):
            one.lose_connection()
        else:
            one.beat_in_vain()

    @rule(milliseconds=st.sampled_from((100, 5_000, 20_000, 45_000)))
    def time_passes(self, milliseconds: int) -> None:
        self.lab.advance(milliseconds)

    @rule(count=st.integers(5, 7))
    def topic_grows(self, count: int) -> None:
        topic = self.lab.topics.get("t")
        if topic is not None and topic.partition_count < count:
            self.lab.topics.grow("t", count)

    @rule()
    def broker_is_killed(self) -> None:
        self.lab.restart()
        for one in self.consumers:
            if isinstance(one, ClassicConsumer):
                one.hang_up()

    @invariant()
    def no_partition_is_read_by_two(self) -> None:
        members = self.lab.member_ids
        readers: dict[object, str] = {}
        for one in self.consumers:
            if one.member_id in members:
                for partition in one.reading:
                    assert partition not in readers, f"{readers[partition]} and {one.member_id} read {partition}"
                    readers[partition] = one.member_id

    @invariant()
    def what_it_takes_in_memory_is_counted(self) -> None:
        group = self.lab.host.group("g")
        assert self.lab.host.budget.used == (0 if group is None else group.state_bytes)

    def teardown(self) -> None:
        """Run all consumers until nothing changes, and until the sessions of crashed ones have expired."""
        for _ in range(80):
            for one in self.consumers:
                one.step()
            self.no_partition_is_read_by_two()
            self.lab.advance(3_000)
        assert self.lab.member_ids == {one.member_id for one in self.consumers}
        if not self.consumers:
            return
        topic = self.lab.topics.get("t")
        assert topic is not None
        everything = {(topic.id, index) for index in range(topic.partition_count)}
        if any(isinstance(one, NewConsumer) for one in self.consumers):
            assert self.lab.kind == "consumer"
            assert set().union(*(one.reading for one in self.consumers)) == everything
        else:
            assert self.lab.kind == "classic"
            # In a classic group the leader has to notice a topic that has grown, and this leader does not.
            assert {index for one in self.consumers for _, index in one.reading} >= set(range(4))


MigrationMachine.TestCase.settings = settings(
    max_examples=100, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestMigration = MigrationMachine.TestCase

"""Groups whose assignment the broker computes (KIP-848). Of the three clients, only confluent-kafka supports them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import pytest
from confluent_kafka import KafkaException

from tests.broker.process import BrokerProcess
from tests.clients.admin import create_topic, grow_topic
from tests.clients.groups import all_of, fill, offsets
from tests.clients.interface import Client, Consumer, ConsumerOptions, Place
from tests.clients.member_process import member_process
from tests.clients.waiting import poll_until, read, share

NewTopic = Callable[[int], list[Place]]


@pytest.fixture
def client(clients: dict[str, Client]) -> Client:
    return clients["confluent-kafka"]


def member_of(group: str, *topics: str, assignor: str = "uniform", instance_id: str | None = None) -> ConsumerOptions:
    return ConsumerOptions(
        group=group, topics=topics or [group], protocol="consumer", assignor=assignor, instance_id=instance_id
    )


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_members_share_the_partitions_as_they_come_and_go(
    client: Client, assignor: str, broker: BrokerProcess, new_topic: NewTopic, name: str
) -> None:
    places = new_topic(6)
    fill(client, broker.address, places, each=20)
    with ExitStack() as stack:
        members: list[Consumer] = []
        received = []
        for _ in range(3):
            members.append(stack.enter_context(client.consumer(broker.address, member_of(name, assignor=assignor))))
            received += share(members, set(places))
        members.pop(1).close()
        received += share(members, set(places))
        received += poll_until(members, lambda more: set(offsets(received + more)) == set(all_of(places, 20)))


def test_the_uniform_assignor_moves_no_more_partitions_than_necessary(
    client: Client, broker: BrokerProcess, new_topic: NewTopic, name: str
) -> None:
    """Nothing is committed, so a member that lost a partition and got it back would read it again from its start."""
    places = new_topic(6)
    fill(client, broker.address, places, each=10)
    with client.consumer(broker.address, member_of(name)) as first:
        assert offsets(read(first, 60)) == all_of(places, 10)
        with client.consumer(broker.address, member_of(name)) as second:
            moved = share([first, second], set(places))
            moved += poll_until([first, second], lambda more: len(moved + more) >= 30)
            assert offsets(moved) == all_of(sorted(second.owned), 10)


def test_a_group_continues_at_its_committed_offsets(
    client: Client, broker: BrokerProcess, new_topic: NewTopic, name: str
) -> None:
    places = new_topic(2)
    fill(client, broker.address, places, each=10)
    with client.consumer(broker.address, member_of(name)) as consumer:
        assert offsets(read(consumer, 20)) == all_of(places, 10)
        consumer.commit()
    fill(client, broker.address, places, each=5)
    with client.consumer(broker.address, member_of(name)) as consumer:
        assert offsets(read(consumer, 10)) == all_of(places, 15) - all_of(places, 10)
        answer = consumer.commit_async()
        poll_until([consumer], lambda _: bool(answer), "an answer to the commit")
        assert answer == [None]
        assert [consumer.committed(place) for place in places] == [15, 15]


def test_the_partitions_of_a_crashed_member_go_to_the_others(
    client: Client, broker: BrokerProcess, new_topic: NewTopic, name: str
) -> None:
    places = new_topic(4)
    options = member_of(name)
    with (
        client.consumer(broker.address, options) as left,
        member_process(client.name, broker.address, options) as crashing,
    ):
        poll_until([left], lambda _: len(left.owned) == 2 and len(crashing.owned) == 2)
        assert left.owned | crashing.owned == set(places)
        crashing.kill()
        share([left], set(places))


def test_a_restarted_static_member_gets_its_partitions_back(
    client: Client, broker: BrokerProcess, new_topic: NewTopic, name: str
) -> None:
    places = new_topic(4)
    with client.consumer(broker.address, member_of(name, instance_id="one")) as one:
        with client.consumer(broker.address, member_of(name, instance_id="two")) as two:
            share([one, two], set(places))
            before = [one.owned, two.owned]
        with client.consumer(broker.address, member_of(name, instance_id="two")) as two:
            share([one, two], set(places))
            assert [one.owned, two.owned] == before


def test_a_second_static_member_of_the_same_name_is_refused(
    client: Client, broker: BrokerProcess, new_topic: NewTopic, name: str
) -> None:
    """Unlike in classic groups, the first member keeps its name until it leaves."""
    places = new_topic(2)
    with client.consumer(broker.address, member_of(name, instance_id="one")) as first:
        share([first], set(places))
        with (
            client.consumer(broker.address, member_of(name, instance_id="one")) as second,
            pytest.raises(KafkaException, match="instance ID is still used"),
        ):
            poll_until([first, second], lambda _: False, "a refusal")
        share([first], set(places))


def test_a_topic_that_is_created_later_and_partitions_that_are_added_are_assigned(
    client: Client, broker: BrokerProcess, new_topic: NewTopic, name: str
) -> None:
    places = new_topic(2)
    later = f"{name}-later"
    with (
        client.consumer(broker.address, member_of(name, name, later)) as first,
        client.consumer(broker.address, member_of(name, name, later)) as second,
    ):
        share([first, second], set(places))
        create_topic(broker.address, later, 4)
        share([first, second], {*places, *(Place(later, number) for number in range(4))})
        grow_topic(broker.address, name, 5)
        share([first, second], {Place(later, number) for number in range(4)} | {Place(name, n) for n in range(5)})


def test_a_pattern_sees_new_topics(client: Client, broker: BrokerProcess, name: str) -> None:
    """The broker matches the pattern, with Google's RE2 syntax."""
    create_topic(broker.address, f"{name}-a")
    pattern = f"^{name}-[a-c]$"
    with client.consumer(
        broker.address, ConsumerOptions(group=name, pattern=pattern, protocol="consumer", assignor="range")
    ) as consumer:
        share([consumer], {Place(f"{name}-a", 0)})
        create_topic(broker.address, f"{name}-b")
        create_topic(broker.address, f"{name}-d")
        share([consumer], {Place(f"{name}-a", 0), Place(f"{name}-b", 0)})


def test_an_empty_group_changes_its_protocol_and_keeps_its_offsets(
    client: Client, broker: BrokerProcess, new_topic: NewTopic, name: str
) -> None:
    places = new_topic(2)
    classic = ConsumerOptions(group=name, topics=[name])
    for options in (classic, member_of(name), classic):
        fill(client, broker.address, places, each=3)
        with client.consumer(broker.address, options) as consumer:
            received = read(consumer, 6)
            assert len(received) == 6
            consumer.commit()
    assert {one.offset for one in received} == {6, 7, 8}

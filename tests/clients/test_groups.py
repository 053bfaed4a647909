"""Groups whose members compute the assignment (the classic protocol): joining, leaving, crashing, rejoining."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import pytest

from tests.broker.process import BrokerProcess
from tests.clients.groups import all_of, fill, offsets
from tests.clients.interface import ASSIGNORS, Client, Consumer, ConsumerOptions, Place
from tests.clients.member_process import member_process
from tests.clients.waiting import poll_until, read, share

NewTopic = Callable[[int], list[Place]]


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_members_share_the_partitions_as_they_come_and_go(
    client: Client, assignor: str, broker: BrokerProcess, new_topic: NewTopic, name: str
) -> None:
    client.must_have(f"{assignor} assignor")
    places = new_topic(6)
    fill(client, broker.address, places, each=20)
    options = ConsumerOptions(group=name, topics=[name], assignor=assignor)
    with ExitStack() as stack:
        members: list[Consumer] = []
        received = []
        for _ in range(3):
            members.append(stack.enter_context(client.consumer(broker.address, options)))
            received += share(members, set(places))
        members.pop(1).close()
        received += share(members, set(places))
        received += poll_until(members, lambda more: set(offsets(received + more)) == set(all_of(places, 20)))


def test_cooperative_members_keep_reading_partitions_that_stay(
    client: Client, broker: BrokerProcess, new_topic: NewTopic, name: str
) -> None:
    """Nothing is committed, so a member that lost a partition and got it back would read it again from its start."""
    client.must_have("cooperative-sticky assignor")
    places = new_topic(6)
    fill(client, broker.address, places, each=10)
    options = ConsumerOptions(group=name, topics=[name], assignor="cooperative-sticky")
    with client.consumer(broker.address, options) as first:
        assert offsets(read(first, 60)) == all_of(places, 10)
        with client.consumer(broker.address, options) as second:
            moved = share([first, second], set(places))
            moved += poll_until([first, second], lambda more: len(moved + more) >= 30)
            assert offsets(moved) == all_of(sorted(second.owned), 10)


def test_a_group_continues_at_its_committed_offsets(
    client: Client, broker: BrokerProcess, new_topic: NewTopic, name: str
) -> None:
    places = new_topic(2)
    fill(client, broker.address, places, each=10)
    options = ConsumerOptions(group=name, topics=[name])
    with client.consumer(broker.address, options) as consumer:
        assert offsets(read(consumer, 20)) == all_of(places, 10)
        consumer.commit()
        assert [consumer.committed(place) for place in places] == [10, 10]
    fill(client, broker.address, places, each=5)
    with client.consumer(broker.address, options) as consumer:
        assert offsets(read(consumer, 10)) == all_of(places, 15) - all_of(places, 10)
        answer = consumer.commit_async()
        poll_until([consumer], lambda _: bool(answer), "an answer to the commit")
        assert answer == [None]
    with client.consumer(broker.address, options) as consumer:
        share([consumer], set(places))
        assert [consumer.committed(place) for place in places] == [15, 15]
        fill(client, broker.address, places, each=1)
        assert offsets(read(consumer, 2)) == all_of(places, 16) - all_of(places, 15)


def test_close_commits_if_auto_commit_is_on(
    client: Client, broker: BrokerProcess, new_topic: NewTopic, name: str
) -> None:
    (place,) = new_topic(1)
    fill(client, broker.address, [place], each=10)
    with client.consumer(broker.address, ConsumerOptions(group=name, topics=[name], auto_commit=True)) as consumer:
        read(consumer, 10)
    with client.consumer(broker.address, ConsumerOptions(group=name, partitions=[place])) as consumer:
        assert consumer.committed(place) == 10


def test_the_partitions_of_a_crashed_member_go_to_the_others(
    client: Client, broker: BrokerProcess, new_topic: NewTopic, name: str
) -> None:
    places = new_topic(4)
    options = ConsumerOptions(group=name, topics=[name], session_ms=2000)
    with (
        client.consumer(broker.address, options) as left,
        member_process(client.name, broker.address, options) as crashing,
    ):
        poll_until([left], lambda _: len(left.owned) == 2 and len(crashing.owned) == 2)
        assert left.owned | crashing.owned == set(places)
        crashing.kill()
        share([left], set(places))


def test_a_restarted_static_member_gets_its_partitions_back_without_a_rebalance(
    client: Client, broker: BrokerProcess, new_topic: NewTopic, name: str
) -> None:
    places = new_topic(4)

    def member(instance_id: str) -> Consumer:
        options = ConsumerOptions(group=name, topics=[name], instance_id=instance_id, session_ms=60_000)
        return client.consumer(broker.address, options)

    with member("one") as one:
        with member("two") as two:
            share([one, two], set(places))
            before = [one.owned, two.owned]
        with member("two") as two:
            fill(client, broker.address, places, each=5)
            received = poll_until([one, two], lambda received: len(received) >= 20)
            assert [one.owned, two.owned] == before
            assert offsets(received) == all_of(places, 5)


def test_a_second_static_member_of_the_same_name_fences_the_first(
    client: Client, broker: BrokerProcess, new_topic: NewTopic, name: str
) -> None:
    """aiokafka does not know the error's name; kafka-python only shows it when it commits.

    The session is long: after it expires, the first member would be an ordinary new member.
    """
    places = new_topic(2)
    fill(client, broker.address, places, each=1)
    options = ConsumerOptions(group=name, topics=[name], instance_id="one", session_ms=60_000)
    with client.consumer(broker.address, options) as first:
        read(first, 2)
        with client.consumer(broker.address, options) as second:
            share([second], set(places))
            with pytest.raises(Exception, match=r"(?i)fenced|fatal|UnknownError|CommitFailed"):
                first.commit()
            share([second], set(places))

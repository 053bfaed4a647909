"""A classic group of this consumer, confluent-kafka's and kafka-python's: all work together, whichever member leads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.client.conftest import NewTopic
from tests.client.groups.members import MemberThread, wait_until
from tests.clients.everyone import make_client
from tests.clients.interface import Consumer, ConsumerOptions, Message, Place
from tests.clients.kafka_python import KafkaPythonConsumer

PARTITIONS = 9
EACH = 40


@contextmanager
def closed_sockets(consumer: Consumer) -> Iterator[None]:
    """Close the sockets that kafka-python (3.0.12) leaves open when a consumer is closed.

    It waits for bytes that the socket has not taken yet, and then never looks again. The garbage collector would find
    the socket, and its warning would fail whatever test is running.
    """
    transports: list[Any] = []
    if isinstance(consumer, KafkaPythonConsumer):
        transports = [connection.transport for connection in consumer._consumer._manager._conns.values()]
    yield
    for transport in transports:
        if transport is not None and transport._sock is not None:
            transport._sock.close()


class OtherMember:
    """A consumer of another client, polled in a thread."""

    def __init__(self, client: str, bootstrap: str, group: str, topic: str, assignor: str) -> None:
        self.got: list[tuple[int, int]] = []
        self.failure: BaseException | None = None
        self._stopping = threading.Event()
        options = ConsumerOptions(group=group, topics=(topic,), assignor=assignor)
        self._consumer = make_client(client).consumer(bootstrap, options)
        if isinstance(self._consumer, KafkaPythonConsumer):
            # A leader without metadata of the topic would assign its partitions to no member, for a long time.
            self._consumer._consumer.partitions_for_topic(topic)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self.got += [(record.partition, record.offset) for record in self._consumer.poll(0.05)]
        except BaseException as error:
            self.failure = error

    @property
    def owned(self) -> frozenset[Place]:
        return self._consumer.owned

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        with closed_sockets(self._consumer):
            self._consumer.close()
        if self.failure is not None:
            raise self.failure


@pytest.mark.any_broker
@pytest.mark.parametrize("first", ["ours", "theirs"])
@pytest.mark.parametrize("assignor", ["range", "roundrobin", "sticky", "cooperative-sticky"])
def test_three_clients_share_the_partitions_of_one_group(
    assignor: str, first: str, bootstrap: str, name: str, new_topic: NewTopic
) -> None:
    topic = new_topic(PARTITIONS)
    with make_client("confluent-kafka").producer(bootstrap) as producer:
        for partition in range(PARTITIONS):
            producer.send(topic, [Message(b"%d" % number, partition=partition) for number in range(EACH)])
    members: list[MemberThread | OtherMember] = []

    def ours() -> None:
        members.append(MemberThread(bootstrap, name, [topic], partition_assignment_strategy=assignor))

    def theirs() -> None:
        # librdkafka has no assignor that is sticky and eager
        second = "kafka-python" if assignor == "sticky" else "confluent-kafka"
        members.append(OtherMember(second, bootstrap, name, topic, assignor))
        members.append(OtherMember("kafka-python", bootstrap, name, topic, assignor))

    def wait_for_shares(sizes: list[int]) -> None:
        def is_shared() -> bool:
            for member in members:
                if member.failure is not None:
                    raise member.failure
            owned = [{tuple(partition) for partition in member.owned} for member in members]
            return sorted(map(len, owned)) == sizes and len(set().union(*owned)) == PARTITIONS

        wait_until(is_shared, lambda: f"the partitions are shared as {[sorted(member.owned) for member in members]}")

    try:
        for join in (ours, theirs) if first == "ours" else (theirs, ours):
            join()  # the first member leads the group
            if len(members) == 1:
                wait_for_shares([PARTITIONS])
        wait_for_shares([3, 3, 3])
        expected = {(partition, offset) for partition in range(PARTITIONS) for offset in range(EACH)}
        wait_until(
            lambda: {position for member in members for position in member.got} >= expected,
            lambda: "not all records were read",
        )
        members.pop(0).stop()
        wait_for_shares([4, 5])
    finally:
        for member in members:
            member.stop()

"""Topics that do not exist yet: created on first use, or refused; and patterns that match them later."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.process import BrokerProcess
from tests.clients.admin import admin_client, create_topic, delete_topic, grow_topic
from tests.clients.interface import Client, ConsumerOptions, Message, Place
from tests.clients.waiting import poll_until, read, share


def test_a_topic_is_created_by_the_first_write(client: Client, broker: BrokerProcess, name: str) -> None:
    with client.producer(broker.address) as producer:
        assert producer.send(name, [Message(b"1"), Message(b"2")]) == [0, 1]
    with client.consumer(broker.address, ConsumerOptions(partitions=[Place(name, 0)])) as consumer:
        assert [one.value for one in read(consumer, 2)] == [b"1", b"2"]


@pytest.fixture(scope="module")
def strict_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data_dir: Path = tmp_path_factory.mktemp("strict") / "data"
    with BrokerProcess(data_dir, {"auto.create.topics.enable": "false"}) as running:
        yield running


def test_no_topic_is_created_if_the_setting_forbids_it(client: Client, strict_broker: BrokerProcess, name: str) -> None:
    create_topic(strict_broker.address, f"{name}-made")
    with client.producer(strict_broker.address, give_up_ms=1500) as producer:
        with pytest.raises(Exception, match=REFUSALS[client.name]):
            producer.send(name, [Message(b"1")])
        assert producer.send(f"{name}-made", [Message(b"1")]) == [0]
    assert name not in admin_client(strict_broker.address).list_topics(timeout=60).topics


REFUSALS = {
    "confluent-kafka": "UNKNOWN_TOPIC",
    "kafka-python": "UnknownTopicOrPartition|KafkaTimeoutError",
    "aiokafka": "UnknownTopicOrPartition",
}


def test_a_pattern_sees_new_topics(client: Client, broker: BrokerProcess, name: str) -> None:
    create_topic(broker.address, f"{name}-a", 2)
    options = ConsumerOptions(group=name, pattern=f"^{name}-[a-c]$")
    with client.consumer(broker.address, options) as first, client.consumer(broker.address, options) as second:
        share([first, second], {Place(f"{name}-a", 0), Place(f"{name}-a", 1)})
        create_topic(broker.address, f"{name}-d", 2)
        create_topic(broker.address, f"{name}-c", 2)
        share([first, second], {Place(f"{name}-{letter}", number) for letter in "ac" for number in (0, 1)})


def test_added_partitions_are_assigned(client: Client, broker: BrokerProcess, name: str) -> None:
    create_topic(broker.address, name, 2)
    options = ConsumerOptions(group=name, topics=[name])
    with client.consumer(broker.address, options) as first, client.consumer(broker.address, options) as second:
        share([first, second], {Place(name, 0), Place(name, 1)})
        grow_topic(broker.address, name, 4)
        share([first, second], {Place(name, number) for number in range(4)})
        with client.producer(broker.address) as producer:
            assert producer.send(name, [Message(b"%d" % number, partition=number) for number in range(4)]) == [0] * 4
        received = poll_until([first, second], lambda received: len(received) == 4)
        assert sorted(one.partition for one in received) == [0, 1, 2, 3]


def test_a_recreated_topic_is_empty(client: Client, broker: BrokerProcess, name: str) -> None:
    """The new topic has another id, so that no client mistakes it for the old one."""
    for _ in range(2):
        create_topic(broker.address, name)
        with client.producer(broker.address, idempotent=True) as producer:
            assert producer.send(name, [Message(b"1"), Message(b"2")]) == [0, 1]
        with client.consumer(broker.address, ConsumerOptions(partitions=[Place(name, 0)])) as consumer:
            assert [one.offset for one in read(consumer, 2)] == [0, 1]
        delete_topic(broker.address, name)


def test_a_producer_survives_the_deletion_of_its_topic(client: Client, broker: BrokerProcess, name: str) -> None:
    """The producer knows the old topic's id, and its sequence numbers continue in a partition that has seen none."""
    create_topic(broker.address, name)
    with client.producer(broker.address, idempotent=True) as producer:
        assert producer.send(name, [Message(b"1"), Message(b"2")]) == [0, 1]
        delete_topic(broker.address, name)
        create_topic(broker.address, name)
        assert producer.send(name, [Message(b"3")]) == [0]
        assert producer.send(name, [Message(b"4")]) == [1]

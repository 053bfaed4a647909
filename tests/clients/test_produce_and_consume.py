"""Clients read what clients have sent: every codec, every value of acks, keys, headers, nulls, timestamps, order."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.broker.process import BrokerProcess
from tests.clients.admin import create_topic
from tests.clients.interface import CODECS, Client, ConsumerOptions, Message, Place, Received
from tests.clients.waiting import read

START = 1_700_000_000_000

# Records that clients may send: empty differs from null, header names repeat, timestamps decrease.
ODD = [
    Message(b"plain"),
    Message(b"", key=b""),
    Message(None, key=b"tombstone"),
    Message(b"v", headers=(("trace", b"\x00\xff"), ("trace", b"again"), ("empty", b""), ("ümlaut", b"x"))),
    Message(b"\x00" * 100_000, key=b"large"),
    Message(b"before the others", timestamp=START - 86_400_000),
]
MANY = [Message(b"%d" % number * 20, key=b"k%d" % (number % 7), timestamp=START + number) for number in range(2000)]


def as_received(topic: str, messages: list[Message], start: int = 0) -> list[Received]:
    return [
        Received(topic, one.partition, offset, one.timestamp, one.key, one.value, one.headers)
        for offset, one in enumerate(messages, start)
    ]


@pytest.mark.parametrize("codec", CODECS)
def test_records_are_read_as_they_were_sent(
    client: Client, codec: str, broker: BrokerProcess, new_topic: Callable[..., list[Place]]
) -> None:
    (place,) = new_topic()
    with client.producer(broker.address, codec=codec, acks=1) as producer:
        assert producer.send(place.topic, ODD) == list(range(len(ODD)))
        assert producer.send(place.topic, MANY) == list(range(len(ODD), len(ODD) + len(MANY)))
    with client.consumer(broker.address, ConsumerOptions(partitions=[place])) as consumer:
        assert read(consumer, len(ODD) + len(MANY)) == as_received(place.topic, ODD + MANY)
        assert consumer.poll(0.2) == []


@pytest.mark.parametrize(("acks", "idempotent"), [(0, False), (1, False), (-1, False), (-1, True)])
def test_every_value_of_acks_delivers(
    client: Client, acks: int, idempotent: bool, broker: BrokerProcess, new_topic: Callable[..., list[Place]]
) -> None:
    places = new_topic(3)
    messages = [Message(b"%d" % number, timestamp=START + number, partition=number % 3) for number in range(900)]
    with client.producer(broker.address, acks=acks, idempotent=idempotent, codec="lz4") as producer:
        offsets = [
            offset
            for start in (0, 300, 600)
            for offset in producer.send(places[0].topic, messages[start : start + 300])
        ]
    if acks != 0:
        assert offsets == [number // 3 for number in range(900)]
    with client.consumer(broker.address, ConsumerOptions(partitions=places)) as consumer:
        received = read(consumer, 900)
    for place in places:
        assert [one for one in received if one.place == place] == as_received(
            place.topic, messages[place.partition :: 3]
        )


def test_each_client_reads_what_the_others_sent(
    clients: dict[str, Client], broker: BrokerProcess, new_topic: Callable[..., list[Place]]
) -> None:
    """Send with all codecs of all clients, one after the other, to one partition."""
    (place,) = new_topic()
    for writer in clients.values():
        for codec in CODECS:
            with writer.producer(broker.address, codec=codec) as producer:
                producer.send(place.topic, ODD)
    expected = as_received(place.topic, ODD * len(clients) * len(CODECS))
    for reader in clients.values():
        with reader.consumer(broker.address, ConsumerOptions(partitions=[place])) as consumer:
            assert read(consumer, len(expected)) == expected


def test_a_record_larger_than_the_topics_limit_is_refused_by_the_broker(
    clients: dict[str, Client], broker: BrokerProcess, name: str
) -> None:
    create_topic(broker.address, name, config={"max.message.bytes": "1000"})
    for client, error in (
        (clients["confluent-kafka"], "MSG_SIZE_TOO_LARGE"),
        (clients["kafka-python"], "MessageSizeTooLargeError"),
        (clients["aiokafka"], "MessageSizeTooLargeError"),
    ):
        with client.producer(broker.address) as producer:
            with pytest.raises(Exception, match=error):
                producer.send(name, [Message(b"x" * 2000)])
            producer.send(name, [Message(b"x" * 500)])


def test_log_append_time_is_the_brokers_time(client: Client, broker: BrokerProcess, name: str) -> None:
    create_topic(broker.address, name, config={"message.timestamp.type": "LogAppendTime"})
    with client.producer(broker.address, codec="gzip") as producer:
        producer.send(name, [Message(b"1"), Message(b"2")])
    with client.consumer(broker.address, ConsumerOptions(partitions=[Place(name, 0)])) as consumer:
        received = read(consumer, 2)
    assert all(one.timestamp > START for one in received)
    assert [one.value for one in received] == [b"1", b"2"]

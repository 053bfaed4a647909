"""The broker stops or is killed, and starts again on the same directory and port: clients continue."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.process import BrokerProcess
from tests.clients.admin import create_topic
from tests.clients.conftest import SETTINGS
from tests.clients.groups import all_of, fill, offsets
from tests.clients.interface import Client, ConsumerOptions, Message, Place
from tests.clients.waiting import poll_until, read, share


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {**SETTINGS, "offsets.topic.num.partitions": 4}  # each partition has to be recovered
    with BrokerProcess(tmp_path_factory.mktemp("mortal") / "data", settings) as running:
        yield running


def restart(broker: BrokerProcess, how: str) -> None:
    if how == "SIGTERM":
        assert broker.stop() == 0
    else:
        broker.kill()
    broker.start()


@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL"])
def test_clients_continue_after_the_broker_restarts(client: Client, how: str, mortal: BrokerProcess, name: str) -> None:
    """A producer, a member of a group, and its commits continue without being created again."""
    create_topic(mortal.address, name, 2)
    places = [Place(name, 0), Place(name, 1)]
    messages = [Message(b"%d" % number, partition=number % 2) for number in range(20)]
    options = ConsumerOptions(group=name, topics=[name], session_ms=30_000)
    with client.producer(mortal.address, idempotent=True) as producer:
        with client.consumer(mortal.address, options) as consumer:
            assert producer.send(name, messages) == [number // 2 for number in range(20)]
            assert offsets(read(consumer, 20)) == all_of(places, 10)
            consumer.commit()
            restart(mortal, how)
            assert producer.send(name, messages) == [10 + number // 2 for number in range(20)]
            received = poll_until([consumer], lambda received: len(received) >= 20)
            assert offsets(received) == all_of(places, 20) - all_of(places, 10)
            consumer.commit()
            assert [consumer.committed(place) for place in places] == [20, 20]
        restart(mortal, how)
        with client.consumer(mortal.address, options) as consumer:
            share([consumer], set(places))
            assert [consumer.committed(place) for place in places] == [20, 20]
            producer.send(name, messages[:2])
            assert offsets(read(consumer, 2)) == all_of(places, 21) - all_of(places, 20)
    assert mortal.errors() == []


def test_a_kip_848_member_continues_after_kill_9(clients: dict[str, Client], mortal: BrokerProcess, name: str) -> None:
    client = clients["confluent-kafka"]
    create_topic(mortal.address, name, 4)
    places = [Place(name, number) for number in range(4)]
    options = ConsumerOptions(group=name, topics=[name], protocol="consumer", assignor="uniform")
    with client.consumer(mortal.address, options) as one, client.consumer(mortal.address, options) as two:
        share([one, two], set(places))  # before there are records: the member that reads one also commits it
        fill(client, mortal.address, places, each=5)
        received = poll_until([one, two], lambda received: len(received) >= 20)
        assert offsets(received) == all_of(places, 5)
        one.commit()
        two.commit()
        assert [one.committed(place) for place in places] == [5] * 4
        owned = [one.owned, two.owned]
        restart(mortal, "SIGKILL")
        fill(client, mortal.address, places, each=5)
        received = poll_until([one, two], lambda received: len(received) >= 20)
        assert offsets(received) == all_of(places, 10) - all_of(places, 5)
        assert [one.owned, two.owned] == owned
    assert mortal.errors() == []


def test_topics_and_their_settings_survive_kill_9(mortal: BrokerProcess, name: str, clients: dict[str, Client]) -> None:
    create_topic(mortal.address, name, 3, {"max.message.bytes": "500"})
    restart(mortal, "SIGKILL")
    with clients["kafka-python"].producer(mortal.address) as producer:
        assert producer.send(name, [Message(b"x", partition=2)]) == [0]
        with pytest.raises(Exception, match="MessageSizeTooLarge"):
            producer.send(name, [Message(b"x" * 600)])


def test_the_data_directory_can_be_moved(tmp_path: Path, clients: dict[str, Client]) -> None:
    """No file of a data directory contains the directory's path."""
    client = clients["aiokafka"]
    with BrokerProcess(tmp_path / "here", SETTINGS) as broker, client.producer(broker.address) as producer:
        producer.send("t", [Message(b"1")])
    (tmp_path / "here").rename(tmp_path / "there")
    with BrokerProcess(tmp_path / "there", SETTINGS) as broker, client.producer(broker.address) as producer:
        assert producer.send("t", [Message(b"2")]) == [1]

"""Transactions with every client: all or nothing over several partitions, with the offsets of what was read."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.broker.process import BrokerProcess
from tests.clients.admin import create_topic
from tests.clients.aio import LoopThread
from tests.clients.everyone import CLIENTS
from tests.clients.interface import Client, ConsumerOptions, Message, Place
from tests.clients.transactional import TransactionalProducer, transactional
from tests.clients.waiting import poll_until

NewTopic = Callable[[int], list[Place]]
Make = Callable[..., TransactionalProducer]


@pytest.fixture(params=CLIENTS)
def client_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def client(client_name: str, clients: dict[str, Client]) -> Client:
    return clients[client_name]


@pytest.fixture
def make(client_name: str, loop_thread: LoopThread, broker: BrokerProcess, name: str) -> Iterator[Make]:
    """Producers of one transactional id."""
    with contextlib.ExitStack() as made:

        def one(timeout_ms: int = 60_000) -> TransactionalProducer:
            producer = transactional(client_name, loop_thread, broker.address, name, timeout_ms)
            made.callback(_closed_if_it_can, producer)
            return producer

        yield one


def _closed_if_it_can(producer: TransactionalProducer) -> None:
    with contextlib.suppress(Exception):  # a fenced one
        producer.close()


def committed_values(client: Client, address: str, places: list[Place], count: int) -> list[bytes]:
    """Those that a read_committed reader sees, sorted as numbers are; no more may come."""
    options = ConsumerOptions(partitions=places, isolation="read_committed")
    with client.consumer(address, options) as consumer:
        received = poll_until([consumer], lambda received: len(received) >= count)
        received += consumer.poll(0.5)
        return sorted((one.value or b"" for one in received), key=lambda value: (len(value), value))


def committed_offset(client: Client, address: str, group: str, place: Place) -> int | None:
    with client.consumer(address, ConsumerOptions(group=group, partitions=[place])) as consumer:
        return consumer.committed(place)


def test_what_is_committed_shows_in_all_partitions_and_what_is_aborted_in_none(
    client: Client, broker: BrokerProcess, new_topic: NewTopic, make: Make
) -> None:
    places = new_topic(3)
    producer = make()
    expected = []
    for number in range(8):
        producer.begin()
        values = [b"%d-%d" % (number, place.partition) for place in places]
        for place, value in zip(places, values, strict=True):
            producer.send(place, value)
        if number % 3 == 0:
            producer.abort()
        else:
            producer.commit()
            expected += values
    assert committed_values(client, broker.address, places, len(expected)) == expected


def test_offsets_count_with_the_transaction_or_not_at_all(
    client: Client, broker: BrokerProcess, new_topic: NewTopic, make: Make, name: str
) -> None:
    (place,) = new_topic(1)
    producer = make()
    for number, commits in enumerate((True, False, True, False), 1):
        producer.begin()
        producer.send(place, b"%d" % number)
        producer.send_offsets(name, {place: number})
        producer.commit() if commits else producer.abort()
        assert committed_offset(client, broker.address, name, place) == (number if commits else number - 1)


def test_second_producer_of_an_id_fences_the_first_and_drops_what_it_had_open(
    client: Client, broker: BrokerProcess, new_topic: NewTopic, make: Make
) -> None:
    places = new_topic(1)
    old = make()
    old.begin()
    old.send(places[0], b"old")
    new = make()
    with pytest.raises(Exception):  # noqa: B017 - each client has its own
        old.send(places[0], b"old again")
        old.commit()
    new.begin()
    new.send(places[0], b"new")
    new.commit()
    assert committed_values(client, broker.address, places, 1) == [b"new"]


def test_read_process_write_has_each_input_once_over_kills(
    client_name: str, client: Client, loop_thread: LoopThread, tmp_path: Path
) -> None:
    inputs = [b"%d" % number for number in range(40)]
    settings = {"group.initial.rebalance.delay.ms": 0, "transaction.state.log.num.partitions": 2}
    with BrokerProcess(tmp_path / "data", settings) as broker:
        create_topic(broker.address, SOURCE.topic)
        create_topic(broker.address, TARGET.topic)
        with client.producer(broker.address) as producer:
            producer.send(SOURCE.topic, [Message(value) for value in inputs])
        for _ in range(3):
            copier = transactional(client_name, loop_thread, broker.address, "copier")
            copy(client, copier, broker.address, inputs, transactions=2)
            broker.kill()  # with a transaction open
            _closed_if_it_can(copier)
            broker.start()
        with transactional(client_name, loop_thread, broker.address, "copier") as copier:
            copy(client, copier, broker.address, inputs, transactions=8)
            assert committed_values(client, broker.address, [TARGET], len(inputs)) == inputs


SOURCE, TARGET = Place("source", 0), Place("target", 0)


def copy(
    client: Client, producer: TransactionalProducer, address: str, inputs: list[bytes], *, transactions: int
) -> None:
    """From the committed offset on, five records a transaction. One is aborted, and its records come again. What is
    left is then begun and not ended."""
    at = committed_offset(client, address, "copier", SOURCE) or 0
    for number in range(transactions + 1):
        some = inputs[at : at + 5]
        if not some:
            return
        producer.begin()
        for value in some:
            producer.send(TARGET, value)
        producer.send_offsets("copier", {SOURCE: at + len(some)})
        if number == 1:
            producer.abort()
        elif number < transactions:
            producer.commit()
            at += len(some)


def test_no_transaction_is_torn_or_lost_by_kills_at_any_moment(
    client_name: str, client: Client, loop_thread: LoopThread, tmp_path: Path
) -> None:
    """Each transaction writes its number to three partitions, while the broker is killed again and again."""
    places = [Place("torn", partition) for partition in range(3)]
    settings = {"group.initial.rebalance.delay.ms": 0, "transaction.state.log.num.partitions": 2}
    with BrokerProcess(tmp_path / "data", settings) as broker:
        create_topic(broker.address, "torn", 3)
        killer = threading.Thread(target=kill_often, args=(broker,))
        killer.start()
        committed = write_numbers(client_name, loop_thread, broker.address, places, killer.is_alive)
        killer.join()
        transactional(client_name, loop_thread, broker.address, "torn").close()  # what is open is aborted
        seen = [committed_values(client, broker.address, [place], len(committed)) for place in places]
    assert seen[0] == seen[1] == seen[2]
    assert len(seen[0]) == len(set(seen[0]))
    assert committed <= set(seen[0])


def kill_often(broker: BrokerProcess) -> None:
    chance = random.Random(7)
    for _ in range(4):
        time.sleep(chance.uniform(0.2, 0.8))
        broker.kill()
        broker.start()


def write_numbers(
    client_name: str, thread: LoopThread, address: str, places: list[Place], goes_on: Callable[[], bool]
) -> set[bytes]:
    """Those whose commit was acknowledged. After an error a new producer takes over."""
    committed: set[bytes] = set()
    producer: TransactionalProducer | None = None
    number = 0
    while goes_on() or not committed:
        number += 1
        try:
            producer = producer or transactional(client_name, thread, address, "torn", timeout_ms=5_000)
            producer.begin()
            for place in places:
                producer.send(place, b"%d" % number)
            producer.commit()
            committed.add(b"%d" % number)
        except Exception:  # each client has its own
            if producer is not None:
                _closed_if_it_can(producer)
            producer = None
    if producer is not None:
        _closed_if_it_can(producer)
    return committed

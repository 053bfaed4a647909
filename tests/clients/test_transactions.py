"""Transactions with every client: atomic across several partitions, and together with the offsets of a consumer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.broker.process import BrokerProcess
from tests.campaigns import quick_and_full, slow
from tests.clients.aio import LoopThread
from tests.clients.copy_rounds import copy_under_kills
from tests.clients.everyone import make_client
from tests.clients.interface import Client, ConsumerOptions, Place
from tests.clients.transactional import TRANSACTIONAL_CLIENTS, TransactionalProducer, transactional
from tests.clients.waiting import poll_until

NewTopic = Callable[[int], list[Place]]
Make = Callable[..., TransactionalProducer]


IN_EVERY_RUN = ("stratalog", "confluent-kafka")  # the other clients are for `make test-slow`


@pytest.fixture(params=[name if name in IN_EVERY_RUN else slow(name) for name in TRANSACTIONAL_CLIENTS])
def client_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def client(client_name: str, loop_thread: LoopThread) -> Client:
    return make_client(client_name, loop_thread)


@pytest.fixture
def make(client_name: str, loop_thread: LoopThread, broker: BrokerProcess, name: str) -> Iterator[Make]:
    """Return a function that creates producers with the same transactional id."""
    with contextlib.ExitStack() as made:

        def one(timeout_ms: int = 60_000) -> TransactionalProducer:
            producer = transactional(client_name, loop_thread, broker.address, name, timeout_ms)
            made.callback(_closed_if_it_can, producer)
            return producer

        yield one


def _closed_if_it_can(producer: TransactionalProducer) -> None:
    with contextlib.suppress(Exception):  # it may be fenced
        producer.close()


def committed_values(client: Client, address: str, places: list[Place], count: int) -> list[bytes]:
    """Return the values that a read_committed reader sees, sorted as numbers, including any beyond `count`."""
    options = ConsumerOptions(partitions=places, isolation="read_committed")
    with client.consumer(address, options) as consumer:
        received = poll_until([consumer], lambda received: len(received) >= count)
        received += consumer.poll(0.5)
        return sorted((one.value or b"" for one in received), key=lambda value: (len(value), value))


def committed_offset(client: Client, address: str, group: str, place: Place) -> int | None:
    with client.consumer(address, ConsumerOptions(group=group, partitions=[place])) as consumer:
        return consumer.committed(place)


def test_committed_records_are_visible_in_all_partitions_and_aborted_ones_in_none(
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


def test_offsets_are_committed_with_the_transaction_or_not_at_all(
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


def test_a_second_producer_of_an_id_fences_the_first_and_aborts_its_transaction(
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


@pytest.mark.parametrize("kills", quick_and_full(1, 8))
def test_read_process_write_has_each_input_once_despite_kills(client_name: str, kills: int, tmp_path: Path) -> None:
    copy_under_kills(tmp_path, client_name, kills=kills, seed=3)

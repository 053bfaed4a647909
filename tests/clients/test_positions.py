"""Positions of a consumer: seeking by offset, by timestamp and to both ends; pausing; isolation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stratalog.records.builder import build_batch, build_control_batch
from stratalog.records.format import ControlType
from stratalog.storage import LogDirectory, Origin
from tests.broker.process import BrokerProcess
from tests.clients.admin import create_topic, delete_records
from tests.clients.groups import fill
from tests.clients.interface import Client, ConsumerOptions, Message, Place
from tests.clients.waiting import poll_until, read

NewTopic = Callable[..., list[Place]]
START = 1_700_000_000_000


def test_seek_by_offset_and_by_time(client: Client, broker: BrokerProcess, new_topic: NewTopic) -> None:
    (place,) = new_topic()
    with client.producer(broker.address, codec="lz4") as producer:
        for start in (0, 10, 20):  # three batches: lookups fall inside, between and after them
            producer.send(
                place.topic, [Message(b"%d" % n, timestamp=START + n * 100) for n in range(start, start + 10)]
            )
    with client.consumer(broker.address, ConsumerOptions(partitions=[place])) as consumer:
        read(consumer, 30)
        assert consumer.position(place) == 30
        times = {START - 1: 0, START: 0, START + 1: 1, START + 950: 10, START + 1200: 12, START + 2900: 29}
        for time, offset in times.items():
            assert consumer.offset_for_time(place, time) == offset
        assert consumer.offset_for_time(place, START + 2901) in (None, 30)  # librdkafka returns the end
        consumer.seek(place, 17)
        assert [one.offset for one in read(consumer, 13)] == list(range(17, 30))
        consumer.seek(place, 0)
        assert [one.offset for one in read(consumer, 30)] == list(range(30))


def test_both_ends_follow_what_is_produced_and_deleted(
    client: Client, broker: BrokerProcess, new_topic: NewTopic
) -> None:
    (place,) = new_topic()
    with client.consumer(broker.address, ConsumerOptions(partitions=[place])) as consumer:
        assert consumer.beginning_and_end(place) == (0, 0)
        fill(client, broker.address, [place], each=20)
        assert consumer.beginning_and_end(place) == (0, 20)
        delete_records(broker.address, place, before=7)
        assert consumer.beginning_and_end(place) == (7, 20)
    with client.consumer(broker.address, ConsumerOptions(partitions=[place])) as consumer:
        assert [one.offset for one in read(consumer, 13)] == list(range(7, 20))


def test_a_position_that_was_deleted_is_reset(client: Client, broker: BrokerProcess, new_topic: NewTopic) -> None:
    (place,) = new_topic()
    fill(client, broker.address, [place], each=20)
    with client.consumer(broker.address, ConsumerOptions(partitions=[place])) as consumer:
        read(consumer, 20)
        delete_records(broker.address, place, before=10)
        consumer.seek(place, 3)
        assert [one.offset for one in read(consumer, 10)] == list(range(10, 20))


def test_a_paused_partition_returns_nothing_until_it_is_resumed(
    client: Client, broker: BrokerProcess, new_topic: NewTopic
) -> None:
    places = new_topic(2)
    fill(client, broker.address, places, each=5)
    with client.consumer(broker.address, ConsumerOptions(partitions=places)) as consumer:
        read(consumer, 10)
        consumer.pause(places[0])
        fill(client, broker.address, places, each=5)
        received = read(consumer, 5) + consumer.poll(0.3)
        assert {(one.place, one.offset) for one in received} == {(places[1], offset) for offset in range(5, 10)}
        consumer.resume(places[0])
        received = read(consumer, 5)
        assert [(one.place, one.offset) for one in received] == [(places[0], offset) for offset in range(5, 10)]


def test_a_consumer_that_waits_at_the_end_gets_new_records(
    client: Client, broker: BrokerProcess, new_topic: NewTopic
) -> None:
    """Test long polls: the records are sent while the consumer waits for them."""
    (place,) = new_topic()
    with (
        client.consumer(broker.address, ConsumerOptions(partitions=[place])) as consumer,
        client.producer(broker.address) as producer,
    ):
        for number in range(20):
            producer.send(place.topic, [Message(b"%d" % number)])
            assert [one.value for one in read(consumer, 1)] == [b"%d" % number]


def append_transactions(data_dir: Path, topic: str) -> None:
    """Write offsets 0-1 committed with a marker at 2, 3-4 aborted with a marker at 5, 6-7 without a transaction, and
    8-9 in an open transaction."""
    with LogDirectory.open(data_dir, background=False) as directory:
        log = directory.log(topic, 0)

        def batch(sequence: int, **fields: Any) -> None:
            log.append(build_batch([(b"k", b"v")] * 2, base_sequence=sequence, producer_epoch=0, **fields))

        def marker(kind: ControlType) -> None:
            control = build_control_batch(kind, coordinator_epoch=0, timestamp=START, producer_id=1, producer_epoch=0)
            log.append(control, origin=Origin.COORDINATOR)

        batch(0, producer_id=1, is_transactional=True)
        marker(ControlType.COMMIT)
        batch(2, producer_id=1, is_transactional=True)
        marker(ControlType.ABORT)
        batch(0, producer_id=2)
        batch(0, producer_id=3, is_transactional=True)


@pytest.fixture(scope="module")
def broker_with_transactions(tmp_path_factory: pytest.TempPathFactory) -> Any:
    data_dir = tmp_path_factory.mktemp("transactions") / "data"
    with BrokerProcess(data_dir) as broker:
        create_topic(broker.address, "t")
        broker.stop()
        append_transactions(data_dir, "t")
        yield broker.start()


def test_read_committed_sees_neither_aborted_nor_open_transactions(
    client: Client, broker_with_transactions: BrokerProcess
) -> None:
    address, place = broker_with_transactions.address, Place("t", 0)
    with client.consumer(address, ConsumerOptions(partitions=[place], isolation="read_committed")) as consumer:
        received = read(consumer, 4) + consumer.poll(0.3)
        assert [one.offset for one in received] == [0, 1, 6, 7]
    with client.consumer(address, ConsumerOptions(partitions=[place])) as consumer:
        received = poll_until([consumer], lambda received: len(received) == 8)
        assert [one.offset for one in received] == [0, 1, 3, 4, 6, 7, 8, 9]


def test_the_end_for_read_committed_is_the_start_of_the_open_transaction(
    client: Client, broker_with_transactions: BrokerProcess
) -> None:
    address, place = broker_with_transactions.address, Place("t", 0)
    with client.consumer(address, ConsumerOptions(partitions=[place], isolation="read_committed")) as consumer:
        assert consumer.beginning_and_end(place) == (0, 8)
    with client.consumer(address, ConsumerOptions(partitions=[place])) as consumer:
        assert consumer.beginning_and_end(place) == (0, 10)

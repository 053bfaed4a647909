"""Brokers that are killed, hang and return; processes that fork and exit: no record is lost, duplicated or pending."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from stratalog.client.errors import (
    BufferExhaustedError,
    ClientClosedError,
    DeliveryTimeoutError,
    ForkedClientError,
    RequestTimeoutError,
)
from stratalog.client.producer import Delivery, Producer
from tests.broker.process import BrokerProcess
from tests.campaigns import slow
from tests.client.read_back import read_partition
from tests.clients.admin import create_topic, delete_topic
from tests.clients.waiting import wait_until

SECONDS = 120.0
PARTITIONS = 3
QUICK: dict[str, Any] = {
    "reconnect_backoff_ms": 10,
    "reconnect_backoff_max_ms": 50,
    "retry_backoff_ms": 10,
    "retry_backoff_max_ms": 50,
}


class Load:
    """Threads that send numbered values, each to its own partition."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self.deliveries: dict[int, list[Delivery]] = {number: [] for number in range(PARTITIONS)}
        self._producer = producer
        self._topic = topic
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(PARTITIONS)]
        for thread in self._threads:
            thread.start()

    def _run(self, partition: int) -> None:
        sent = self.deliveries[partition]
        while not self._stopping.is_set():
            sent.append(self._producer.send(self._topic, b"%d" % len(sent), partition=partition))
            if len(sent) % 10 == 0:
                time.sleep(0.002)  # the end of the test checks every record

    def wait_for_more(self) -> None:
        """Wait until a record that is sent from now on is acknowledged."""
        marks = {partition: len(sent) for partition, sent in self.deliveries.items()}
        wait_until(
            lambda: any(
                sent[marks[partition] :] and sent[marks[partition]].done()
                for partition, sent in self.deliveries.items()
            ),
            "an acknowledgement",
        )

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()


@pytest.mark.timeout(280)
@pytest.mark.parametrize(("codec", "kills"), [slow("none", 20), ("lz4", 3)])
def test_kills_lose_and_duplicate_no_record_and_keep_the_order(
    own_broker: BrokerProcess, codec: str, kills: int
) -> None:
    chance = random.Random(codec)
    create_topic(own_broker.address, "load", PARTITIONS)
    # Small batches, so that many are in flight when the broker is killed.
    with Producer(
        own_broker.address, linger_ms=1, batch_size=2000, compression_type=codec, client_id=codec, **QUICK
    ) as producer:
        load = Load(producer, "load")
        try:
            for _ in range(kills):
                load.wait_for_more()
                time.sleep(chance.uniform(0, 0.1))  # waits for nothing: the kill comes at a random moment of the load
                own_broker.kill()
                own_broker.start()
        finally:
            load.stop()
        producer.flush(SECONDS)
        for partition, sent in load.deliveries.items():
            assert [delivery.result(0).offset for delivery in sent] == list(range(len(sent)))
            stored = read_partition(own_broker.address, "load", partition)
            assert [record.value for record in stored] == [b"%d" % number for number in range(len(sent))]
    assert own_broker.errors() == []


def test_with_a_hung_broker_the_buffer_stays_limited_and_every_record_fails(own_broker: BrokerProcess) -> None:
    with Producer(
        own_broker.address,
        buffer_memory=500_000,
        batch_size=10_000,
        max_block_ms=2000,
        request_timeout_ms=3000,
        delivery_timeout_ms=6000,
        linger_ms=0,
        **QUICK,
    ) as producer:
        producer.send("topic", b"first").result(SECONDS)
        own_broker.pause()
        try:
            deliveries: list[Delivery] = []
            with pytest.raises(BufferExhaustedError, match="don't respond"):
                while True:
                    deliveries.append(producer.send("topic", bytes(1000)))
                    assert producer._accumulator.used <= 500_000
            assert len(deliveries) > 300
            for delivery in deliveries:
                problem = delivery.exception(SECONDS)
                assert isinstance(problem, DeliveryTimeoutError)
                assert "delivery.timeout.ms = 6000" in str(problem)
            wait_until(lambda: producer._accumulator.used == 0, "the release of all memory")
        finally:
            own_broker.resume()
        assert producer.send("topic", b"after").result(SECONDS).offset >= 1


def test_with_a_hung_broker_and_acks_0_the_buffer_stays_limited(own_broker: BrokerProcess) -> None:
    with Producer(own_broker.address, acks=0, buffer_memory=500_000, max_block_ms=2000, linger_ms=0) as producer:
        producer.send("topic", b"first").result(SECONDS)
        own_broker.pause()
        sent = 0
        try:
            with pytest.raises(BufferExhaustedError):
                while True:
                    producer.send("topic", bytes(10_000))
                    assert producer._accumulator.used <= 500_000
                    sent += 1
        finally:
            own_broker.resume()
        producer.flush(SECONDS)
    wait_until(lambda: len(read_partition(own_broker.address, "topic")) == sent + 1, "the arrival of all records")


def test_order_is_kept_after_records_have_expired(own_broker: BrokerProcess) -> None:
    """Expired records may be stored or not. Acknowledged records are stored once, in order."""
    with Producer(
        own_broker.address, batch_size=1000, request_timeout_ms=1500, delivery_timeout_ms=3000, linger_ms=0, **QUICK
    ) as producer:
        sent: list[tuple[bytes, Delivery]] = []
        for turn in range(4):
            for number in range(100):
                value = b"%d:%d" % (turn, number)
                sent.append((value, producer.send("topic", value, partition=0)))
            if turn % 2 == 0:
                sent[-1][1].exception(SECONDS)
                own_broker.pause()
            else:
                for _, delivery in sent:
                    delivery.exception(SECONDS)
                own_broker.resume()
        acknowledged = [value for value, delivery in sent if delivery.exception(SECONDS) is None]
        last = producer.send("topic", b"last", partition=0)
        assert last.result(SECONDS).offset >= len(acknowledged)
    stored = [record.value for record in read_partition(own_broker.address, "topic")]
    assert len(stored) == len(set(stored))
    kept = set(acknowledged)
    assert [value for value in stored if value in kept] == acknowledged
    assert stored[-1] == b"last"


def test_records_for_a_stopped_broker_fail_after_delivery_timeout_ms(own_broker: BrokerProcess) -> None:
    with Producer(own_broker.address, request_timeout_ms=1500, delivery_timeout_ms=3000, **QUICK) as producer:
        producer.send("topic", b"first").result(SECONDS)
        own_broker.kill()
        with pytest.raises(
            DeliveryTimeoutError, match=r"topic-0: 1 records were not acknowledged .*(refused|was lost)"
        ):
            producer.send("topic", b"second").result(SECONDS)
        own_broker.start()
        assert producer.send("topic", b"third").result(SECONDS).offset == 1


def test_close_with_a_short_timeout_fails_the_remaining_records(own_broker: BrokerProcess) -> None:
    producer = Producer(own_broker.address, **QUICK)
    producer.send("topic", b"first").result(SECONDS)
    own_broker.kill()
    called: list[Delivery] = []
    deliveries = [producer.send("topic", b"%d" % number, on_delivery=called.append) for number in range(100)]
    with pytest.raises(RequestTimeoutError, match="100 records are not acknowledged after 0"):
        producer.flush(0.1)
    producer.close(timeout=0.1)
    assert all(isinstance(delivery.exception(0), ClientClosedError) for delivery in deliveries)
    assert called == deliveries
    own_broker.start()


def test_close_ends_a_send_that_waits_for_room(own_broker: BrokerProcess) -> None:
    producer = Producer(own_broker.address, buffer_memory=20_000, max_block_ms=100_000, **QUICK)
    producer.send("topic", b"first").result(SECONDS)
    own_broker.kill()
    problems: list[BaseException] = []

    def fill() -> None:
        try:
            while True:
                producer.send("topic", bytes(1000))
        except ClientClosedError as error:
            problems.append(error)

    thread = threading.Thread(target=fill)
    thread.start()
    wait_until(lambda: producer._accumulator.waiting == 1, "a wait for room")
    producer.close(timeout=0)
    thread.join(SECONDS)
    assert len(problems) == 1
    own_broker.start()


def test_a_recreated_topic_gets_records(own_broker: BrokerProcess) -> None:
    create_topic(own_broker.address, "again", 2)
    with Producer(own_broker.address, **QUICK) as producer:
        for number in range(10):
            producer.send("again", b"%d" % number, partition=0).result(SECONDS)
        delete_topic(own_broker.address, "again")
        create_topic(own_broker.address, "again", 2)
        offsets = [producer.send("again", b"%d" % number, partition=0).result(SECONDS).offset for number in range(10)]
    assert offsets == list(range(10))


def test_a_forked_childs_calls_are_refused(own_broker: BrokerProcess) -> None:
    with Producer(own_broker.address, linger_ms=100_000, delivery_timeout_ms=200_000) as producer:
        delivery = producer.send("topic", b"parent")
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            outcomes = []
            for call in (lambda: producer.send("topic", b"child"), lambda: delivery.result(5), producer.flush):
                try:
                    call()
                except ForkedClientError:
                    outcomes.append("forked")
                except BaseException as error:
                    outcomes.append(repr(error))
            producer.close()
            with Producer(own_broker.address) as own:
                outcomes.append(str(own.send("topic", b"child").result(30).offset >= 0))
            os.write(write, ",".join(outcomes).encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            assert pipe.read() == "forked,forked,forked,True"
        os.waitpid(child, 0)
        producer.flush(SECONDS)
        assert delivery.result(0).offset >= 0


@pytest.mark.parametrize("is_alive", [True, False])
def test_an_exiting_interpreter_delivers_all_records(own_broker: BrokerProcess, is_alive: bool) -> None:
    program = textwrap.dedent(
        """
        import os, signal, sys
        from stratalog.client.producer import Producer
        producer = Producer(sys.argv[1], linger_ms=60_000, delivery_timeout_ms=120_000)
        producer.send("topic", b"first")
        producer.flush()
        if len(sys.argv) > 2:
            os.kill(int(sys.argv[2]), signal.SIGSTOP)
        done = lambda delivery: print(delivery.exception(0), flush=True)
        producer.send("topic", b"second", on_delivery=done)
        """
    )
    command = [sys.executable, "-W", "always", "-c", program, own_broker.address]
    if not is_alive:
        command.append(str(own_broker.pid))
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    finally:
        own_broker.resume()
    warning = "the producer was closed before all records were acknowledged; records: 1\n"
    assert ended.stderr == ("" if is_alive else warning)
    if is_alive:
        assert ended.stdout == "None\n"  # records that were not flushed are sent if that is quick
    else:
        assert "closed before the record was acknowledged" in ended.stdout


def test_an_interrupted_wait_leaves_the_producer_usable(own_broker: BrokerProcess, tmp_path: Path) -> None:
    with Producer(own_broker.address, buffer_memory=20_000, max_block_ms=60_000, **QUICK) as producer:
        producer.send("topic", b"first").result(SECONDS)
        own_broker.pause()
        timer = threading.Timer(0.5, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
        try:
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                while True:
                    producer.send("topic", bytes(1000))
        finally:
            timer.join()
            own_broker.resume()
        assert producer._accumulator.waiting == 0
        assert producer.send("topic", b"next").result(SECONDS).offset > 0

"""Brokers killed between a transaction's calls, processes that fork and exit: no call hangs, commits stay atomic."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from stratalog.client import Admin, Producer, TopicPartition
from stratalog.client.errors import (
    ClientError,
    ForkedClientError,
    TransactionAbortableError,
    TransactionAbortedError,
    TransactionStateError,
    TransactionTimeoutError,
)
from stratalog.client.offsets import GroupMetadata
from tests.broker.process import BrokerProcess
from tests.client.conftest import SETTINGS
from tests.client.read_committed import expect_committed
from tests.clients.admin import create_topic
from tests.clients.waiting import wait_until

SHORT = 0.5  # timeout in seconds of calls that can't complete
GROUP = GroupMetadata("group", -1, "")
PLACE = TopicPartition("topic", 0)
QUICK: dict[str, Any] = {
    "reconnect_backoff_ms": 10,
    "reconnect_backoff_max_ms": 50,
    "retry_backoff_ms": 10,
    "retry_backoff_max_ms": 50,
}


def producer_of(broker: BrokerProcess, **settings: Any) -> Producer:
    return Producer(broker.address, **({"transactional_id": "id"} | QUICK | settings))


def state_of(broker: BrokerProcess, name: str = "id") -> str:
    with Admin(broker.address) as admin:
        return admin.describe_transactions([name])[name].state


def test_a_broker_killed_between_any_two_calls_is_waited_for(own_broker: BrokerProcess) -> None:
    create_topic(own_broker.address, "topic", 2)

    def send(value: bytes, partition: int) -> Callable[[], object]:
        return lambda: producer.send("topic", value, partition=partition).result(60)

    def send_offsets() -> None:
        producer.send_offsets_to_transaction({PLACE: 1}, GROUP)

    def kill() -> None:
        own_broker.kill()
        own_broker.start()

    with producer_of(own_broker) as producer:
        steps: list[Callable[[], object]] = [
            *(producer.init_transactions, producer.begin, kill, send(b"committed", 0), kill, send(b"committed", 1)),
            *(kill, send_offsets, kill, producer.commit, producer.begin, send(b"aborted", 0), send_offsets),
            *(kill, producer.abort, kill, producer.begin, send(b"last", 1), producer.commit),
        ]
        for step in steps:
            step()
    expect_committed(own_broker.address, "topic", [b"committed", b"committed", b"last"], partitions=2)


def test_a_broker_killed_during_calls_is_waited_for(own_broker: BrokerProcess) -> None:
    create_topic(own_broker.address, "topic", 1)
    committed: list[bytes] = []
    stopping = threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            with producer_of(own_broker) as producer:
                while not stopping.is_set():
                    value = b"%d" % len(committed)
                    with producer.transaction():
                        producer.send("topic", value)
                        producer.send_offsets_to_transaction({PLACE: len(committed)}, GROUP)
                    committed.append(value)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        for _ in range(2):
            before = len(committed)
            wait_until(lambda before=before: len(committed) > before + 5 or bool(failures), "transactions")  # type: ignore[misc]
            own_broker.kill()
            own_broker.start()
    finally:
        stopping.set()
        thread.join()
    assert failures == []
    expect_committed(own_broker.address, "topic", committed)


def test_no_call_waits_beyond_its_timeout_for_a_stopped_broker(own_broker: BrokerProcess) -> None:
    create_topic(own_broker.address, "topic", 1)
    with producer_of(own_broker) as producer:
        producer.begin()
        producer.send("topic", b"1").result(60)
        own_broker.kill()
        pending = producer.send("topic", b"2")
        with pytest.raises(TransactionTimeoutError, match="not all records"):
            producer.commit(SHORT)
        with pytest.raises(TransactionTimeoutError, match="call it again"):
            producer.abort(SHORT)
        assert isinstance(pending.exception(0), TransactionAbortedError)
        with producer_of(own_broker) as other, pytest.raises(TransactionTimeoutError):
            other.init_transactions(SHORT)
        own_broker.start()
        producer.abort()
        producer.begin()
        producer.send("topic", b"3").result(60)
        own_broker.kill()
        with pytest.raises(TransactionAbortableError, match=r"gave up|can't be reached|connection") as doomed:
            producer.send_offsets_to_transaction({PLACE: 1}, GROUP, SHORT)
        assert doomed.value.__cause__ is not None
        producer.close(SHORT)  # no broker can abort the transaction
    own_broker.start()
    with producer_of(own_broker) as producer, producer.transaction():
        producer.send("topic", b"4")
    expect_committed(own_broker.address, "topic", [b"4"])


def test_expired_records_doom_the_transaction(own_broker: BrokerProcess) -> None:
    create_topic(own_broker.address, "topic", 2)
    with producer_of(own_broker, linger_ms=0, request_timeout_ms=500, delivery_timeout_ms=500) as producer:
        producer.begin()
        assert producer.partitions_for("topic")
        own_broker.kill()
        deliveries = [producer.send("topic", b"lost", partition=number) for number in range(2)]
        for delivery in deliveries:
            assert isinstance(delivery.exception(60), ClientError)
        with pytest.raises(TransactionAbortableError, match=r"not acknowledged within delivery\.timeout\.ms"):
            producer.commit()
        own_broker.start()
        producer.abort()
    with producer_of(own_broker) as producer, producer.transaction():
        producer.send("topic", b"1", partition=0)
    expect_committed(own_broker.address, "topic", [b"1"], partitions=2)


@pytest.fixture(scope="module")
def impatient_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Start a broker that checks often for transactions past their timeout."""
    settings = SETTINGS | {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "50"}
    with BrokerProcess(tmp_path_factory.mktemp("impatient") / "data", settings) as broker:
        yield broker


LATE: dict[str, Callable[[Producer, str], object]] = {
    "send": lambda producer, topic: producer.send(topic, b"late").result(60),
    "commit": lambda producer, topic: producer.commit(),
    "prepare": lambda producer, topic: producer.prepare_transaction(),
    "send_offsets": lambda producer, topic: producer.send_offsets_to_transaction({TopicPartition(topic, 0): 1}, GROUP),
}


@pytest.mark.parametrize("call", LATE)
def test_a_transaction_past_its_timeout_is_aborted_and_its_producer_continues(
    impatient_broker: BrokerProcess, call: str
) -> None:
    address = impatient_broker.address
    create_topic(address, call, 1)
    with producer_of(impatient_broker, transactional_id=call, transaction_timeout_ms=100) as producer:
        producer.begin()
        producer.send(call, b"1").result(60)
        wait_until(lambda: state_of(impatient_broker, call) == "CompleteAbort", "the abort")
        with pytest.raises((TransactionAbortableError, TransactionAbortedError), match="open for longer than"):
            LATE[call](producer, call)
        with pytest.raises(TransactionAbortableError, match=r"transaction\.timeout\.ms = 100\. Call abort\(\)"):
            producer.flush()
        producer.abort()
        producer.begin()
        producer.abort()
    with producer_of(impatient_broker, transactional_id=call) as producer, producer.transaction():
        producer.send(call, b"2")
    expect_committed(address, call, [b"2"])


def test_close_waits_for_the_commit_of_another_thread(broker: BrokerProcess, topic: str, name: str) -> None:
    producer = producer_of(broker, transactional_id=name)
    transactions = producer._transactions
    assert transactions is not None
    with ThreadPoolExecutor(2) as threads:
        try:
            producer.begin()
            producer.send(topic, b"1").result(60)
            broker.pause()
            producer.send(topic, b"2")
            committed = threads.submit(producer.commit)
            wait_until(lambda: transactions._is_busy, "the commit")
            closed = threads.submit(producer.close)
            wait_until(lambda: producer._is_closed, "the close")
        finally:
            broker.resume()
        committed.result(60)
        closed.result(60)
    expect_committed(broker.address, topic, [b"1", b"2"])


def test_an_interrupted_commit_of_a_with_statement_is_aborted(
    broker: BrokerProcess, topic: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with producer_of(broker, transactional_id=name) as producer:
        with monkeypatch.context() as patched:
            patched.setattr(producer, "commit", interrupted)
            with pytest.raises(KeyboardInterrupt), producer.transaction():
                producer.send(topic, b"1").result(60)
        with producer.transaction():
            producer.send(topic, b"2")
    expect_committed(broker.address, topic, [b"2"])


def test_a_forked_child_can_not_use_the_transaction(broker: BrokerProcess, topic: str, name: str) -> None:
    with producer_of(broker, transactional_id=name) as producer:
        producer.begin()
        producer.send(topic, b"before").result(60)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            outcomes = []
            calls: list[Callable[[], object]] = [
                producer.begin,
                producer.commit,
                producer.abort,
                producer.prepare_transaction,
                lambda: producer.send(topic, b"child"),
                lambda: producer.send_offsets_to_transaction({TopicPartition(topic, 0): 1}, GROUP),
            ]
            for call in calls:
                try:
                    call()
                except ForkedClientError:
                    outcomes.append("forked")
                except BaseException as error:
                    outcomes.append(repr(error))
            producer.close()
            os.write(write, ",".join(outcomes).encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            assert pipe.read() == ",".join(["forked"] * 6)
        os.waitpid(child, 0)
        producer.send(topic, b"after")
        producer.commit()
    expect_committed(broker.address, topic, [b"before", b"after"])


PROGRAM = """
    import os, signal, sys
    from stratalog.client import Producer
    name = sys.argv[2]
    producer = Producer(sys.argv[1], transactional_id=name, linger_ms=60_000, delivery_timeout_ms=120_000)
    producer.begin()
    producer.send(name, b"open")
    producer.flush()
    if len(sys.argv) > 3:
        os.kill(int(sys.argv[3]), signal.SIGSTOP)
    producer.send(name, b"pending", on_delivery=lambda one: print(type(one.exception(0)).__name__, flush=True))
"""


@pytest.mark.parametrize("is_alive", [True, False])
def test_an_exiting_interpreter_aborts_the_open_transaction(
    impatient_broker: BrokerProcess, name: str, is_alive: bool
) -> None:
    broker = impatient_broker
    create_topic(broker.address, name, 1)
    command = [sys.executable, "-W", "always", "-c", textwrap.dedent(PROGRAM), broker.address, name]
    if not is_alive:
        command.append(str(broker.pid))
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    finally:
        broker.resume()
    assert ended.stdout == "TransactionAbortedError\n"
    if is_alive:
        assert ended.stderr == ""
        assert state_of(broker, name) == "CompleteAbort"
    else:
        assert "could not be aborted, so it stays open until its timeout" in ended.stderr


def test_an_interrupted_commit_is_continued_by_the_next_call(impatient_broker: BrokerProcess, name: str) -> None:
    broker = impatient_broker
    create_topic(broker.address, name, 1)
    with producer_of(broker, transactional_id=name) as producer:
        producer.begin()
        producer.send(name, b"1").result(60)
        broker.pause()
        timer = threading.Timer(1.0, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
        try:
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                producer.commit()
        finally:
            timer.join()
            broker.resume()
        producer.commit()
        with producer.transaction():
            producer.send(name, b"2")
    expect_committed(broker.address, name, [b"1", b"2"])


def test_a_send_during_a_commit_belongs_to_it_or_is_refused(broker: BrokerProcess, topic: str, name: str) -> None:
    """The record never belongs to the next transaction, or to none."""
    accepted: list[bytes] = []
    stopping = threading.Event()

    def run(producer: Producer, number: int) -> None:
        count = 0
        while not stopping.wait(0.0002):
            value = b"%d-%d" % (number, count)
            count += 1
            try:
                producer.send(topic, value)
            except TransactionStateError:
                continue  # between two transactions
            accepted.append(value)

    with producer_of(broker, transactional_id=name, linger_ms=1) as producer:
        threads = [threading.Thread(target=run, args=(producer, number)) for number in range(2)]
        for thread in threads:
            thread.start()
        try:
            for number in range(10):
                producer.begin()
                producer.send(topic, b"mark-%d" % number).result(60)
                producer.commit()
        finally:
            stopping.set()
            for thread in threads:
                thread.join()
    expect_committed(broker.address, topic, accepted + [b"mark-%d" % number for number in range(10)])

"""Consumers whose brokers are killed, whose logs are truncated, or whose processes fork and exit."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time
from typing import Any

import pytest

from stratalog.client.consumer import Consumer, TopicPartition
from stratalog.client.errors import ForkedClientError, NoOffsetError
from stratalog.client.producer import Producer
from tests.broker.process import BrokerProcess
from tests.client.groups.members import MemberThread, wait_until
from tests.clients.admin import create_topic

SECONDS = 60.0
PARTITIONS = 4
KILLS = 5
QUICK: dict[str, Any] = {
    "reconnect_backoff_ms": 10,
    "reconnect_backoff_max_ms": 50,
    "retry_backoff_ms": 10,
    "retry_backoff_max_ms": 50,
    "auto_offset_reset": "earliest",
}


class Load:
    """Sends values continuously; `sent` has the acknowledged ones."""

    def __init__(self, broker: BrokerProcess, topic: str) -> None:
        self._producer = Producer(
            broker.address, reconnect_backoff_max_ms=50, retry_backoff_max_ms=50, delivery_timeout_ms=120_000
        )
        self._topic = topic
        self._stopping = threading.Event()
        self._deliveries: list[Any] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stopping.wait(0.002):
            self._deliveries.append(self._producer.send(self._topic, b"%d" % number, partition=number % PARTITIONS))
            number += 1

    def stop(self) -> set[tuple[int, int]]:
        self._stopping.set()
        self._thread.join()
        acknowledged = [delivery.result(SECONDS) for delivery in self._deliveries]
        self._producer.close()
        return {(record.partition, record.offset) for record in acknowledged}


def test_reading_with_assign_continues_at_the_position_after_each_kill(own_broker: BrokerProcess) -> None:
    create_topic(own_broker.address, "topic", PARTITIONS)
    load = Load(own_broker, "topic")
    got: list[tuple[int, int]] = []
    with Consumer(own_broker.address, **QUICK) as consumer:
        consumer.assign([("topic", partition) for partition in range(PARTITIONS)])
        for _ in range(KILLS):
            before = len(got)
            while len(got) < before + 200:
                got += [
                    (record.partition, record.offset) for records in consumer.poll(1).values() for record in records
                ]
            own_broker.kill()
            own_broker.start()
        sent = load.stop()
        deadline = time.monotonic() + SECONDS
        while len(got) < len(sent) and time.monotonic() < deadline:
            got += [(record.partition, record.offset) for records in consumer.poll(1).values() for record in records]
    assert sorted(got) == sorted(sent)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_reads_everything_while_its_broker_is_killed(protocol: str, own_broker: BrokerProcess) -> None:
    create_topic(own_broker.address, "topic", PARTITIONS)
    load = Load(own_broker, "topic")
    settings = QUICK | {"group_protocol": protocol, "auto_commit_interval_ms": 50}
    members = [MemberThread(own_broker.address, "group", ["topic"], **settings) for _ in range(2)]

    def got() -> set[tuple[int, int]]:
        for member in members:
            if member.failure is not None:
                raise member.failure
        return {position for member in members for position in member.got}

    try:
        for _ in range(KILLS):
            before = len(got())
            wait_until(lambda before=before: len(got()) > before + 100, lambda: "no more was read")  # type: ignore[misc]
            own_broker.kill()
            own_broker.start()
        sent = load.stop()
        wait_until(lambda: got() >= sent, lambda: f"{len(sent - got())} of {len(sent)} records were not read")
        assert got() == sent
    finally:
        for member in members:
            member.stop()


def test_commit_waits_for_a_broker_that_comes_back(own_broker: BrokerProcess) -> None:
    create_topic(own_broker.address, "topic")
    partition = TopicPartition("topic", 0)
    with Consumer(own_broker.address, group_id="group", **QUICK) as consumer:
        consumer.assign([partition])
        consumer.commit({partition: 1})
        own_broker.kill()
        start = threading.Timer(0.5, own_broker.start)
        start.start()
        consumer.commit({partition: 2})
        start.join()
        committed = consumer.committed([partition])[partition]
        assert committed is not None
        assert committed.offset == 2


def test_close_without_a_broker_returns_at_its_timeout(own_broker: BrokerProcess) -> None:
    create_topic(own_broker.address, "topic")
    with Producer(own_broker.address) as producer:
        producer.send("topic", b"value")
    consumer = Consumer(own_broker.address, group_id="group", **QUICK)
    consumer.subscribe(["topic"])
    while not consumer.poll(0.1):
        pass
    own_broker.kill()
    consumer.close(timeout=1.0)
    assert not any(thread.name.startswith("consumer") for thread in threading.enumerate())
    own_broker.start()


def test_a_consumer_in_a_forked_child_refuses_calls(own_broker: BrokerProcess) -> None:
    script = f"""
        import os, sys
        from stratalog.client.consumer import Consumer
        from stratalog.client.errors import ForkedClientError

        consumer = Consumer({own_broker.address!r}, group_id="group")
        consumer.subscribe(["topic"])
        consumer.poll(0.2)
        child = os.fork()
        if child == 0:
            try:
                consumer.poll(0)
            except {ForkedClientError.__name__}:
                consumer.close()
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        consumer.poll(0.1)
        print("exits without close")
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=SECONDS
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "exits without close\n", "")


def test_a_consumer_past_a_truncated_logs_end_continues_there_or_raises(own_broker: BrokerProcess) -> None:
    create_topic(own_broker.address, "topic")
    with Producer(own_broker.address) as producer:
        for number in range(10):
            producer.send("topic", b"%d" % number)
            producer.flush()
    own_broker.stop()
    [segment] = (own_broker.data_dir / "topic-0").glob("*.log")
    with segment.open("r+b") as file:
        file.truncate(segment.stat().st_size // 2)
    own_broker.start()
    with Producer(own_broker.address) as producer:
        producer.send("topic", b"after")
    partition = TopicPartition("topic", 0)
    with Consumer(own_broker.address, **QUICK) as consumer:
        end = consumer.end_offsets([partition])[partition]
        assert end < 10
        consumer.assign([partition])
        consumer.seek(partition, 10)
        first = next(iter(consumer))
        assert first.offset == 0  # by auto.offset.reset
    with Consumer(own_broker.address, **(QUICK | {"auto_offset_reset": "none"})) as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 10)
        with pytest.raises((NoOffsetError, ValueError), match="topic-0"):
            consumer.poll(SECONDS)


@pytest.mark.parametrize("reset", ["earliest", "none"])
def test_a_consumer_whose_last_records_were_lost_continues_where_the_logs_diverge_or_raises(
    reset: str, own_broker: BrokerProcess
) -> None:
    create_topic(own_broker.address, "topic")
    with Producer(own_broker.address) as producer:
        for number in range(10):
            producer.send("topic", b"%d" % number)
            producer.flush()
    partition = TopicPartition("topic", 0)
    with Consumer(own_broker.address, **(QUICK | {"auto_offset_reset": reset})) as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 0)
        count = 0
        while count < 10:
            count += len(consumer.poll(SECONDS)[partition])
        own_broker.stop()
        [segment] = (own_broker.data_dir / "topic-0").glob("*.log")
        with segment.open("r+b") as file:
            file.truncate(segment.stat().st_size // 2)
        own_broker.start()
        # Before the log grows again: in the same epoch, new records can't be distinguished from the lost ones.
        while reset != "none" and consumer.position(partition) == 10:
            assert consumer.poll(0.1) == {}
        with Producer(own_broker.address) as producer:
            after = producer.send("topic", b"after").result(SECONDS)
        assert after.offset < 9
        if reset == "none":
            for _ in range(2):
                with pytest.raises(NoOffsetError, match="truncated"):
                    consumer.poll(SECONDS)
            consumer.seek(partition, after.offset)
        first = next(iter(consumer))
        assert (first.offset, first.value) == (after.offset, b"after")

"""Compare the consumer with those of confluent-kafka, kafka-python and aiokafka: the same topics of the same broker, in
turn.

    python -m bench.client_consume [--records 1000000] [--only-confluent]

Each side reads a topic of several partitions from beginning to end, assigned manually, and reads every value. Time is
measured from before the consumer is created until its last record, so connecting is included. Ratios are those of wall
time, the median of five rounds. kafka-python and aiokafka are slow: they run once, on a tenth of the records, and are
measured from their first records on, because their time to connect would count tenfold.

The time of poll_arrow is also shown relative to client_raw_fetch.py, which only receives the same bytes. A client that
sends one request after the other can't be faster than that with this broker on this machine. If ten times
confluent-kafka is beyond that limit, the row of the limit shows it, as it does with 1 KiB values: two processors
received about 2.5 GB/s without processing them, five times what confluent-kafka reads. The difference between that and
poll_arrow is a checksum and a copy of each byte, on processors that the broker needs too.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console

from bench.broker_processes import broker
from bench.client_raw_fetch import fetch_all
from bench.measure import Comparison, Cost, compare, cost_of
from bench.report import Row, directory, report
from stratalog.client.consumer import Consumer

PARTITIONS = 4
SIZES = (100, 1024)
ITERATING, ARROW = 2.0, 10.0  # times as fast as confluent-kafka
# The fastest settings for confluent-kafka here. With its defaults it stops fetching for a second whenever 100,000
# messages are queued. With small messages that is most of the time, and makes it five times as slow.
CONFLUENT_CHUNK = 1000  # messages per call of consume
CONFLUENT_SETTINGS = {"queued.min.messages": 1_000_000, "fetch.queue.backoff.ms": 1}


@dataclass(frozen=True)
class Topic:
    address: str
    name: str
    records: int
    value_bytes: int

    @property
    def partitions(self) -> list[tuple[str, int]]:
        return [(self.name, partition) for partition in range(PARTITIONS)]


def iterate(topic: Topic) -> None:
    left, total = topic.records, 0
    with Consumer(topic.address, auto_offset_reset="earliest") as consumer:
        consumer.assign(topic.partitions)
        for record in consumer:
            total += len(record.value)
            left -= 1
            if not left:
                break
    check(topic, total)


def poll(topic: Topic) -> None:
    left, total = topic.records, 0
    with Consumer(topic.address, auto_offset_reset="earliest") as consumer:
        consumer.assign(topic.partitions)
        while left:
            for records in consumer.poll(10).values():
                for record in records:
                    total += len(record.value)
                left -= len(records)
    check(topic, total)


def poll_arrow(topic: Topic) -> None:
    left, total = topic.records, 0
    with Consumer(topic.address, auto_offset_reset="earliest") as consumer:
        consumer.assign(topic.partitions)
        while left:
            table = consumer.poll_arrow(10)
            total += sum(chunk.buffers()[2].size for chunk in table.column("value").chunks)
            left -= table.num_rows
    check(topic, total)


def confluent_consume(topic: Topic) -> None:
    left, total = topic.records, 0
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": topic.address, "group.id": "bench", "enable.auto.commit": False, **CONFLUENT_SETTINGS}
    )
    consumer.assign([confluent_kafka.TopicPartition(*partition, 0) for partition in topic.partitions])
    while left:
        for message in consumer.consume(min(left, CONFLUENT_CHUNK), 10):  # it waits until it has that many
            total += len(message.value() or b"")
            left -= 1
    consumer.close()
    check(topic, total)


class Pace:
    """Records and seconds since the first records arrived, which are not counted themselves."""

    def __init__(self, records: int) -> None:
        self.left = records
        self.value_bytes = 0
        self.records = 0
        self.seconds = 0.0
        self._started: float | None = None

    def take(self, records: int, value_bytes: int) -> None:
        now = time.perf_counter()
        self.left -= records
        self.value_bytes += value_bytes
        if self._started is None:
            self._started = now
        else:
            self.records += records
            self.seconds = now - self._started


def kafka_python_iterate(topic: Topic, pace: Pace) -> None:
    import kafka

    consumer = kafka.KafkaConsumer(bootstrap_servers=topic.address, auto_offset_reset="earliest", group_id=None)
    consumer.assign([kafka.TopicPartition(*partition) for partition in topic.partitions])
    for record in consumer:
        pace.take(1, len(record.value))
        if not pace.left:
            break
    consumer.close()


def aiokafka_getmany(topic: Topic, pace: Pace) -> None:
    import aiokafka

    async def run() -> None:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=topic.address, auto_offset_reset="earliest")
        await consumer.start()
        consumer.assign([aiokafka.TopicPartition(*partition) for partition in topic.partitions])
        while pace.left:
            for records in (await consumer.getmany(timeout_ms=10_000, max_records=pace.left)).values():
                pace.take(len(records), sum(len(record.value) for record in records))
        await consumer.stop()

    asyncio.run(run())


def receive_alone(topic: Topic) -> None:
    host, port = topic.address.split(":")
    fetch_all(host, int(port), topic.name, [topic.records // PARTITIONS] * PARTITIONS)


def check(topic: Topic, total: int) -> None:
    if total != topic.records * topic.value_bytes:
        raise AssertionError(
            f"{topic.name}: {total} bytes of values were read, not {topic.records * topic.value_bytes}"
        )


def fill(topic: Topic) -> None:
    made = AdminClient({"bootstrap.servers": topic.address})
    made.create_topics([NewTopic(topic.name, PARTITIONS, 1)])[topic.name].result()
    producer = confluent_kafka.Producer({"bootstrap.servers": topic.address, "linger.ms": 20, "batch.size": 131_072})
    value = bytes(range(256)) * (topic.value_bytes // 256 + 1)
    for number in range(topic.records):
        while True:
            try:
                producer.produce(topic.name, value[: topic.value_bytes], partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()


@contextmanager
def topics(parent: Path | None, records: int) -> Iterator[list[Topic]]:
    with directory(parent) as path, broker(path) as process:
        address = f"127.0.0.1:{process.port}"
        made = [
            Topic(address, f"values-{size}", records * 100 // max(size, 200) * 2 // PARTITIONS * PARTITIONS, size)
            for size in SIZES
        ]
        for topic in made:
            fill(topic)
        yield made


def row(topic: Topic, what: str, result: Comparison, target: float | None) -> Row:
    ours, peer = topic.records / result.ours.wall / 1e6, topic.records / result.peer.wall / 1e6
    return Row(
        f"{what}, {topic.value_bytes} B",
        f"{result.ratio:.2f}x: {ours:.2f} against {peer:.2f} M records/s, {ours * topic.value_bytes:.0f} MB/s",
        "" if target is None else f"{target:g}x",
        None if target is None else result.ratio >= target,
        f"{result.cpu_ratio:.2f}x",
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000, help="records of 100 bytes; fewer of 1 KiB")
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds; the result is their median")
    parser.add_argument("--only-confluent", action="store_true", help="leave out the slow clients")
    parser.add_argument("--directory", type=Path, help="directory for the broker's data")
    options = parser.parse_args()
    rows = []
    sides: list[tuple[str, Callable[[Topic], Any], float | None]] = [
        ("iterating", iterate, ITERATING),
        ("poll", poll, None),
        ("poll_arrow", poll_arrow, ARROW),
    ]
    with topics(options.directory, options.records) as made:
        for topic in made:
            for what, ours, target in sides:
                result = against(ours, confluent_consume, topic, options.rounds)
                rows.append(row(topic, f"{what} against confluent-kafka's consume", result, target))
            rows += limits(topic, options.rounds)
            if not options.only_confluent:
                rows += [slow(topic, name, peer) for name, peer in OTHERS.items()]
    return 0 if report("Consuming", rows, Console(width=150)) else 1


OTHERS: dict[str, Callable[[Topic, Pace], None]] = {"kafka-python": kafka_python_iterate, "aiokafka": aiokafka_getmany}


def against(ours: Callable[[Topic], Any], peer: Callable[[Topic], Any], topic: Topic, rounds: int) -> Comparison:
    def side(run: Callable[[Topic], Any]) -> Callable[[], Cost]:
        return lambda: cost_of(lambda: run(topic))

    return compare(side(ours), side(peer), rounds)


def limits(topic: Topic, rounds: int) -> list[Row]:
    """Compare poll_arrow with receiving alone, and receiving alone with confluent-kafka."""
    ours = against(poll_arrow, receive_alone, topic, rounds)
    limit = against(receive_alone, confluent_consume, topic, rounds)
    size = f"{topic.value_bytes} B"
    rate = topic.records * topic.value_bytes / limit.ours.wall / 1e6
    return [
        Row(f"poll_arrow against receiving alone, {size}", f"{ours.ratio:.2f}x", "", None, f"{ours.cpu_ratio:.2f}x"),
        Row(
            f"receiving alone against confluent-kafka's consume, {size}",
            f"{limit.ratio:.1f}x, {rate:.0f} MB/s of values: the limit",
            "",
            None,
            f"{limit.cpu_ratio:.1f}x",
        ),
    ]


def slow(topic: Topic, name: str, peer: Callable[[Topic, Pace], None]) -> Row:
    some = topic.records // 10
    pace = Pace(some)
    ours = topic.records / cost_of(lambda: iterate(topic)).wall
    cost_of(lambda: peer(topic, pace))
    if pace.value_bytes != some * topic.value_bytes:
        raise AssertionError(f"{name} read {pace.value_bytes} bytes of values in {some} records")
    theirs = pace.records / pace.seconds
    measured = f"{ours / theirs:.1f}x: {ours / 1e6:.2f} against {theirs / 1e6:.3f} M records/s, once"
    return Row(f"iterating against {name}, {topic.value_bytes} B", measured, "", None)


if __name__ == "__main__":
    sys.exit(main())

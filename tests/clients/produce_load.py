"""A load: an idempotent producer that sends numbered values without a pause in a thread, and records acknowledgements.

Values are `partition:number`, with numbers that rise by one in each partition, so that a reader notices missing,
duplicated and reordered values.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Self

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from tests.clients.waiting import wait_until

IN_FLIGHT = 2000
RECOVERING = "checking the ends of all logs"  # a broker logs this when it starts after a crash
SECONDS = 120.0


class ProduceLoad:
    def __init__(self, address: str, topic: str, partitions: int) -> None:
        self.topic = topic
        self.partitions = partitions
        self.acknowledged: dict[int, list[tuple[int, int]]] = defaultdict(list)  # partition -> (number, offset)
        self.sent: dict[int, int] = defaultdict(int)
        self.errors: list[KafkaError] = []
        self._count = 0
        self._stopping = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 1,
                "batch.num.messages": 50,  # many small requests, so that several are in flight at a kill
                "message.timeout.ms": int(SECONDS * 1000),
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 50,
                "retry.backoff.ms": 10,
                "retry.backoff.max.ms": 50,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def wait_for_more(self, count: int) -> None:
        """Wait until this many more records are acknowledged."""
        wanted = self._count + count
        wait_until(lambda: self._count >= wanted or bool(self.errors), f"the acknowledgement of {count} records")

    def finish(self) -> None:
        """Stop sending, and wait for the remaining responses."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._stopping.is_set():
            if len(self._producer) >= IN_FLIGHT:
                self._producer.poll(0.005)
                continue
            partition = number % self.partitions
            value = b"%d:%d" % (partition, self.sent[partition])
            self._producer.produce(self.topic, value, partition=partition, on_delivery=self._delivered)
            self.sent[partition] += 1
            number += 1
            self._producer.poll(0)
        self._producer.flush(SECONDS)
        self._producer.close()

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(error)
            return
        value, offset = message.value(), message.offset()
        assert value is not None
        assert offset is not None
        partition, _, number = value.partition(b":")
        self.acknowledged[int(partition)].append((int(number), offset))
        self._count += 1

    def check(self, address: str) -> None:
        """Check that each acknowledged record is stored once, at its acknowledged offset, in the order of sending."""
        assert self.errors == []
        stored = {partition: read_all(address, self.topic, partition) for partition in range(self.partitions)}
        for partition, numbers in stored.items():
            # All are acknowledged when the load has finished, so the log must hold exactly what was sent.
            assert numbers == list(range(self.sent[partition]))
            assert self.acknowledged[partition] == [(number, number) for number in numbers]


def read_all(address: str, topic: str, partition: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "check", "log_level": 0, "check.crcs": True})
    try:
        place = TopicPartition(topic, partition, 0)
        watermarks = consumer.get_watermark_offsets(place, SECONDS)
        assert watermarks is not None
        consumer.assign([place])
        numbers: list[int] = []
        while len(numbers) < watermarks[1]:
            message = consumer.poll(SECONDS)
            assert message is not None, f"{len(numbers)} of {watermarks[1]} records of {topic}-{partition}"
            for one in [message, *consumer.consume(10_000, 0)]:  # with a timeout it would wait for this many
                value = one.value()
                assert one.error() is None
                assert value is not None
                numbers.append(int(value.partition(b":")[2]))
        return numbers
    finally:
        consumer.close()

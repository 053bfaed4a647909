"""Traffic of Stratalog's own clients with default settings: a producer and a consumer that run while leaders move."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from types import TracebackType
from typing import Self

from stratalog.client import Consumer, Producer, TopicPartition
from stratalog.client._batch import Delivery
from stratalog.lab.cluster import LabCluster
from tests.cluster.traffic import Acknowledged, read_all

_SECONDS = 90.0


class OwnTraffic:
    """Sends numbered records to all partitions, and reads them, each in its own thread, while the `with` block runs."""

    def __init__(self, cluster: LabCluster, topic: str, partitions: int) -> None:
        self.cluster = cluster
        self.topic = topic
        self.partitions = partitions
        self.acknowledged: list[Acknowledged] = []
        self.consumed: dict[int, dict[int, bytes]] = defaultdict(dict)
        self.errors: list[str] = []
        self._is_producing = True
        self._stopping = threading.Event()
        self._progress = threading.Condition()
        self._threads = [
            threading.Thread(target=self._produce, name="own producer"),
            threading.Thread(target=self._consume, name="own consumer"),
        ]

    def _produce(self) -> None:
        try:
            with Producer(self.cluster.bootstrap_servers) as producer:
                number = 0
                while not self._stopping.is_set():
                    for partition in range(self.partitions):
                        producer.send(
                            self.topic, b"%d" % number, partition=partition, on_delivery=self._note_delivery(number)
                        )
                    number += 1
                    time.sleep(0.002)
        except Exception as error:
            self._note_error(f"producer: {error!r}")
        self._is_producing = False

    def _note_delivery(self, number: int) -> Callable[[Delivery], None]:
        def note(delivery: Delivery) -> None:
            error = delivery.exception()
            if error is not None:
                self._note_error(f"record {number}: {error!r}")
                return
            metadata = delivery.result()
            with self._progress:
                self.acknowledged.append(Acknowledged(metadata.partition, metadata.offset, b"%d" % number))
                self._progress.notify_all()

        return note

    def _consume(self) -> None:
        try:
            with Consumer(self.cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
                consumer.assign([TopicPartition(self.topic, partition) for partition in range(self.partitions)])
                deadline = None
                while self._is_producing or not self._has_consumed_all():
                    if not self._is_producing:
                        deadline = deadline or time.monotonic() + _SECONDS
                        if time.monotonic() > deadline:
                            self._note_error("consumer: not every acknowledged record has arrived")
                            return
                    for partition, records in consumer.poll(timeout=0.2).items():
                        self._note_records(partition.partition, [(each.offset, each.value) for each in records])
        except Exception as error:
            self._note_error(f"consumer: {error!r}")

    def _note_records(self, partition: int, records: list[tuple[int, bytes | None]]) -> None:
        with self._progress:
            for offset, value in records:
                consumed = self.consumed[partition]
                if offset != len(consumed):
                    self.errors.append(f"consumer: partition {partition} has offset {offset} after {len(consumed) - 1}")
                consumed[offset] = value or b""
            self._progress.notify_all()

    def _note_error(self, message: str) -> None:
        with self._progress:
            self.errors.append(message)
            self._progress.notify_all()

    def _has_consumed_all(self) -> bool:
        return all(each.offset in self.consumed[each.partition] for each in self.acknowledged)

    def wait_for_more(self, count: int = 200) -> None:
        """Wait until, from now on, every partition has acknowledged `count` records and the consumer has read them."""
        with self._progress:
            before = len(self.acknowledged)
            deadline = time.monotonic() + _SECONDS
            while not self._has_grown(before, count):
                assert not self.errors, self.errors
                assert self._progress.wait(deadline - time.monotonic()), "the traffic stands still"

    def _has_grown(self, before: int, count: int) -> bool:
        new: dict[int, int] = defaultdict(int)
        for each in self.acknowledged[before:]:
            new[each.partition] += each.offset in self.consumed[each.partition]
        return len(new) == self.partitions and min(new.values()) >= count

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def check(self) -> None:
        """Compare the history with what another client reads: nothing is lost, doubled, or out of order."""
        assert self.errors == []
        stored = read_all(self.cluster.bootstrap_servers, self.topic, self.partitions)
        for partition in range(self.partitions):
            numbers = [int(value) for value in stored[partition].values()]
            assert numbers == list(range(len(numbers))), f"partition {partition} is not what was sent"
            assert self.consumed[partition] == stored[partition]
        for each in self.acknowledged:
            assert stored[each.partition].get(each.offset) == each.value, f"{each} was acknowledged, and is not there"
        assert len(self.acknowledged) == sum(map(len, stored.values()))

"""The accumulator: batch sizes, memory, readiness, sequence numbers. Without a broker or a thread."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from stratalog.client._accumulator import Accumulator, SendPath
from stratalog.client._batch import Batch
from stratalog.client._queues import PartitionQueue, TopicQueues
from stratalog.client.batch_completion import split_batch
from stratalog.client.errors import BufferExhaustedError
from stratalog.records.batch import batches
from stratalog.records.reader import read_records
from tests.clients.waiting import wait_until

SETTINGS: dict[str, Any] = {
    "batch_size": 1000,
    "buffer_memory": 100_000,
    "max_request_size": 10_000,
    "linger": 0.0,
    "max_block": 0.05,
    "delivery_timeout": 120.0,
    "max_in_flight": 5,
    "is_idempotent": True,
}


class Sending(SendPath):
    """The part of a producer that runs in the caller's thread, with one topic."""

    def __init__(self, partitions: int = 1, **settings: Any) -> None:
        self.accumulator = Accumulator(**(SETTINGS | settings), find_topic=self._find)
        self.topic = TopicQueues("t")
        self.topic.update([0] * partitions)
        self.accumulator.topics["t"] = self.topic
        self._use(self.accumulator)

    def _find(self, name: str, partition: int, seconds: float) -> TopicQueues:
        raise LookupError(f"{name}-{partition}")

    @property
    def queue(self) -> PartitionQueue:
        return self.topic.partitions[0]

    def ready(self, later: float = 0.0) -> list[PartitionQueue]:
        return self.accumulator.ready(time.monotonic() + later)[0]

    def take(self) -> Batch:
        head = self.queue.head()
        self.accumulator.give_back(head.pack(0, None))
        batch = self.queue.take(7, 0)
        batch.seal(0)
        return batch

    def acknowledge(self, batch: Batch) -> None:
        self.queue.acknowledged(batch)
        self.accumulator.release(batch)
        batch.acknowledge(0, -1)


def test_batches_are_filled_up_to_batch_size_and_not_beyond() -> None:
    sending = Sending()
    for number in range(100):
        sending.send("t", b"%030d" % number)
    sizes = []
    values: list[bytes | None] = []
    while not sending.queue.is_empty:
        batch = sending.take()
        [whole] = batches(batch.data)
        whole.check_crc()
        values += [record.value for record in read_records(batch.data)]
        sizes.append(batch.size)
        sending.acknowledge(batch)
    assert values == [b"%030d" % number for number in range(100)]
    assert max(sizes) <= 1000
    assert all(size > 1000 - 40 for size in sizes[:-1])
    assert sending.accumulator.used == 0
    assert sending.accumulator.incomplete == set()


def test_timestamps_may_decrease() -> None:
    sending = Sending()
    times = [5_000_000_000_000, 0, 2**40, 1]
    for when in times:
        sending.send("t", b"", timestamp=when)
    batch = sending.take()
    assert (batch.base_timestamp, batch.max_timestamp) == (times[0], times[0])
    assert [record.timestamp for record in read_records(batch.data)] == times


def test_used_and_spare_memory_stays_within_buffer_memory() -> None:
    sending = Sending(partitions=3, batch_size=100_000, buffer_memory=400_000, max_request_size=200_000)
    for turn in range(5):
        with pytest.raises(BufferExhaustedError):
            while True:
                sending.send("t", bytes(1000))
                assert sending.accumulator.used <= 400_000
        for queue in sending.topic.partitions:
            while not queue.is_empty:
                head = queue.head()
                sending.accumulator.give_back(head.pack(0, None))
                batch = queue.take(7, 0)
                queue.acknowledged(batch)
                sending.accumulator.release(batch)
                batch.acknowledge(turn, -1)
        assert sending.accumulator.used == 0
        kept = 0
        while sending.accumulator.spare() is not None:
            kept += 1
        assert 0 < kept <= 4


def test_a_refused_record_leaves_nothing_in_the_batch() -> None:
    sending = Sending()
    sending.send("t", b"first")
    with pytest.raises(LookupError, match="t-5"):
        sending.send("t", b"", partition=5)
    with pytest.raises(TypeError):
        sending.send("t", "text")
    assert sending.take().record_count == 1


def test_a_batch_lingers_until_it_is_full_or_old() -> None:
    sending = Sending(linger=10.0)
    sending.send("t", bytes(100))
    assert sending.ready() == []
    assert sending.ready(later=11.0) == [sending.queue]
    for _ in range(20):
        sending.send("t", bytes(100))
    assert sending.ready() == [sending.queue]


def test_waits_for_room_and_for_a_record_accept_infinite_timeouts() -> None:
    """max.block.ms may be 2^63 - 1, which exceeds the longest timeout of a lock."""
    sending = Sending(buffer_memory=2000, max_block=2.0**63 / 1000)
    delivery = sending.send("t", bytes(900))
    with ThreadPoolExecutor(2) as threads:
        waiting = threads.submit(sending.send, "t", bytes(900))
        waiting_for = threads.submit(delivery.result, float("inf"))
        wait_until(lambda: sending.accumulator.waiting > 0 or waiting.done(), "the wait for room")
        sending.acknowledge(sending.take())
        assert waiting_for.result(60).offset == 0
        assert not waiting.result(60).done()


def test_flush_makes_lingering_batches_ready() -> None:
    sending = Sending(linger=10.0)
    sending.send("t", b"")
    sending.accumulator.begin_flush()
    assert sending.ready() == [sending.queue]
    sending.accumulator.end_flush()
    assert sending.ready() == []


def test_a_retried_batch_is_sent_alone_and_before_later_batches() -> None:
    sending = Sending(batch_size=0)
    for number in range(4):
        sending.send("t", b"%d" % number)
    sending.acknowledge(sending.take())
    first, second = sending.take(), sending.take()
    sending.queue.put_back([second])
    assert sending.ready() == []  # the first batch is in flight
    sending.queue.put_back([first])
    assert sending.ready() == [sending.queue]
    assert sending.take() is first
    assert sending.ready() == []
    sending.acknowledge(first)
    assert sending.take() is second
    assert [first.base_sequence, second.base_sequence] == [1, 2]


def test_sequence_numbers_wrap_to_zero() -> None:
    sending = Sending(batch_size=0)
    queue = sending.queue
    sending.send("t", b"")
    batch = sending.take()
    batch.base_sequence = 2**31 - 2
    sending.acknowledge(batch)
    assert queue.last_acknowledged == 2**31 - 2
    last = Batch(queue, 9, 100)
    last.add(b"", None, [], 0)
    last.number_records(7, 0, 2**31 - 1)
    assert queue.is_next(last)
    last.add(b"", None, [], 0)
    queue.acknowledged(last)
    assert queue.last_acknowledged == 0


def test_parts_of_a_split_batch_keep_order_and_sequence_numbers() -> None:
    sending = Sending(batch_size=10_000)
    deliveries = [
        sending.send("t", bytes(number), b"%d" % number, [("h", b"%d" % number)], timestamp=number)
        for number in range(60)
    ]
    whole = sending.take()
    records = read_records(whole.data)
    parts = split_batch(whole)
    assert len(parts) > 1
    assert [part.base_sequence for part in parts] == [part.start for part in parts]
    for part in parts:
        part.pack(0, None)
        part.seal(0)
    split_records = [record for part in parts for record in read_records(part.data)]
    assert [(record.key, record.value, record.headers, record.timestamp) for record in split_records] == [
        (record.key, record.value, record.headers, record.timestamp) for record in records
    ]
    sending.accumulator.replace(whole, parts)
    whole.split_into(parts)
    offset = 100
    for part in parts:
        part.acknowledge(offset, -1)
        offset += part.record_count
    assert [delivery.result(0).offset for delivery in deliveries] == list(range(100, 160))


def test_keyless_records_avoid_partitions_without_a_leader() -> None:
    sending = Sending(partitions=4, batch_size=0, buffer_memory=10_000_000)
    sending.topic.update([-1, 3, -1, 3])
    used = set()
    for _ in range(200):
        sending.send("t", bytes(9000))
    for queue in sending.topic.partitions:
        if not queue.is_empty:
            used.add(queue.partition)
            while not queue.is_empty:
                queue.drop_head()
    assert used == {1, 3}

"""aiokafka, driven from plain functions: its event loop runs in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from tests.clients.interface import (
    HEARTBEAT_MS,
    REFRESH_MS,
    Client,
    Consumer,
    ConsumerOptions,
    Message,
    Place,
    Producer,
    Received,
)

T = TypeVar("T")

SECONDS = 60.0
ASSIGNOR_CLASSES = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
}


class LoopThread:
    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="aiokafka", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(SECONDS)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(SECONDS)
        self.loop.close()


class AioProducer(Producer):
    def __init__(self, thread: LoopThread, settings: dict[str, Any]) -> None:
        self._thread = thread
        self._producer = thread.run(self._started(settings))

    async def _started(self, settings: dict[str, Any]) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(**settings)
        try:
            await producer.start()
        except BaseException:
            await producer.stop()
            raise
        return producer

    def send(self, topic: str, messages: Sequence[Message]) -> list[int]:
        return self._thread.run(self._send(topic, messages))

    async def _send(self, topic: str, messages: Sequence[Message]) -> list[int]:
        futures = [
            await self._producer.send(
                topic,
                value=one.value,
                key=one.key,
                headers=list(one.headers),
                partition=one.partition,
                timestamp_ms=one.timestamp,
            )
            for one in messages
        ]
        metadata = await asyncio.gather(*futures)
        return [-1 if one is None else one.offset for one in metadata]  # None: acks=0

    def close(self) -> None:
        self._thread.run(self._producer.stop())


class AioConsumer(Consumer):
    def __init__(self, thread: LoopThread, settings: dict[str, Any], options: ConsumerOptions) -> None:
        self._thread = thread
        self._consumer = thread.run(self._started(settings, options))

    async def _started(self, settings: dict[str, Any], options: ConsumerOptions) -> AIOKafkaConsumer:
        consumer = AIOKafkaConsumer(**settings)
        if options.partitions:
            consumer.assign([TopicPartition(*place) for place in options.partitions])
        elif options.pattern:
            consumer.subscribe(pattern=options.pattern)
        else:
            consumer.subscribe(list(options.topics))
        try:
            await consumer.start()
        except BaseException:
            await consumer.stop()
            raise
        return consumer

    def _poll(self, seconds: float) -> list[Received]:
        polled = self._thread.run(self._consumer.getmany(timeout_ms=int(seconds * 1000)))
        return [_received(record) for records in polled.values() for record in records]

    def _assignment(self) -> frozenset[Place]:
        return frozenset(Place(*one) for one in self._consumer.assignment())

    def commit(self) -> None:
        self._thread.run(self._consumer.commit())

    def commit_async(self) -> list[BaseException | None]:
        answer: list[BaseException | None] = []
        future = asyncio.run_coroutine_threadsafe(self._consumer.commit(), self._thread.loop)
        future.add_done_callback(lambda done: answer.append(done.exception()))
        return answer

    def committed(self, place: Place) -> int | None:
        found: int | None = self._thread.run(self._consumer.committed(TopicPartition(*place)))
        return found

    def position(self, place: Place) -> int:
        found: int = self._thread.run(self._consumer.position(TopicPartition(*place)))
        return found

    def seek(self, place: Place, offset: int) -> None:
        async def seek() -> None:
            self._consumer.seek(TopicPartition(*place), offset)

        self._thread.run(seek())

    def offset_for_time(self, place: Place, timestamp: int) -> int | None:
        partition = TopicPartition(*place)
        found = self._thread.run(self._consumer.offsets_for_times({partition: timestamp}))[partition]
        return None if found is None else found.offset

    def beginning_and_end(self, place: Place) -> tuple[int, int]:
        partition = TopicPartition(*place)
        beginnings = self._thread.run(self._consumer.beginning_offsets([partition]))
        ends = self._thread.run(self._consumer.end_offsets([partition]))
        return beginnings[partition], ends[partition]

    def pause(self, place: Place) -> None:
        async def pause() -> None:
            self._consumer.pause(TopicPartition(*place))

        self._thread.run(pause())

    def resume(self, place: Place) -> None:
        async def resume() -> None:
            self._consumer.resume(TopicPartition(*place))

        self._thread.run(resume())

    def close(self) -> None:
        self._thread.run(self._consumer.stop())


class AioClient(Client):
    name = "aiokafka"
    lacks = frozenset({"cooperative-sticky assignor", "consumer protocol"})

    def __init__(self, thread: LoopThread) -> None:
        self._thread = thread

    def producer(
        self, address: str, *, codec: str = "none", acks: int = -1, idempotent: bool = False, give_up_ms: int = 60_000
    ) -> Producer:
        settings = {
            "bootstrap_servers": address,
            "compression_type": None if codec == "none" else codec,
            "acks": acks,
            "enable_idempotence": idempotent,
            "linger_ms": 5,
            "request_timeout_ms": give_up_ms,
        }
        return AioProducer(self._thread, settings)

    def consumer(self, address: str, options: ConsumerOptions) -> Consumer:
        settings = {
            "bootstrap_servers": address,
            "group_id": options.group,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": options.auto_commit,
            "isolation_level": options.isolation,
            "metadata_max_age_ms": REFRESH_MS,
            "partition_assignment_strategy": [ASSIGNOR_CLASSES[options.assignor]],
            "session_timeout_ms": options.session_ms,
            "heartbeat_interval_ms": HEARTBEAT_MS,
            "group_instance_id": options.instance_id,
            "fetch_max_wait_ms": 100,
        }
        return AioConsumer(self._thread, settings, options)


def _received(record: Any) -> Received:
    return Received(
        record.topic,
        record.partition,
        record.offset,
        record.timestamp,
        record.key,
        record.value,
        tuple((name, value) for name, value in record.headers),
    )

"""kafka-python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from tests.clients.interface import (
    HEARTBEAT_MS,
    RECONNECT_MS,
    REFRESH_MS,
    Client,
    Consumer,
    ConsumerOptions,
    Message,
    Place,
    Producer,
    Received,
)

SECONDS = 60.0
JOIN_MS = 60_000
ASSIGNOR_CLASSES = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}


class KafkaPythonProducer(Producer):
    def __init__(self, settings: dict[str, Any]) -> None:
        self._producer = KafkaProducer(**settings)

    def send(self, topic: str, messages: Sequence[Message]) -> list[int]:
        futures = [
            self._producer.send(
                topic,
                value=one.value,
                key=one.key,
                headers=list(one.headers),
                partition=one.partition,
                timestamp_ms=one.timestamp,
            )
            for one in messages
        ]
        return [future.get(timeout=SECONDS).offset for future in futures]

    def close(self) -> None:
        self._producer.close()


class KafkaPythonConsumer(Consumer):
    def __init__(self, settings: dict[str, Any], options: ConsumerOptions) -> None:
        self._consumer = KafkaConsumer(**settings)
        # A poll that ends during a join loses the join's result permanently (3.0.12), so this poll must not be short.
        join = self._consumer._coordinator.poll
        self._consumer._coordinator.poll = lambda timeout_ms: join(timeout_ms=JOIN_MS)
        if options.partitions:
            self._consumer.assign([TopicPartition(*place) for place in options.partitions])
        elif options.pattern:
            self._consumer.subscribe(pattern=options.pattern)
        else:
            self._consumer.subscribe(list(options.topics))

    def _poll(self, seconds: float) -> list[Received]:
        polled = self._consumer.poll(int(seconds * 1000), max_records=10_000)
        return [_received(record) for records in polled.values() for record in records]

    def _assignment(self) -> frozenset[Place]:
        return frozenset(Place(*one) for one in self._consumer.assignment())

    def commit(self) -> None:
        self._consumer.commit()

    def commit_async(self) -> list[BaseException | None]:
        answer: list[BaseException | None] = []

        def answered(_: object, result: object) -> None:
            answer.append(result if isinstance(result, BaseException) else None)

        self._consumer.commit_async(callback=answered)
        return answer

    def committed(self, place: Place) -> int | None:
        found: int | None = self._consumer.committed(TopicPartition(*place))
        return found

    def position(self, place: Place) -> int:
        found: int = self._consumer.position(TopicPartition(*place))
        return found

    def seek(self, place: Place, offset: int) -> None:
        self._consumer.seek(TopicPartition(*place), offset)

    def offset_for_time(self, place: Place, timestamp: int) -> int | None:
        found = self._consumer.offsets_for_times({TopicPartition(*place): timestamp})[TopicPartition(*place)]
        return None if found is None else found.offset

    def beginning_and_end(self, place: Place) -> tuple[int, int]:
        partition = TopicPartition(*place)
        beginnings, ends = self._consumer.beginning_offsets([partition]), self._consumer.end_offsets([partition])
        return beginnings[partition], ends[partition]

    def pause(self, place: Place) -> None:
        self._consumer.pause(TopicPartition(*place))

    def resume(self, place: Place) -> None:
        self._consumer.resume(TopicPartition(*place))

    def close(self) -> None:
        self._consumer.close()


class KafkaPythonClient(Client):
    name = "kafka-python"
    lacks = frozenset({"consumer protocol"})

    def producer(
        self, address: str, *, codec: str = "none", acks: int = -1, idempotent: bool = False, give_up_ms: int = 60_000
    ) -> Producer:
        settings = {
            "bootstrap_servers": address,
            "reconnect_backoff_max_ms": RECONNECT_MS,
            "compression_type": None if codec == "none" else codec,
            "acks": acks,
            "enable_idempotence": idempotent,
            "linger_ms": 5,
            "max_block_ms": give_up_ms,
            "delivery_timeout_ms": give_up_ms,
            "request_timeout_ms": min(give_up_ms // 2, 30_000),
        }
        return KafkaPythonProducer(settings)

    def consumer(self, address: str, options: ConsumerOptions) -> Consumer:
        settings = {
            "bootstrap_servers": address,
            "reconnect_backoff_max_ms": RECONNECT_MS,
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
        return KafkaPythonConsumer(settings, options)


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

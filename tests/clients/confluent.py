"""confluent-kafka, which uses librdkafka."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, TopicPartition

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
QUIET = {"log_level": 0, "reconnect.backoff.max.ms": RECONNECT_MS}
MANY = 10_000


class ConfluentProducer(Producer):
    def __init__(self, settings: dict[str, Any]) -> None:
        self._producer = confluent_kafka.Producer({**settings, **QUIET})

    def send(self, topic: str, messages: Sequence[Message]) -> list[int]:
        offsets: dict[int, int] = {}
        errors: list[KafkaError] = []

        def on_delivery(number: int) -> Callable[[KafkaError | None, confluent_kafka.Message], None]:
            def delivered(error: KafkaError | None, message: confluent_kafka.Message) -> None:
                if error is not None:
                    errors.append(error)
                offset = message.offset()
                offsets[number] = -1 if offset is None else offset

            return delivered

        for number, one in enumerate(messages):
            self._producer.produce(
                topic,
                one.value,
                one.key,
                one.partition,
                on_delivery=on_delivery(number),
                timestamp=one.timestamp,
                headers=list(one.headers),
            )
        unsent = self._producer.flush(SECONDS)
        if errors:
            raise KafkaException(errors[0])
        assert unsent == 0, f"{unsent} messages were not acknowledged within {SECONDS} s"
        return [offsets[number] for number in range(len(messages))]

    def close(self) -> None:
        self._producer.close()


class ConfluentConsumer(Consumer):
    def __init__(self, settings: dict[str, Any], options: ConsumerOptions) -> None:
        self._commits: list[list[BaseException | None]] = []
        self._consumer = confluent_kafka.Consumer({**settings, **QUIET, "on_commit": self._on_commit})
        if options.partitions:
            self._consumer.assign([TopicPartition(*place) for place in options.partitions])
        else:
            self._consumer.subscribe([options.pattern] if options.pattern else list(options.topics))

    def _poll(self, seconds: float) -> list[Received]:
        first = self._consumer.poll(seconds)
        if first is None:
            return []
        messages = [first, *self._consumer.consume(MANY, 0)]  # with a timeout it would wait for this many
        for message in messages:
            error = message.error()
            if error is not None:
                raise KafkaException(error)
        return [_received(message) for message in messages]

    def _assignment(self) -> frozenset[Place]:
        return frozenset(Place(one.topic, one.partition) for one in self._consumer.assignment())

    def commit(self) -> None:
        for one in self._consumer.commit(asynchronous=False) or ():
            if one.error is not None:
                raise KafkaException(one.error)

    def commit_async(self) -> list[BaseException | None]:
        answer: list[BaseException | None] = []
        self._commits.append(answer)
        self._consumer.commit(asynchronous=True)
        return answer

    def _on_commit(self, error: KafkaError | None, _: list[TopicPartition]) -> None:
        if self._commits:
            self._commits.pop(0).append(None if error is None else KafkaException(error))

    def committed(self, place: Place) -> int | None:
        (found,) = self._consumer.committed([TopicPartition(*place)], SECONDS)
        return None if found.offset < 0 else found.offset

    def position(self, place: Place) -> int:
        (found,) = self._consumer.position([TopicPartition(*place)])
        return found.offset

    def seek(self, place: Place, offset: int) -> None:
        self._consumer.seek(TopicPartition(*place, offset))

    def offset_for_time(self, place: Place, timestamp: int) -> int | None:
        (found,) = self._consumer.offsets_for_times([TopicPartition(*place, timestamp)], SECONDS)
        if found.error is not None:
            raise KafkaException(found.error)
        return None if found.offset < 0 else found.offset

    def beginning_and_end(self, place: Place) -> tuple[int, int]:
        found: tuple[int, int] | None = self._consumer.get_watermark_offsets(TopicPartition(*place), SECONDS)
        assert found is not None
        return found

    def pause(self, place: Place) -> None:
        self._consumer.pause([TopicPartition(*place)])

    def resume(self, place: Place) -> None:
        self._consumer.resume([TopicPartition(*place)])

    def close(self) -> None:
        self._consumer.close()


class ConfluentClient(Client):
    name = "confluent-kafka"
    lacks = frozenset({"sticky assignor"})  # librdkafka has only the cooperative one

    def producer(
        self, address: str, *, codec: str = "none", acks: int = -1, idempotent: bool = False, give_up_ms: int = 60_000
    ) -> Producer:
        settings = {
            "bootstrap.servers": address,
            "compression.type": codec,
            "acks": acks,
            "enable.idempotence": idempotent,
            "linger.ms": 5,
            "message.timeout.ms": give_up_ms,
            "topic.metadata.propagation.max.ms": give_up_ms // 3,  # until it reports that a topic does not exist
        }
        return ConfluentProducer(settings)

    def consumer(self, address: str, options: ConsumerOptions) -> Consumer:
        settings: dict[str, Any] = {
            "bootstrap.servers": address,
            "group.id": options.group or "none",  # librdkafka requires a group id even if it isn't used
            "group.protocol": options.protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": options.auto_commit,
            "isolation.level": options.isolation,
            "topic.metadata.refresh.interval.ms": REFRESH_MS,
            "fetch.wait.max.ms": 100,
        }
        if options.protocol == "classic":
            settings |= {
                "partition.assignment.strategy": options.assignor,
                "session.timeout.ms": options.session_ms,
                "heartbeat.interval.ms": HEARTBEAT_MS,
            }
        else:
            settings["group.remote.assignor"] = options.assignor
        if options.instance_id is not None:
            settings["group.instance.id"] = options.instance_id
        return ConfluentConsumer(settings, options)


def _received(message: confluent_kafka.Message) -> Received:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    headers: Any = message.headers() or ()
    return Received(topic, partition, offset, message.timestamp()[1], message.key(), message.value(), tuple(headers))

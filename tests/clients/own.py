"""Stratalog's own client, behind the interface of the scenarios."""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.client.consumer import Consumer as StratalogConsumer
from stratalog.client.producer import Producer as StratalogProducer
from tests.clients.interface import Client, Consumer, ConsumerOptions, Message, Place, Producer, Received

SECONDS = 60.0


class OwnProducer(Producer):
    def __init__(self, producer: StratalogProducer) -> None:
        self._producer = producer

    def send(self, topic: str, messages: Sequence[Message]) -> list[int]:
        deliveries = [
            self._producer.send(
                topic,
                one.value,
                key=one.key,
                partition=one.partition,
                headers=list(one.headers),
                timestamp=one.timestamp,
            )
            for one in messages
        ]
        return [delivery.result(SECONDS).offset for delivery in deliveries]

    def close(self) -> None:
        self._producer.close()


class OwnConsumer(Consumer):
    def __init__(self, consumer: StratalogConsumer, options: ConsumerOptions) -> None:
        self._consumer = consumer
        if options.partitions:
            consumer.assign(options.partitions)
        else:
            consumer.subscribe(list(options.topics))

    def _poll(self, seconds: float) -> list[Received]:
        return [
            Received(one.topic, one.partition, one.offset, one.timestamp, one.key, one.value, tuple(one.headers))
            for records in self._consumer.poll(seconds).values()
            for one in records
        ]

    def _assignment(self) -> frozenset[Place]:
        return frozenset(Place(*place) for place in self._consumer.assignment())

    def commit(self) -> None:
        self._consumer.commit()

    def commit_async(self) -> list[BaseException | None]:
        answer: list[BaseException | None] = []
        self._consumer.commit_async(callback=lambda _, error: answer.append(error))
        return answer

    def committed(self, place: Place) -> int | None:
        (found,) = self._consumer.committed([place]).values()
        return None if found is None else found.offset

    def position(self, place: Place) -> int:
        return self._consumer.position(place)

    def seek(self, place: Place, offset: int) -> None:
        self._consumer.seek(place, offset)

    def offset_for_time(self, place: Place, timestamp: int) -> int | None:
        (found,) = self._consumer.offsets_for_times({place: timestamp}).values()  # type: ignore[dict-item]
        return None if found is None else found.offset

    def beginning_and_end(self, place: Place) -> tuple[int, int]:
        (beginning,) = self._consumer.beginning_offsets([place]).values()
        (end,) = self._consumer.end_offsets([place]).values()
        return beginning, end

    def pause(self, place: Place) -> None:
        self._consumer.pause([place])

    def resume(self, place: Place) -> None:
        self._consumer.resume([place])

    def close(self) -> None:
        self._consumer.close()


class OwnClient(Client):
    name = "stratalog"

    def producer(
        self, address: str, *, codec: str = "none", acks: int = -1, idempotent: bool = False, give_up_ms: int = 60_000
    ) -> Producer:
        return OwnProducer(
            StratalogProducer(
                address,
                compression_type=codec,
                acks=acks,
                enable_idempotence=idempotent,
                delivery_timeout_ms=give_up_ms,
            )
        )

    def consumer(self, address: str, options: ConsumerOptions) -> Consumer:
        consumer = StratalogConsumer(
            address,
            group_id=options.group,
            auto_offset_reset="earliest",
            enable_auto_commit=options.auto_commit,
            isolation_level=options.isolation,
            fetch_max_wait_ms=100,
        )
        return OwnConsumer(consumer, options)

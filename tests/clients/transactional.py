"""Transactional producers of all clients behind one interface. The adapters only translate."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Self

import confluent_kafka
from aiokafka import AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition

from stratalog.client.metadata import TopicPartition as StratalogPartition
from stratalog.client.offsets import GroupMetadata
from stratalog.client.producer import Producer as StratalogProducer
from tests.clients.aio import LoopThread
from tests.clients.everyone import CLIENTS
from tests.clients.interface import RECONNECT_MS, Place
from tests.clients.own import OwnClient

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    from kafka.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

SECONDS = 30.0
TRANSACTIONAL_CLIENTS = (*CLIENTS, OwnClient.name)


class TransactionalProducer(ABC):
    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def send(self, place: Place, value: bytes) -> None:
        """Send a record, and return when it is acknowledged."""

    @abstractmethod
    def send_offsets(self, group: str, offsets: Mapping[Place, int]) -> None: ...

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def abort(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ConfluentTransactions(TransactionalProducer):
    def __init__(self, address: str, transactional_id: str, timeout_ms: int = 60_000) -> None:
        self._address = address
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": address,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "message.timeout.ms": min(timeout_ms, 30_000),
                "linger.ms": 0,
                "reconnect.backoff.max.ms": RECONNECT_MS,
                "metadata.recovery.strategy": "none",  # otherwise send_offsets hangs after an outage (#5511)
                "log_level": 0,
            }
        )
        self._groups: dict[str, Any] = {}
        self._producer.init_transactions(SECONDS)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, place: Place, value: bytes) -> None:
        failed: list[Any] = []
        self._producer.produce(
            place.topic, value, partition=place.partition, on_delivery=lambda error, _: failed.append(error)
        )
        self._producer.flush(SECONDS)
        if failed != [None]:
            raise confluent_kafka.KafkaException(*failed)

    def send_offsets(self, group: str, offsets: Mapping[Place, int]) -> None:
        if group not in self._groups:
            settings = {"bootstrap.servers": self._address, "group.id": group, "log_level": 0}
            consumer = confluent_kafka.Consumer(settings)
            self._groups[group] = consumer.consumer_group_metadata()
            consumer.close()
        partitions = [confluent_kafka.TopicPartition(*place, offset) for place, offset in offsets.items()]
        self._producer.send_offsets_to_transaction(partitions, self._groups[group], SECONDS)

    def commit(self) -> None:
        self._producer.commit_transaction(SECONDS)

    def abort(self) -> None:
        self._producer.abort_transaction(SECONDS)

    def close(self) -> None:
        del self._producer


class KafkaPythonTransactions(TransactionalProducer):
    def __init__(self, address: str, transactional_id: str, timeout_ms: int = 60_000) -> None:
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=address, transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
        )
        self._producer.init_transactions()

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, place: Place, value: bytes) -> None:
        self._producer.send(place.topic, value, partition=place.partition).get(SECONDS)

    def send_offsets(self, group: str, offsets: Mapping[Place, int]) -> None:
        committed = {TopicPartition(*place): OffsetAndMetadata(offset, "", -1) for place, offset in offsets.items()}
        self._producer.send_offsets_to_transaction(committed, ConsumerGroupMetadata(group, -1, ""))

    def commit(self) -> None:
        self._producer.commit_transaction()

    def abort(self) -> None:
        self._producer.abort_transaction()

    def close(self) -> None:
        self._producer.close(timeout=1)


class AioTransactions(TransactionalProducer):
    def __init__(self, thread: LoopThread, address: str, transactional_id: str, timeout_ms: int = 60_000) -> None:
        self._thread = thread

        async def started() -> AIOKafkaProducer:
            producer = AIOKafkaProducer(
                bootstrap_servers=address, transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
            )
            await producer.start()
            return producer

        self._producer = thread.run(started())

    def begin(self) -> None:
        self._thread.run(self._producer.begin_transaction())

    def send(self, place: Place, value: bytes) -> None:
        self._thread.run(self._producer.send_and_wait(place.topic, value, partition=place.partition))

    def send_offsets(self, group: str, offsets: Mapping[Place, int]) -> None:
        committed = {AioPartition(*place): offset for place, offset in offsets.items()}
        self._thread.run(self._producer.send_offsets_to_transaction(committed, group))

    def commit(self) -> None:
        self._thread.run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._thread.run(self._producer.abort_transaction())

    def close(self) -> None:
        self._thread.run(self._producer.stop())


class OwnTransactions(TransactionalProducer):
    def __init__(self, address: str, transactional_id: str, timeout_ms: int = 60_000) -> None:
        self._producer = StratalogProducer(
            address,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            max_block_ms=int(SECONDS * 1000),
            linger_ms=0,
        )
        self._producer.init_transactions()

    def begin(self) -> None:
        self._producer.begin()

    def send(self, place: Place, value: bytes) -> None:
        self._producer.send(place.topic, value, partition=place.partition).result(SECONDS)

    def send_offsets(self, group: str, offsets: Mapping[Place, int]) -> None:
        self._producer.send_offsets_to_transaction(
            {StratalogPartition(*place): offset for place, offset in offsets.items()}, GroupMetadata(group, -1, "")
        )

    def commit(self) -> None:
        self._producer.commit()

    def abort(self) -> None:
        self._producer.abort()

    def close(self) -> None:
        self._producer.close(1.0)


def transactional(
    client: str, thread: LoopThread, address: str, transactional_id: str, timeout_ms: int = 60_000
) -> TransactionalProducer:
    if client == OwnClient.name:
        return OwnTransactions(address, transactional_id, timeout_ms)
    if client == "confluent-kafka":
        return ConfluentTransactions(address, transactional_id, timeout_ms)
    if client == "kafka-python":
        return KafkaPythonTransactions(address, transactional_id, timeout_ms)
    return AioTransactions(thread, address, transactional_id, timeout_ms)

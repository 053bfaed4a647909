"""Reads a topic's records with confluent-kafka, so that the producer's tests don't rely on Stratalog's consumer."""

from __future__ import annotations

from typing import Any, NamedTuple

from confluent_kafka import Consumer, TopicPartition

SECONDS = 60.0


class Stored(NamedTuple):
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def read_partition(bootstrap: str, topic: str, partition: int = 0) -> list[Stored]:
    """Return all records that the partition has now, in order."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "read-back", "log_level": 0, "check.crcs": True})
    try:
        topic_partition = TopicPartition(topic, partition, 0)
        watermarks = consumer.get_watermark_offsets(topic_partition, SECONDS)
        assert watermarks is not None
        consumer.assign([topic_partition])
        stored: list[Stored] = []
        while len(stored) < watermarks[1]:
            message = consumer.poll(SECONDS)
            assert message is not None, f"{len(stored)} of {watermarks[1]} records of {topic}-{partition}"
            for each in [message, *consumer.consume(10_000, 0)]:
                assert each.error() is None, each.error()
                offset = each.offset()
                assert offset is not None
                headers: Any = each.headers() or []
                key: Any = each.key()
                stored.append(Stored(partition, offset, each.timestamp()[1], key, each.value(), headers))
        return stored
    finally:
        consumer.close()


def read_topic(bootstrap: str, topic: str, partitions: int) -> list[Stored]:
    """Return all records of all partitions, partition by partition."""
    return [each for partition in range(partitions) for each in read_partition(bootstrap, topic, partition)]

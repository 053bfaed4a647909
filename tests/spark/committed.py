"""What readers of committed records find in a topic, by confluent-kafka, and whether anything is still open."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

from stratalog.client.admin import Admin, OffsetSpec
from stratalog.client.metadata import TopicPartition as Place

SECONDS = 60.0
Record = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]
"""Key, value, headers and timestamp."""


def committed(servers: str, topic: str, partitions: int) -> list[list[Record]]:
    """Partition by partition, up to where a transaction is open."""
    settings = {
        "bootstrap.servers": servers,
        "group.id": "committed",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "log_level": 0,
    }
    consumer = Consumer(settings)
    found: list[list[Record]] = [[] for _ in range(partitions)]
    try:
        consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
        ended: set[int | None] = set()
        while len(ended) < partitions:
            message: Any = consumer.poll(SECONDS)
            assert message is not None, f"{topic} can't be read to its end"
            if message.error() is None:
                value = (message.key(), message.value(), message.headers() or [], message.timestamp()[1])
                found[message.partition()].append(value)
            else:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                ended.add(message.partition())
        return found
    finally:
        consumer.close()


def values(servers: str, topic: str, partitions: int) -> list[str]:
    """In no order."""
    return sorted((one[1] or b"").decode() for part in committed(servers, topic, partitions) for one in part)


def nothing_is_open(servers: str, topic: str, partitions: int) -> bool:
    """Whether readers of committed records get to the end of every partition."""
    places = {Place(topic, index): OffsetSpec.LATEST for index in range(partitions)}
    with Admin(servers) as admin:
        stable = admin.list_offsets(places, read_committed=True).check()
        ends = admin.list_offsets(places).check()
        return all(stable[place].offset == ends[place].offset for place in places)

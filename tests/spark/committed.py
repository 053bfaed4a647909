"""Reads the committed records of a topic with confluent-kafka, and checks for open transactions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

from stratalog.client.admin import Admin, OffsetSpec
from stratalog.client.metadata import TopicPartition as StratalogPartition

SECONDS = 60.0
Record = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]
"""Key, value, headers and timestamp."""


def committed(servers: str, topic: str, partitions: int) -> list[list[Record]]:
    """Return the records of each partition, up to its first open transaction."""
    records: list[list[Record]] = [[] for _ in range(partitions)]
    for message in _messages(servers, topic, partitions, "read_committed"):
        value = (message.key(), message.value(), message.headers() or [], message.timestamp()[1])
        records[message.partition()].append(value)
    return records


def offsets(servers: str, topic: str, isolation: str = "read_committed") -> list[int]:
    """Return the offsets of the records in partition 0."""
    return [message.offset() for message in _messages(servers, topic, 1, isolation)]


def _messages(servers: str, topic: str, partitions: int, isolation: str) -> Iterator[Any]:
    settings = {
        "bootstrap.servers": servers,
        "group.id": "committed",
        "isolation.level": isolation,
        "enable.partition.eof": True,
        "log_level": 0,
    }
    consumer = Consumer(settings)
    try:
        consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
        ended: set[int | None] = set()
        while len(ended) < partitions:
            message: Any = consumer.poll(SECONDS)
            assert message is not None, f"{topic} can't be read to its end"
            if message.error() is None:
                yield message
            else:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                ended.add(message.partition())
    finally:
        consumer.close()


def values(servers: str, topic: str, partitions: int) -> list[str]:
    """Return the values of all partitions, sorted."""
    return sorted((each[1] or b"").decode() for part in committed(servers, topic, partitions) for each in part)


def nothing_is_open(servers: str, topic: str, partitions: int) -> bool:
    """Return whether the last stable offset of every partition is its high watermark."""
    specs = {StratalogPartition(topic, index): OffsetSpec.LATEST for index in range(partitions)}
    with Admin(servers) as admin:
        stable = admin.list_offsets(specs, read_committed=True).check()
        ends = admin.list_offsets(specs).check()
        return all(stable[partition].offset == ends[partition].offset for partition in specs)

"""What a topic holds, read by confluent-kafka: the producer's tests believe no code of ours."""

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
    """All records that are there now, in order."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "read-back", "log_level": 0, "check.crcs": True})
    try:
        place = TopicPartition(topic, partition, 0)
        watermarks = consumer.get_watermark_offsets(place, SECONDS)
        assert watermarks is not None
        consumer.assign([place])
        found: list[Stored] = []
        while len(found) < watermarks[1]:
            message = consumer.poll(SECONDS)
            assert message is not None, f"{len(found)} of {watermarks[1]} records of {topic}-{partition}"
            for one in [message, *consumer.consume(10_000, 0)]:
                assert one.error() is None, one.error()
                offset = one.offset()
                assert offset is not None
                headers: Any = one.headers() or []
                key: Any = one.key()
                found.append(Stored(partition, offset, one.timestamp()[1], key, one.value(), headers))
        return found
    finally:
        consumer.close()


def read_topic(bootstrap: str, topic: str, partitions: int) -> list[Stored]:
    """Partition by partition."""
    return [one for partition in range(partitions) for one in read_partition(bootstrap, topic, partition)]

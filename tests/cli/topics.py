"""Read and write the records of a topic with confluent-kafka."""

from __future__ import annotations

from typing import NamedTuple

from confluent_kafka import Consumer, Message, Producer, TopicPartition

SECONDS = 30.0


class Seen(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int = 0


def read_topic(address: str, topic: str, count: int) -> list[Seen]:
    """Return `count` records. Fail if there are more."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "reader", "enable.partition.eof": False})
    try:
        partitions = sorted(consumer.list_topics(topic, SECONDS).topics[topic].partitions)
        ends = [consumer.get_watermark_offsets(TopicPartition(topic, number), SECONDS)[1] for number in partitions]
        assert sum(ends) == count
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        messages: list[Message] = []
        while len(messages) < count:
            message = consumer.poll(SECONDS)
            assert message is not None
            assert message.error() is None
            messages.append(message)
    finally:
        consumer.close()
    return [
        Seen(message.key(), message.value(), tuple(message.headers() or ()), message.partition() or 0)  # type: ignore[arg-type]
        for message in messages
    ]


def write_topic(address: str, topic: str, records: list[Seen], timestamp: int = 1_700_000_000_000) -> None:
    """Write the records. Timestamps rise by a second from record to record."""
    producer = Producer({"bootstrap.servers": address, "log_level": 0})
    for number, record in enumerate(records):
        producer.produce(
            topic,
            record.value,
            record.key,
            record.partition,
            timestamp=timestamp + 1000 * number,
            headers=list(record.headers),
        )
    assert producer.flush(SECONDS) == 0

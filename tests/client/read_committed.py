"""Reads the committed records of a topic with confluent-kafka, so that tests don't rely on Stratalog's consumer."""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaError, TopicPartition

from tests.clients.waiting import wait_until

SECONDS = 60.0


def read_values(bootstrap: str, topic: str, partitions: int = 1, level: str = "read_committed") -> list[bytes]:
    """Return all values up to the current end of each partition for this isolation level, partition by partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "read-values",
            "isolation.level": level,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
            "log_level": 0,
        }
    )
    values: dict[int, list[bytes]] = {number: [] for number in range(partitions)}
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in values])
        left = set(values)
        while left:
            message = consumer.poll(SECONDS)
            assert message is not None, f"nothing more of {topic}, and no end of {left}"
            number = message.partition()
            assert number is not None
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                left.discard(number)
            else:
                value = message.value()
                assert isinstance(value, bytes)
                values[number].append(value)
    finally:
        consumer.close()
    return [value for number in sorted(values) for value in values[number]]


def expect_committed(bootstrap: str, topic: str, expected: list[bytes], partitions: int = 1) -> None:
    """Check that readers see exactly these values. Waits while the broker still writes a transaction's markers."""
    seen: list[list[bytes]] = [[]]

    def is_so() -> bool:
        seen[0] = read_values(bootstrap, topic, partitions)
        return len(seen[0]) >= len(expected)

    wait_until(is_so, f"{len(expected)} committed records in {topic}")
    assert sorted(seen[0]) == sorted(expected)

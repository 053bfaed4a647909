"""One data directory, served by Apache Kafka, then by our broker, then by Kafka again.

Records, topics and committed offsets go with the files; clients see one story. What is only in Kafka's metadata log
(settings of topics, ids that are given out) stays Kafka's: topics that our broker creates meanwhile are unknown to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.process import BrokerProcess
from tests.compat.kafka import KafkaServer, dump_log_segments, segment_files
from tests.compat.kafka_python import KafkaConsumer, KafkaProducer, TopicPartition

pytestmark = [pytest.mark.compat, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

TOPIC, GROUP = "shared", "readers"


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[KafkaServer]:
    with KafkaServer(tmp_path / "kafka") as running:
        yield running


def send(address: str, start: int, count: int, codec: str | None = None) -> None:
    producer = KafkaProducer(bootstrap_servers=address, compression_type=codec, acks="all")
    sent = [producer.send(TOPIC, b"%d" % number, partition=0) for number in range(start, start + count)]
    assert [one.get(timeout=30).offset for one in sent] == list(range(start, start + count))
    producer.close()


def read_as_group(address: str, count: int) -> list[int]:
    """Read from the committed offsets of the group, and commit the new ones."""
    consumer = KafkaConsumer(
        bootstrap_servers=address, group_id=GROUP, auto_offset_reset="earliest", enable_auto_commit=False
    )
    consumer.assign([TopicPartition(TOPIC, 0)])
    values: list[int] = []
    while len(values) < count:
        for records in consumer.poll(1000).values():
            values += [int(record.value) for record in records]
    consumer.commit()
    consumer.close()
    return values


def test_kafka_and_our_broker_take_turns_on_one_directory(kafka: KafkaServer) -> None:
    kafka.create_topic(TOPIC)
    send(kafka.bootstrap, 0, 50)
    assert read_as_group(kafka.bootstrap, 50) == list(range(50))
    kafka.stop()

    with BrokerProcess(kafka.data_dir) as ours:
        assert read_all(ours.address) == list(range(50))
        send(ours.address, 50, 50, "gzip")
        assert read_as_group(ours.address, 50) == list(range(50, 100))
        assert ours.errors() == []
    assert (kafka.data_dir / ".kafka_cleanshutdown").exists()
    for name in (f"{TOPIC}-0", "__consumer_offsets-0"):
        files = segment_files(kafka.data_dir / name)
        assert dump_log_segments(files, "--deep-iteration").complaints == []
        assert dump_log_segments(files, "--index-sanity-check").complaints == []

    kafka.start()
    assert kafka.log_lines("Skipping recovery of")
    send(kafka.bootstrap, 100, 10)
    assert read_as_group(kafka.bootstrap, 10) == list(range(100, 110))
    assert read_all(kafka.bootstrap) == list(range(110))
    kafka.stop()

    with BrokerProcess(kafka.data_dir) as ours:
        send(ours.address, 110, 5)
        assert read_as_group(ours.address, 5) == list(range(110, 115))


def test_kafka_recovers_acknowledged_records_of_our_killed_broker(kafka: KafkaServer) -> None:
    kafka.create_topic(TOPIC)
    send(kafka.bootstrap, 0, 5)
    assert read_as_group(kafka.bootstrap, 5) == list(range(5))  # so that Kafka knows __consumer_offsets
    kafka.stop()
    with BrokerProcess(kafka.data_dir) as ours:
        send(ours.address, 5, 100)
        assert read_as_group(ours.address, 100) == list(range(5, 105))
        send(ours.address, 105, 10, "gzip")
        ours.kill()
        kafka.start()
        assert read_as_group(kafka.bootstrap, 10) == list(range(105, 115))
        kafka.stop()
        ours.start()
        assert read_all(ours.address) == list(range(115))


def read_all(address: str) -> list[int]:
    consumer = KafkaConsumer(bootstrap_servers=address, group_id=None, auto_offset_reset="earliest")
    partition = TopicPartition(TOPIC, 0)
    consumer.assign([partition])
    end = consumer.end_offsets([partition])[partition]
    values: list[int] = []
    while len(values) < end:
        for records in consumer.poll(1000).values():
            values += [int(record.value) for record in records]
    consumer.close()
    return values

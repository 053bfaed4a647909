"""Reading assigned partitions: records and tables, positions, pauses and limits."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest

from stratalog.client.consumer import Consumer, ConsumerRecord, OffsetAndMetadata, TopicPartition
from stratalog.client.consumer_settings import ConsumerSettings
from stratalog.client.errors import (
    ClientClosedError,
    ClientError,
    ConfigError,
    DeserializationError,
    NoOffsetError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
    WakeupError,
)
from stratalog.client.producer import Producer
from tests.client.conftest import NewTopic
from tests.clients.admin import delete_records
from tests.clients.interface import Place
from tests.clients.waiting import wait_until

SECONDS = 60.0
EARLIEST: dict[str, Any] = {"auto_offset_reset": "earliest"}


def fill(bootstrap: str, topic: str, count: int = 10, partition: int = 0, **settings: Any) -> None:
    with Producer(bootstrap, **settings) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, b"key", [("n", b"%d" % number)], partition, 1_700_000_000_000 + number)


def read(consumer: Consumer, count: int) -> list[ConsumerRecord]:
    records_read: list[ConsumerRecord] = []
    deadline = time.monotonic() + SECONDS
    while len(records_read) < count and time.monotonic() < deadline:
        records_read += [record for records in consumer.poll(1).values() for record in records]
    assert len(records_read) >= count
    return records_read


def offsets(consumer: Consumer, count: int) -> list[int]:
    return [record.offset for record in read(consumer, count)]


@pytest.fixture
def partition(topic: str) -> TopicPartition:
    return TopicPartition(topic, 0)


@pytest.mark.any_broker
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_are_read_as_they_were_sent(codec: str, bootstrap: str, partition: TopicPartition) -> None:
    fill(bootstrap, partition.topic, 5, compression_type=codec)
    with Consumer(bootstrap, **EARLIEST) as consumer:
        consumer.assign([partition])
        records = read(consumer, 5)
    for number, record in enumerate(records):
        assert (record.topic, record.partition, record.offset) == (*partition, number)
        assert (record.key, record.value) == (b"key", b"%d" % number)
        assert (record.timestamp, record.timestamp_type) == (1_700_000_000_000 + number, 0)
        assert record.headers == (("n", b"%d" % number),)


@pytest.mark.any_broker
def test_poll_iteration_and_arrow_return_the_same_records(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(3)
    for partition in range(3):
        fill(bootstrap, topic, 1000, partition)
    partitions = [TopicPartition(topic, partition) for partition in range(3)]
    with Consumer(bootstrap, **EARLIEST) as consumer:
        consumer.assign(partitions)
        polled = read(consumer, 3000)
        consumer.seek_to_beginning()
        iterated = [record for _, record in zip(range(3000), consumer, strict=False)]
        consumer.seek_to_beginning()
        rows: list[dict[str, Any]] = []
        while len(rows) < 3000:
            rows += consumer.poll_arrow(SECONDS).to_pylist()

    def key(record: ConsumerRecord) -> tuple[int, int]:
        return record.partition, record.offset

    assert sorted(polled, key=key) == sorted(iterated, key=key)
    assert len(polled) == len(rows) == 3000
    for record, row in zip(
        sorted(polled, key=key), sorted(rows, key=lambda row: (row["partition"], row["offset"])), strict=True
    ):
        assert (row["topic"], row["partition"], row["offset"]) == (topic, record.partition, record.offset)
        assert (row["key"], row["value"]) == (record.key, record.value)
        assert int(row["timestamp"].timestamp() * 1000) == record.timestamp
        assert [(header["key"], header["value"]) for header in row["headers"]] == list(record.headers)


@pytest.mark.any_broker
def test_arrow_tables_have_the_documented_columns_even_when_empty(bootstrap: str, partition: TopicPartition) -> None:
    with Consumer(bootstrap, **EARLIEST) as consumer:
        consumer.assign([partition])
        empty = consumer.poll_arrow(0.05)
        fill(bootstrap, partition.topic)
        full = consumer.poll_arrow(SECONDS)
    assert empty.num_rows == 0
    assert full.schema == empty.schema
    assert full.schema.names == ["topic", "partition", "offset", "timestamp", "key", "value", "headers"]
    assert full.schema.field("value").type == pa.binary()


@pytest.mark.any_broker
def test_no_poll_returns_more_than_max_records(bootstrap: str, partition: TopicPartition) -> None:
    fill(bootstrap, partition.topic, 25)
    with Consumer(bootstrap, max_poll_records=4, **EARLIEST) as consumer:
        consumer.assign([partition])
        assert offsets(consumer, 1) == [0, 1, 2, 3]
        assert [record.offset for record in consumer.poll(SECONDS, 2)[partition]] == [4, 5]
        assert consumer.poll_arrow(SECONDS, 3).column("offset").to_pylist() == [6, 7, 8]
        assert consumer.position(partition) == 9
        assert next(iter(consumer)).offset == 9
        assert consumer.poll_arrow(SECONDS).column("offset").to_pylist() == list(range(10, 25))


@pytest.mark.any_broker
def test_poll_without_records_returns_at_its_timeout(bootstrap: str, partition: TopicPartition) -> None:
    with Consumer(bootstrap, **EARLIEST) as consumer:
        consumer.assign([partition])
        assert consumer.poll(0) == {}
        assert consumer.poll(0.1) == {}


@pytest.mark.any_broker
def test_a_poll_returns_when_a_record_arrives(bootstrap: str, partition: TopicPartition) -> None:
    with Consumer(bootstrap, **EARLIEST) as consumer:
        consumer.assign([partition])
        consumer.poll(0.05)
        threading.Timer(0.2, fill, (bootstrap, partition.topic, 1)).start()
        assert [record.value for record in consumer.poll()[partition]] == [b"0"]


@pytest.mark.any_broker
def test_deserializers_convert_keys_and_values_but_not_null(bootstrap: str, partition: TopicPartition) -> None:
    with Producer(bootstrap) as producer:
        producer.send(partition.topic, b'{"a": 1}', b"k")
        producer.send(partition.topic, None, b"k")
        producer.send(partition.topic, b"nonsense", None)
        producer.send(partition.topic, b"[]", None)
    with Consumer(bootstrap, key_deserializer=bytes.decode, value_deserializer=json.loads, **EARLIEST) as consumer:
        consumer.assign([partition])
        assert [(record.key, record.value) for record in read(consumer, 2)] == [("k", {"a": 1}), ("k", None)]
        for _ in range(2):
            with pytest.raises(DeserializationError, match=f"offset 2 of {partition}.*seek to offset 3"):
                consumer.poll(SECONDS)
        consumer.seek(partition, 3)
        assert [record.value for record in read(consumer, 1)] == [[]]


# First positions


@pytest.mark.any_broker
def test_reading_begins_where_auto_offset_reset_says(bootstrap: str, partition: TopicPartition) -> None:
    now = int(time.time() * 1000)
    with Producer(bootstrap) as producer:
        for age_hours in (50, 30, 10, 0):
            producer.send(partition.topic, b"", timestamp=now - age_hours * 3_600_000)
            producer.flush()
    for reset, expected in (("earliest", 0), ("by_duration:PT20H", 2), ("by_duration:P2D", 1), ("latest", 4)):
        with Consumer(bootstrap, auto_offset_reset=reset) as consumer:
            consumer.assign([partition])
            assert consumer.position(partition) == expected, reset


@pytest.mark.any_broker
def test_auto_offset_reset_none_is_an_error_with_advice(bootstrap: str, partition: TopicPartition, name: str) -> None:
    fill(bootstrap, partition.topic)
    with Consumer(bootstrap, group_id=name, auto_offset_reset="none") as consumer:
        consumer.assign([partition])
        for _ in range(2):
            with pytest.raises(NoOffsetError, match=f"{partition}.*auto.offset.reset"):
                consumer.poll(SECONDS)
        with pytest.raises(NoOffsetError):
            consumer.position(partition)
        consumer.seek(partition, 5)
        assert offsets(consumer, 5) == [5, 6, 7, 8, 9]


@pytest.mark.any_broker
def test_a_position_out_of_range_is_reset_or_raised(bootstrap: str, partition: TopicPartition) -> None:
    fill(bootstrap, partition.topic)
    delete_records(bootstrap, Place(*partition), 4)
    for wrong in (2, 1000):
        with Consumer(bootstrap, **EARLIEST) as consumer:
            consumer.assign([partition])
            consumer.seek(partition, wrong)
            assert offsets(consumer, 6) == [4, 5, 6, 7, 8, 9]
        with Consumer(bootstrap, auto_offset_reset="none") as consumer:
            consumer.assign([partition])
            consumer.seek(partition, wrong)
            for _ in range(2):
                with pytest.raises(OffsetOutOfRangeError, match=f"{wrong}, is not in the log"):
                    consumer.poll(SECONDS)


@pytest.mark.any_broker
def test_beginning_and_end_offsets_and_offsets_for_times(bootstrap: str, partition: TopicPartition) -> None:
    fill(bootstrap, partition.topic)
    with Consumer(bootstrap) as consumer:
        assert consumer.beginning_offsets([partition]) == {partition: 0}
        assert consumer.end_offsets([partition]) == {partition: 10}
        offsets_found = consumer.offsets_for_times({partition: 1_700_000_000_003})
        assert offsets_found[partition] is not None
        assert offsets_found[partition][:2] == (3, 1_700_000_000_003)  # type: ignore[index]
        assert consumer.offsets_for_times({partition: 1_800_000_000_000}) == {partition: None}
        assert [info.partition for info in consumer.partitions_for(partition.topic)] == [0]
        with pytest.raises(UnknownTopicOrPartitionError, match="nope"):
            consumer.end_offsets([("nope", 0)], timeout=0.5)


# Seeking, pausing and committing


@pytest.mark.any_broker
def test_seek_drops_prefetched_records(bootstrap: str, partition: TopicPartition) -> None:
    fill(bootstrap, partition.topic, 100)
    with Consumer(bootstrap, max_poll_records=5, **EARLIEST) as consumer:
        consumer.assign([partition])
        for offset in (0, 50, 3, 99, 0):
            consumer.seek(partition, offset)
            assert offsets(consumer, 1)[0] == offset
        iterator = iter(consumer)
        assert next(iterator).offset == 5
        consumer.seek(partition, OffsetAndMetadata(77))
        assert next(iterator).offset == 77
        consumer.seek_to_end()
        assert consumer.position(partition) == 100
        consumer.seek_to_beginning()
        assert next(iterator).offset == 0


@pytest.mark.any_broker
def test_paused_partitions_return_nothing_and_lose_nothing(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    for partition in range(2):
        fill(bootstrap, topic, 20, partition)
    with Consumer(bootstrap, max_poll_records=5, **EARLIEST) as consumer:
        consumer.assign([(topic, 0), (topic, 1)])
        read(consumer, 1)
        consumer.pause([(topic, 0)])
        assert consumer.paused() == {TopicPartition(topic, 0)}
        at = consumer.position((topic, 0))
        rest = read(consumer, 20 - consumer.position((topic, 1)))
        assert {record.partition for record in rest} == {1}
        fill(bootstrap, topic, 5, 1)
        read(consumer, 5)
        consumer.resume([(topic, 0)])
        assert offsets(consumer, 20 - at) == list(range(at, 20))


@pytest.mark.any_broker
def test_lag_is_the_distance_to_the_end(bootstrap: str, partition: TopicPartition) -> None:
    fill(bootstrap, partition.topic, 20)
    with Consumer(bootstrap, max_poll_records=5, **EARLIEST) as consumer:
        consumer.assign([partition])
        assert consumer.lag()[partition] in (None, 20)  # None until the first response arrives
        read(consumer, 5)
        assert consumer.lag() == {partition: 15}


@pytest.mark.any_broker
def test_partitions_that_stay_assigned_keep_their_position(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    fill(bootstrap, topic, 10, 0)
    with Consumer(bootstrap, max_poll_records=5, **EARLIEST) as consumer:
        consumer.assign([(topic, 0)])
        read(consumer, 5)
        consumer.assign([(topic, 0), (topic, 1)])
        assert offsets(consumer, 5) == [5, 6, 7, 8, 9]
        consumer.assign([(topic, 1)])
        consumer.assign([(topic, 0)])
        assert offsets(consumer, 5) == [0, 1, 2, 3, 4]


@pytest.mark.any_broker
def test_commits_without_membership(bootstrap: str, partition: TopicPartition, name: str) -> None:
    fill(bootstrap, partition.topic)
    with Consumer(bootstrap, group_id=name, enable_auto_commit=False, **EARLIEST) as consumer:
        consumer.assign([partition])
        assert consumer.committed([partition]) == {partition: None}
        read(consumer, 10)
        consumer.commit()
        committed = consumer.committed([partition])[partition]
        assert committed is not None
        assert (committed.offset, committed.metadata) == (10, "")
        consumer.commit({partition: OffsetAndMetadata(3, "why")})
    with Consumer(bootstrap, group_id=name, **EARLIEST) as consumer:
        consumer.assign([partition])
        assert consumer.position(partition) == 3
        committed = consumer.committed([partition])[partition]
        assert committed is not None
        assert committed.metadata == "why"


@pytest.mark.any_broker
def test_read_committed_skips_aborted_and_open_transactions(
    bootstrap: str, partition: TopicPartition, name: str
) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions(SECONDS)
    for number in range(6):
        producer.begin_transaction()
        for _ in range(3):
            producer.produce(partition.topic, b"%d" % number)
        producer.flush()  # otherwise the aborted records would never be sent
        (producer.commit_transaction if number % 2 else producer.abort_transaction)(SECONDS)
    for level, expected in (
        ("read_committed", {b"1", b"3", b"5"}),
        ("read_uncommitted", {b"%d" % n for n in range(6)}),
    ):
        with Consumer(bootstrap, isolation_level=level, **EARLIEST) as consumer:
            consumer.assign([partition])
            records = read(consumer, 3 * len(expected))
            assert {record.value for record in records} == expected
            assert len(records) == 3 * len(expected)
            consumer.seek_to_beginning()
            table = consumer.poll_arrow(SECONDS)
            assert set(table.column("value").to_pylist()) <= expected
            consumer.poll(0.2)
            assert consumer.position(partition) == consumer.end_offsets([partition])[partition] == 24


@pytest.mark.any_broker
def test_a_record_larger_than_every_fetch_limit_is_read(bootstrap: str, partition: TopicPartition) -> None:
    value = bytes(700_000)
    with Producer(bootstrap) as producer:
        for _ in range(3):
            producer.send(partition.topic, value)
    with Consumer(bootstrap, max_partition_fetch_bytes=1000, fetch_max_bytes=1000, **EARLIEST) as consumer:
        consumer.assign([partition])
        assert [record.value == value for record in read(consumer, 3)] == [True] * 3


@pytest.mark.any_broker
def test_prefetching_stays_within_its_limit(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(4)
    with Producer(bootstrap, batch_size=100_000) as producer:
        for partition in range(4):
            for _ in range(40):
                producer.send(topic, bytes(50_000), partition=partition)
    settings: dict[str, Any] = {"queued_max_messages_kbytes": 1000, "max_partition_fetch_bytes": 150_000}
    with Consumer(bootstrap, max_poll_records=1, **settings, **EARLIEST) as consumer:
        consumer.assign([(topic, partition) for partition in range(4)])
        most, count = 0, 0
        while count < 160:
            count += len(read(consumer, 1))
            time.sleep(0.002)
            most = max(most, consumer._core.buffer.bytes)
        assert most <= 1000 * 1024


# Calls that are not valid


def test_settings_that_are_not_valid_are_refused_by_name(bootstrap: str) -> None:
    wrong: tuple[tuple[dict[str, object], str], ...] = (
        ({"group.idd": "x"}, "did you mean group.id"),
        ({"auto.offset.reset": "sometimes"}, "by_duration"),
        ({"partition.assignment.strategy": "fair"}, "cooperative-sticky"),
        ({"heartbeat.interval.ms": 50_000}, "session.timeout.ms"),
        ({"group.instance.id": "x"}, "group.id"),
        ({"value.deserializer": "json"}, "function"),
        ({"sasl.mechanism": "PLAIN"}, "SASL"),
        ({"fetch.wait.max.ms": 5}, "fetch.max.wait.ms"),
    )
    for settings, problem in wrong:
        with pytest.raises(ConfigError, match=problem):
            Consumer.from_config({"bootstrap.servers": bootstrap} | settings)
    java = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
    settings_of_java = ConsumerSettings.parse({"bootstrap.servers": "x:1", "partition.assignment.strategy": java})
    assert settings_of_java.partition_assignment_strategy == ("cooperative-sticky",)


def test_calls_that_are_not_valid_are_refused(bootstrap: str, partition: TopicPartition, name: str) -> None:
    with Consumer(bootstrap) as consumer:
        with pytest.raises(ClientError, match=r"call subscribe\(\) or assign\(\) first"):
            consumer.poll(0)
        with pytest.raises(ClientError, match="group_id"):
            consumer.subscribe([partition.topic])
        with pytest.raises(ClientError, match="not assigned"):
            consumer.seek(partition, 0)
        consumer.assign([partition])
        with pytest.raises(ClientError, match="group_id"):
            consumer.commit()
        with pytest.raises(ValueError, match="negative"):
            consumer.seek(partition, -1)
        with pytest.raises(ValueError, match="max_records"):
            consumer.poll(0, 0)
    with Consumer(bootstrap, group_id=name) as consumer:
        consumer.subscribe([partition.topic])
        with pytest.raises(ClientError, match="unsubscribe"):
            consumer.assign([partition])
    consumer.close()
    with pytest.raises(ClientClosedError):
        consumer.poll(0)


def test_a_second_thread_is_refused(bootstrap: str, partition: TopicPartition) -> None:
    with Consumer(bootstrap, **EARLIEST) as consumer, ThreadPoolExecutor(1) as other_thread:
        consumer.assign([partition])
        polling = other_thread.submit(consumer.poll)
        try:
            wait_until(lambda: consumer._core.handoff.is_polling, "the other thread's poll")
            with pytest.raises(ClientError, match="another thread"):
                consumer.poll(0)
        finally:
            consumer.wakeup()
        with pytest.raises(WakeupError):
            polling.result(60)


@pytest.mark.any_broker
def test_a_paused_partition_that_fills_the_buffer_does_not_delay_the_others(
    bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic(2)
    with Producer(bootstrap) as producer:
        for _ in range(20):
            producer.send(topic, bytes(100_000), partition=0)
    settings: dict[str, Any] = {"queued_max_messages_kbytes": 300, "max_partition_fetch_bytes": 300_000}
    with Consumer(bootstrap, max_poll_records=1, **settings, **EARLIEST) as consumer:
        consumer.assign([(topic, 0), (topic, 1)])
        read(consumer, 1)
        consumer.pause([(topic, 0)])
        with Producer(bootstrap) as producer:
            for _ in range(5):
                producer.send(topic, b"other", partition=1)
        assert {record.partition for record in read(consumer, 5)} == {1}
        consumer.resume([(topic, 0)])
        assert len(read(consumer, 19)) == 19

"""Sending records: contents, partitions, deliveries, callbacks, and the timeouts of calls."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from stratalog.client._partitioner import partition_for_key
from stratalog.client.errors import (
    BufferExhaustedError,
    ClientClosedError,
    ClientError,
    ConfigError,
    RecordTooLargeError,
    RequestTimeoutError,
    UnknownTopicOrPartitionError,
)
from stratalog.client.producer import Delivery, Producer
from stratalog.client.producer_settings import ProducerSettings
from tests.client.conftest import NewTopic
from tests.client.read_back import read_partition, read_topic
from tests.clients.admin import grow_topic
from tests.clients.waiting import wait_until

SECONDS = 60.0


@pytest.mark.any_broker
def test_a_record_is_stored_as_it_was_sent(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap) as producer:
        sent = producer.send(topic, b"value", b"key", [("a", b"1"), ("a", None), ("ü", b"")], 0, 1_600_000_000_123)
        record = sent.result(SECONDS)
        assert (record.topic, record.partition, record.offset, record.timestamp) == (topic, 0, 0, 1_600_000_000_123)
        assert sent.done()
        assert sent.exception() is None
    [stored] = read_partition(bootstrap, topic)
    assert stored == (0, 0, 1_600_000_000_123, b"key", b"value", [("a", b"1"), ("a", None), ("ü", b"")])


@pytest.mark.any_broker
def test_nulls_empty_values_and_buffers_are_sent(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap) as producer:
        producer.send(topic, None, b"")
        producer.send(topic, b"", None)
        producer.send(topic, bytearray(b"array"), memoryview(b"view"), {"name": b"value"})
        producer.send(topic)
    stored = [(record.key, record.value, record.headers) for record in read_partition(bootstrap, topic)]
    assert stored == [
        (b"", None, []),
        (None, b"", []),
        (b"view", b"array", [("name", b"value")]),
        (None, None, []),
    ]


@pytest.mark.any_broker
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec(bootstrap: str, topic: str, codec: str) -> None:
    values = [b"%d " % number * 50 for number in range(500)]
    with Producer(bootstrap, compression_type=codec, linger_ms=50) as producer:
        deliveries = [producer.send(topic, value) for value in values]
    assert [delivery.result().offset for delivery in deliveries] == list(range(500))
    assert [record.value for record in read_partition(bootstrap, topic)] == values


@pytest.mark.any_broker
@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_every_value_of_acks_delivers(bootstrap: str, topic: str, acks: int | str) -> None:
    with Producer(bootstrap, acks=acks) as producer:
        deliveries = [producer.send(topic, b"%d" % number) for number in range(100)]
        offsets = [delivery.result(SECONDS).offset for delivery in deliveries]
    assert offsets == ([-1] * 100 if acks == 0 else list(range(100)))
    wait_until(lambda: len(read_partition(bootstrap, topic)) == 100, "the arrival of all records")
    assert [record.value for record in read_partition(bootstrap, topic)] == [b"%d" % number for number in range(100)]


@pytest.mark.any_broker
def test_a_record_larger_than_batch_size_is_sent_alone(bootstrap: str, topic: str) -> None:
    values = [b"small", bytes(50_000), b"small too"]
    with Producer(bootstrap, batch_size=1000) as producer:
        for value in values:
            producer.send(topic, value)
    assert [record.value for record in read_partition(bootstrap, topic)] == values


@pytest.mark.any_broker
def test_batch_size_zero_sends_each_record_alone(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap, batch_size=0) as producer:
        deliveries = [producer.send(topic, b"%d" % number) for number in range(50)]
    assert [delivery.result().offset for delivery in deliveries] == list(range(50))
    assert [record.value for record in read_partition(bootstrap, topic)] == [b"%d" % number for number in range(50)]


@pytest.mark.any_broker
def test_keys_map_to_partitions_as_in_java(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(7)
    keys = [b"%d" % number for number in range(300)]
    with Producer(bootstrap) as producer:
        deliveries = [producer.send(topic, b"", key) for key in keys]
    assert [delivery.result().partition for delivery in deliveries] == [partition_for_key(key, 7) for key in keys]
    assert {record.key for record in read_topic(bootstrap, topic, 7)} == set(keys)


@pytest.mark.any_broker
def test_keyless_records_fill_one_partitions_batch_before_the_next(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(4)
    with Producer(bootstrap, batch_size=10_000, linger_ms=1000) as producer:
        deliveries = [producer.send(topic, bytes(1000)) for _ in range(900)]
    partitions = [delivery.result().partition for delivery in deliveries]
    changes = sum(before != after for before, after in itertools.pairwise(partitions))
    assert changes == 99  # nine records per batch
    assert set(partitions) == {0, 1, 2, 3}


def test_a_missing_topic_is_created_if_the_broker_allows_it(bootstrap: str, name: str) -> None:
    with Producer(bootstrap) as producer:
        assert producer.send(name, b"first").result(SECONDS).offset == 0


@pytest.mark.any_broker
def test_partitions_that_are_added_are_used(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap, metadata_max_age_ms=200, max_block_ms=60_000) as producer:
        assert producer.send(topic, b"", partition=0).result(SECONDS).partition == 0
        grow_topic(bootstrap, topic, 3)
        assert producer.send(topic, b"", partition=2).result(SECONDS).partition == 2  # waits for the metadata
        assert len(producer.partitions_for(topic)) == 3


@pytest.mark.any_broker
def test_a_partition_that_does_not_exist_is_refused_after_max_block_ms(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap, max_block_ms=2000) as producer:
        with pytest.raises(UnknownTopicOrPartitionError, match=r"the topic has partitions 0 to 0"):
            producer.send(topic, b"", partition=1)
        assert producer.send(topic, b"").result(SECONDS).offset == 0


@pytest.mark.any_broker
def test_serializers_are_not_called_for_none(bootstrap: str, topic: str) -> None:
    with Producer(
        bootstrap, value_serializer=lambda value: json.dumps(value).encode(), key_serializer=str.encode
    ) as producer:
        producer.send(topic, {"a": 1}, "key")
        producer.send(topic, None)
        with pytest.raises(TypeError, match="descriptor 'encode'"):
            producer.send(topic, 1, key=7)
    assert [(record.key, record.value) for record in read_partition(bootstrap, topic)] == [
        (b"key", b'{"a": 1}'),
        (None, None),
    ]


@pytest.mark.any_broker
def test_callbacks_run_in_order_although_one_raises(
    bootstrap: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[int] = []

    def note(delivery: Delivery) -> None:
        seen.append(delivery.result().offset)
        if len(seen) == 3:
            raise ValueError("the third is one too many")

    with caplog.at_level(logging.ERROR), Producer(bootstrap) as producer:
        for number in range(10):
            producer.send(topic, b"%d" % number, on_delivery=note)
        producer.flush(SECONDS)
        done = producer.send(topic, b"last")
        done.result(SECONDS)
        done.add_done_callback(note)  # called at once, in this thread
        assert len(seen) == 11
    assert seen == list(range(11))
    assert "one too many" in caplog.text


@pytest.mark.any_broker
def test_a_callback_may_send_but_not_flush(bootstrap: str, topic: str) -> None:
    problems: list[BaseException] = []
    followers: list[Delivery] = []

    with Producer(bootstrap) as producer:

        def follow(delivery: Delivery) -> None:
            followers.append(producer.send(topic, b"follower"))
            try:
                producer.flush()
            except ClientError as error:
                problems.append(error)

        producer.send(topic, b"leader", on_delivery=follow).result(SECONDS)
        wait_until(lambda: bool(problems), "the refusal of the flush")
    assert [delivery.result().offset for delivery in followers] == [1]
    assert "would never return" in str(problems[0])


@pytest.mark.any_broker
def test_deliveries_can_be_awaited(bootstrap: str, topic: str) -> None:
    async def send_and_wait() -> list[int]:
        deliveries = [producer.send(topic, b"%d" % number) for number in range(20)]
        return [(await delivery).offset for delivery in deliveries]

    with Producer(bootstrap) as producer:
        assert asyncio.run(send_and_wait()) == list(range(20))


@pytest.mark.any_broker
def test_flush_waits_for_all_earlier_records(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap, linger_ms=600_000, delivery_timeout_ms=700_000) as producer:
        deliveries = [producer.send(topic, b"%d" % number) for number in range(10)]
        assert not any(delivery.done() for delivery in deliveries)
        producer.flush(SECONDS)
        assert all(delivery.done() for delivery in deliveries)


@pytest.mark.any_broker
def test_close_sends_lingering_records_and_then_refuses_calls(bootstrap: str, topic: str) -> None:
    producer = Producer(bootstrap, linger_ms=600_000, delivery_timeout_ms=700_000)
    delivery = producer.send(topic, b"value")
    producer.close()
    producer.close()
    assert delivery.result(0).offset == 0
    for call in (lambda: producer.send(topic, b""), lambda: producer.partitions_for(topic)):
        with pytest.raises(ClientClosedError):
            call()
    producer.flush()
    assert "closed" in repr(producer)


@pytest.mark.any_broker
def test_a_batch_that_is_too_large_for_the_topic_is_split(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(1, {"max.message.bytes": "5000"})
    values = [b"%d" % number * 100 for number in range(100)]
    order: list[int] = []
    with Producer(bootstrap, linger_ms=500) as producer:
        deliveries = [
            producer.send(topic, value, on_delivery=lambda delivery: order.append(delivery.result().offset))
            for value in values
        ]
        producer.flush(SECONDS)
        assert [delivery.result().offset for delivery in deliveries] == list(range(100))
        with pytest.raises(RecordTooLargeError):
            producer.send(topic, bytes(6000)).result(SECONDS)
        assert producer.send(topic, b"next").result(SECONDS).offset == 100
    assert order == list(range(100))
    assert [record.value for record in read_partition(bootstrap, topic)] == [*values, b"next"]


@pytest.mark.any_broker
def test_a_topic_with_log_append_time_returns_the_brokers_timestamps(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(1, {"message.timestamp.type": "LogAppendTime"})
    with Producer(bootstrap) as producer:
        record = producer.send(topic, b"", timestamp=1000).result(SECONDS)
    assert record.timestamp == read_partition(bootstrap, topic)[0].timestamp
    assert record.timestamp > 1_600_000_000_000


@pytest.mark.any_broker
def test_a_record_that_is_not_valid_is_refused_before_it_is_buffered(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap) as producer:
        wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
            ({"value": "text"}, TypeError, "value is str, not bytes or None"),
            ({"value": 7}, TypeError, "value is int"),
            ({"value": object()}, TypeError, "value is object"),
            ({"key": "text"}, TypeError, "key is str"),
            ({"headers": [("a", "b")]}, TypeError, "value of header 'a' is str"),
            ({"headers": [(b"a", b"b")]}, TypeError, "header key is bytes"),
            ({"headers": ["ab", 1]}, TypeError, "header is 'ab'"),
            ({"partition": -1}, ValueError, "partition is -1"),
            ({"partition": 2**31}, ValueError, "partition is 2147483648"),
            ({"partition": "0"}, TypeError, "partition is '0'"),
            ({"timestamp": 1.5}, TypeError, "timestamp is 1.5"),
            ({"timestamp": -1}, ValueError, "timestamp is -1"),
            ({"value": bytes(1_100_000)}, RecordTooLargeError, "is more than max.request.size = 1048576"),
        ]
        for arguments, kind, words in wrong:
            with pytest.raises(kind, match=words):
                producer.send(topic, **arguments)
        with pytest.raises(TypeError):
            producer.send(None, b"")  # type: ignore[arg-type]
        assert producer.send(topic, b"").result(SECONDS).offset == 0


def test_settings_that_are_not_valid_are_refused_by_name() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"linger": 5}, "did you mean linger.ms"),
        ({"acks": "two"}, "acks is 'two'; it must be 0, 1 or all"),
        ({"enable_idempotence": True, "acks": 1}, "acks is 1, but idempotence needs acks=all"),
        ({"enable_idempotence": True, "max_in_flight_requests_per_connection": 6}, "allows at most 5"),
        ({"enable_idempotence": True, "retries": 0}, "retries is 0"),
        ({"transactional_id": 7}, "transactional.id is 7; it must be a string"),
        ({"transactional_id": "t", "acks": 1}, "transactional.id is 't' and acks is 1"),
        ({"transactional_id": "t", "enable_idempotence": False}, "enable.idempotence is false"),
        ({"transaction_timeout_ms": 0}, "transaction.timeout.ms is 0"),
        ({"compression_type": "brotli"}, "compression.type is 'brotli'"),
        ({"value_serializer": 7}, "value.serializer is 7"),
        ({"delivery_timeout_ms": 100}, "at least linger.ms"),
        ({"ssl_cafile": "x"}, "TLS and SASL"),
        ({"message_timeout_ms": 5}, "set delivery.timeout.ms"),
    ]
    for settings, words in wrong:
        with pytest.raises(ConfigError, match=words):
            Producer("localhost:1", **settings)


def test_idempotence_is_on_unless_another_setting_prevents_it() -> None:
    def is_idempotent(**settings: object) -> bool:
        return ProducerSettings.from_options("localhost:1", settings).is_idempotent

    assert is_idempotent()
    assert not is_idempotent(acks=1)
    assert not is_idempotent(max_in_flight_requests_per_connection=10)
    assert not is_idempotent(enable_idempotence=False)
    assert is_idempotent(enable_idempotence="true")


def test_settings_may_have_kafkas_names(bootstrap: str, topic: str) -> None:
    config = {"bootstrap.servers": bootstrap, "linger.ms": "1", "acks": "-1", "compression.type": "lz4"}
    with Producer.from_config(config) as producer:
        assert producer.settings.linger_ms == 1
        assert producer.send(topic, b"value").result(SECONDS).offset == 0


def test_an_unreachable_broker_is_an_error_within_max_block_ms(tmp_path: Path) -> None:
    producer = Producer("127.0.0.1:1", max_block_ms=300)
    with pytest.raises(RequestTimeoutError, match=r"127\.0\.0\.1:1"):
        producer.send("topic", b"")
    producer.close()


def test_a_full_buffer_is_an_error_within_max_block_ms(own_broker: object, tmp_path: Path) -> None:
    from tests.broker.process import BrokerProcess

    assert isinstance(own_broker, BrokerProcess)
    with Producer(own_broker.address, buffer_memory=100_000, max_block_ms=2000) as producer:
        producer.send("topic", b"first").result(SECONDS)
        own_broker.kill()
        with pytest.raises(BufferExhaustedError, match=r"buffer\.memory is full .* max\.block\.ms = 2000"):
            for _ in range(1000):
                producer.send("topic", bytes(1000))
        own_broker.start()
        producer.flush(SECONDS)
        assert producer.send("topic", b"next").result(SECONDS).offset > 50


def test_sixteen_threads_share_a_producer(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(3)
    deliveries: dict[int, list[Delivery]] = {}
    problems: list[BaseException] = []

    def run(name: int) -> None:
        try:
            deliveries[name] = [producer.send(topic, b"%d:%d" % (name, number), b"%d" % name) for number in range(5000)]
            deliveries[name][-1].result(SECONDS)
        except BaseException as error:
            problems.append(error)

    with Producer(bootstrap, linger_ms=1, batch_size=4000, buffer_memory=300_000) as producer:
        threads = [threading.Thread(target=run, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert problems == []
    stored = read_topic(bootstrap, topic, 3)
    assert len(stored) == 16 * 5000
    by_thread: dict[int, list[int]] = {}
    values = {(record.partition, record.offset): record.value for record in stored}
    for value in values.values():
        assert value is not None
        by_thread.setdefault(int(value.partition(b":")[0]), []).append(int(value.partition(b":")[2]))
    assert all(numbers == list(range(5000)) for numbers in by_thread.values())
    for name, sent in deliveries.items():
        for number in range(0, 5000, 499):
            record = sent[number].result()
            assert values[record.partition, record.offset] == b"%d:%d" % (name, number)


def test_a_garbage_collected_producer_sends_its_records_and_stops_its_thread(bootstrap: str, topic: str) -> None:
    producer = Producer(bootstrap, client_id="dropped", linger_ms=600_000, delivery_timeout_ms=700_000)
    delivery = producer.send(topic, b"value")
    with pytest.warns(ResourceWarning, match="was not closed"):
        del producer
    assert delivery.result(SECONDS).offset == 0
    wait_until(lambda: all("dropped" not in thread.name for thread in threading.enumerate()), "the end of the thread")


def test_close_in_a_callback_does_not_wait_for_itself(bootstrap: str, topic: str) -> None:
    producer = Producer(bootstrap, client_id="closed in a callback", linger_ms=600_000, delivery_timeout_ms=700_000)
    called = threading.Event()

    def close(_: Delivery) -> None:
        left.append(producer.send(topic, b"left"))
        producer.close()
        called.set()

    left: list[Delivery] = []
    first = producer.send(topic, b"first", on_delivery=close)
    producer.flush(SECONDS)
    assert called.wait(SECONDS)
    assert first.result(0).offset == 0
    assert isinstance(left[0].exception(SECONDS), ClientClosedError)
    wait_until(lambda: all("callback" not in thread.name for thread in threading.enumerate()), "the end of the thread")


def test_a_timed_out_result_does_not_cancel_the_delivery(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap, linger_ms=600_000, delivery_timeout_ms=700_000) as producer:
        delivery = producer.send(topic, b"value")
        started = time.monotonic()
        with pytest.raises(TimeoutError, match="still in flight"):
            delivery.result(0.05)
        with pytest.raises(TimeoutError):
            delivery.exception(0)
        assert time.monotonic() - started < SECONDS
        assert "in flight" in repr(delivery)
        producer.flush(SECONDS)
        assert delivery.result(0).offset == 0

"""Topics, partitions and offsets that are not valid fail their call, and don't affect later calls."""

from __future__ import annotations

from typing import Any

import pytest

from stratalog import Consumer, Producer
from stratalog.client import TopicPartition
from stratalog.errors import InvalidTopicError


@pytest.mark.parametrize(
    ("name", "error"), [(5, TypeError), (b"topic", TypeError), (None, TypeError), ("\ud800", InvalidTopicError)]
)
def test_a_client_works_after_a_topic_name_that_is_not_valid(
    stratalog_broker: Any, stratalog_topic: str, name: Any, error: type[Exception]
) -> None:
    with Producer(stratalog_broker.bootstrap_servers) as producer:
        with pytest.raises(error):
            producer.partitions_for(name)
        with pytest.raises(error):
            producer.send(name, b"value").result(10)
        assert producer.send(stratalog_topic, b"value").result(30).offset >= 0
    with Consumer(stratalog_broker.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        with pytest.raises(error):
            consumer.assign([(name, 0)])
            consumer.poll(1)
        consumer.assign([(stratalog_topic, 0)])
        assert consumer.poll(30)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, ZeroDivisionError])
def test_an_exit_raised_in_a_callback_does_not_stop_sending(
    stratalog_broker: Any, stratalog_topic: str, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def ends(delivery: object) -> None:
        raise error

    with Producer(stratalog_broker.bootstrap_servers) as producer:
        producer.send(stratalog_topic, b"first", on_delivery=ends).result(30)
        assert producer.send(stratalog_topic, b"second").result(30).offset == 1
    assert "a callback of" in caplog.text


@pytest.mark.parametrize("partition", ["topic", ("topic", "0"), ("topic",), (b"topic", 0), 0, None])
def test_the_error_for_a_partition_that_is_not_valid_shows_a_valid_one(stratalog_broker: Any, partition: Any) -> None:
    with Consumer(stratalog_broker.bootstrap_servers, group_id="any") as consumer:
        for call in (
            lambda: consumer.assign([partition]),
            lambda: consumer.seek(partition, 0),
            lambda: consumer.commit({partition: 1}),
            lambda: consumer.beginning_offsets([partition]),
        ):
            with pytest.raises(TypeError, match="TopicPartition\\('orders', 0\\)"):
                call()


@pytest.mark.parametrize("offset", ["1", None, 1.5])
def test_the_error_for_an_offset_that_is_not_a_number_names_its_partition(stratalog_broker: Any, offset: Any) -> None:
    with (
        Consumer(stratalog_broker.bootstrap_servers, group_id="any") as consumer,
        pytest.raises(TypeError, match=r"offset of topic-0 is .*; it must be a number"),
    ):
        consumer.commit({TopicPartition("topic", 0): offset})

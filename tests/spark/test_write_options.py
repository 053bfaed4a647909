from __future__ import annotations

import pytest

from stratalog.errors import ConfigError
from stratalog.spark.write_options import Delivery, parse

SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}


def test_options_are_case_insensitive() -> None:
    actual = parse(
        {
            **SERVERS,
            "Topic": " orders ",
            "DELIVERY": "Exactly-Once",
            "sinkId": "orders-1",
            "decisionTimeout": "2h",
            "kafka.linger.ms": "7",
            "checkpointlocation": "/somewhere",
            "includeHeaders": "true",
        }
    )
    assert (actual.topic, actual.delivery, actual.sink_id) == ("orders", Delivery.EXACTLY_ONCE, "orders-1")
    assert actual.decision_timeout_ms == 7_200_000
    assert actual.producer_config("t")["linger.ms"] == "7"
    assert "linger.ms" not in actual.admin_config()
    assert actual.admin_config()["bootstrap.servers"] == "localhost:9092"


def test_defaults_of_a_write() -> None:
    actual = parse(SERVERS)
    assert (actual.topic, actual.delivery, actual.sink_id) == (None, Delivery.BEST, None)
    assert "transactional.id" not in actual.producer_config(None)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("topics", "orders", r"'topics' is not an option of a write; did you mean topic\?"),
        ("subscribe", "orders", "'subscribe' is not an option of a write; it is an option of a read"),
        ("linger.ms", "5", r"did you mean kafka\.linger\.ms\?"),
        ("path", "orders", r"save\('orders'\) names a path"),
        ("topic", " ", "topic is ' '"),
        ("delivery", "twice", "delivery is 'twice'; it must be exactly-once or at-least-once"),
        ("sinkId", "a/b", "sinkId is 'a/b'; it must be 1 to 200"),
        ("sinkId", "", "sinkId is ''"),
        ("decisionTimeout", "soon", "decisionTimeout is 'soon'; it must be a duration"),
        ("decisionTimeout", "0s", "decisionTimeout is '0s'"),
        ("decisionTimeout", "25d", "decisionTimeout is '25d'"),
        ("includeHeaders", "perhaps", "includeHeaders is 'perhaps'"),
        ("kafka.key.serializer", "x", r"kafka\.key\.serializer can't be set"),
        ("kafka.value.serializer", "x", r"kafka\.value\.serializer can't be set"),
        ("kafka.transactional.id", "x", r"kafka\.transactional\.id can't be set: .*sinkId"),
        ("kafka.enable.idempotence", "false", "enable.idempotence is false.*set delivery to at-least-once"),
        ("kafka.acks", "1", "acks is 1, but idempotence needs acks=all.*set delivery to at-least-once"),
        ("kafka.linger", "1", "kafka.*linger"),
    ],
)
def test_invalid_options_are_refused_by_name(option: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse({**SERVERS, option: value})


def test_servers_are_required() -> None:
    with pytest.raises(ConfigError, match=r"kafka\.bootstrap\.servers is missing"):
        parse({"topic": "orders"})


def test_any_acks_are_allowed_at_least_once() -> None:
    actual = parse({**SERVERS, "delivery": "at-least-once", "kafka.acks": "1"})
    assert actual.producer_config(None)["acks"] == "1"

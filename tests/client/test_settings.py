"""The settings that all clients share: Kafka's names, addresses, and refusals with reasons."""

from __future__ import annotations

from typing import Any

import pytest

from stratalog.client.consumer_settings import ConsumerOptions, ConsumerSettings
from stratalog.client.producer_settings import ProducerOptions, ProducerSettings
from stratalog.client.settings import AdminOptions, AdminSettings, CommonSettings, ServerAddress
from stratalog.errors import ConfigError
from stratalog.settings import underscored


def servers(servers: object) -> list[tuple[str, int]]:
    return [(server.host, server.port) for server in CommonSettings.from_options(servers, {}).bootstrap_servers]


@pytest.mark.parametrize(
    ("notation", "read"),
    [
        ("localhost:9093", [("localhost", 9093)]),
        ("localhost", [("localhost", 9092)]),
        (" a:1 , b:2,", [("a", 1), ("b", 2)]),
        (["a:1", "b:2"], [("a", 1), ("b", 2)]),
        (("a:1", "a:1"), [("a", 1)]),
        ("[::1]:9093", [("::1", 9093)]),
        ("[::1]", [("::1", 9092)]),
        ("PLAINTEXT://a:1", [("a", 1)]),
    ],
)
def test_bootstrap_servers_accept_all_common_notations(notation: object, read: list[tuple[str, int]]) -> None:
    assert servers(notation) == read


@pytest.mark.parametrize(
    ("notation", "why"),
    [
        ("", "at least one broker"),
        ([], "at least one broker"),
        (None, "must be host:port"),
        (9092, "must be host:port"),
        ([9092], "contains 9092"),
        ("a:b", "'a:b'; it must be host:port"),
        ("a:0", "port from 1 to 65535"),
        ("a:65536", "port from 1 to 65535"),
        (":9092", "must be host:port"),
        ("::1:9092", "IPv6 address needs brackets"),
        ("[::1:9092", "must be host:port"),
        ("SSL://a:1", "only PLAINTEXT"),
        ("http://a:1", "only PLAINTEXT"),
    ],
)
def test_servers_that_are_not_valid_are_named(notation: object, why: str) -> None:
    with pytest.raises(ConfigError, match=rf"bootstrap\.servers .*{why}"):
        servers(notation)


def test_an_address_is_formatted_as_host_and_port() -> None:
    assert str(ServerAddress("::1", 9092)) == "[::1]:9092"
    assert str(ServerAddress("a", 9092)) == "a:9092"


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("security.protocol", "SASL_SSL", "TLS and SASL are not supported yet"),
        ("sasl.mechanism", "PLAIN", "TLS and SASL are not supported yet"),
        ("ssl.anything.at.all", "x", "TLS and SASL are not supported yet"),
        ("socket.timeout.ms", "1", "librdkafka's; set request.timeout.ms"),
        ("metric.reporters", "x", "Java classes"),
        ("request.timeout", "1", "did you mean request.timeout.ms"),
        ("no.such.thing", "1", "is not a setting of a client"),
        ("request.timeout.ms", "soon", "must be a whole number"),
        ("request.timeout.ms", "0", "must lie between 1"),
        ("client.id", 5, "must be text"),
    ],
)
def test_refused_settings_have_a_reason(name: str, value: object, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        CommonSettings.parse({"bootstrap.servers": "a:1", name: value})
    assert why in str(caught.value)
    assert name in str(caught.value)


def test_a_refused_setting_may_have_its_only_value() -> None:
    held = {"client.dns.lookup": "use_all_dns_ips", "socket.keepalive.enable": "true", "security.protocol": "PLAINTEXT"}
    CommonSettings.parse({"bootstrap.servers": "a:1", **held})


def test_fetch_max_bytes_must_fit_receive_message_max_bytes() -> None:
    with pytest.raises(
        ConfigError, match=r"fetch\.max\.bytes is 200000000; it must not exceed receive\.message\.max\.bytes"
    ):
        ConsumerSettings.from_options("a:1", {"fetch_max_bytes": 200_000_000})
    ConsumerSettings.from_options("a:1", {"fetch_max_bytes": 200_000_000, "receive_message_max_bytes": 200_001_000})


def test_servers_set_twice_are_refused() -> None:
    with pytest.raises(ConfigError, match="set twice"):
        CommonSettings.from_options("a:1", {"bootstrap_servers": "b:1"})


@pytest.mark.parametrize(
    ("options", "settings"),
    [(AdminOptions, AdminSettings), (ProducerOptions, ProducerSettings), (ConsumerOptions, ConsumerSettings)],
)
def test_the_option_types_have_exactly_the_settings(options: Any, settings: type[CommonSettings]) -> None:
    names = {underscored(name) for name in settings.names()} - {"bootstrap_servers"}
    assert set(options.__annotations__) == names

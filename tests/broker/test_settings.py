from __future__ import annotations

from typing import Any

import pytest

from stratalog.broker.refused_settings import why_refused
from stratalog.broker.settings import BrokerConfig
from stratalog.errors import ConfigError
from stratalog.settings import as_text
from tests.golden.settings import settings_of_kafka

OTHER_DEFAULTS = {
    "socket.send.buffer.bytes",
    "socket.receive.buffer.bytes",
    "socket.listen.backlog.size",
    "replica.socket.receive.buffer.bytes",
    "queued.max.request.bytes",
    "log.flush.scheduler.interval.ms",  # checked often; flush.ms decides how old unflushed records may be
    "node.id",
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
    "transaction.state.log.min.isr",
}


def test_each_name_is_a_setting_of_its_part() -> None:
    config = BrokerConfig.parse(
        {
            "num.partitions": "4",
            "log.segment.bytes": 4096,
            "max.open.segments": "10",
            "group.max.size": "3",
        }
    )
    assert config.num_partitions == 4
    assert config.topics.log_segment_bytes == config.log_defaults.segment_bytes == 4096
    assert config.directory.max_open_segments == 10
    assert config.groups.group_max_size == 3
    assert config.explicit == {
        "num.partitions": "4",
        "log.segment.bytes": "4096",
        "max.open.segments": "10",
        "group.max.size": "3",
    }


def test_every_broker_setting_of_kafka_is_accepted_or_refused_by_name() -> None:
    known = set(BrokerConfig().all_settings())
    for name in settings_of_kafka("broker"):
        assert (name in known) != (why_refused(name) is not None) or name == "broker.id", name


def test_defaults_and_types_are_kafkas() -> None:
    kafkas = settings_of_kafka("broker")
    for described in BrokerConfig.all_described():
        if described.name in kafkas:
            assert described.values.type.name == kafkas[described.name]["type"], described.name
            if described.name not in OTHER_DEFAULTS:
                assert as_text(described.default) == kafkas[described.name]["default"], described.name


def test_only_listed_settings_are_unknown_to_kafka() -> None:
    ours = {described.name for described in BrokerConfig.all_described()} - set(settings_of_kafka("broker"))
    assert ours == {
        "max.open.segments",
        "stratalog.max.coordinator.state.bytes",
        "stratalog.max.partitions",
        "stratalog.max.producer.ids.per.partition",
        "zookeeper.connect",
        "zookeeper.connection.timeout.ms",
        "zookeeper.session.timeout.ms",
    }


def test_dynamic_settings_are_those_of_kafka() -> None:
    kafkas = settings_of_kafka("broker")
    here = {described.name for described in BrokerConfig.all_described() if described.dynamic}
    ours = {"stratalog.max.coordinator.state.bytes"}
    assert here - {name for name, described in kafkas.items() if not described["read_only"]} == ours


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num.partition": 1}, "'num.partition' is not a setting of a broker; did you mean num.partitions?"),
        ({"qqqq": 1}, "'qqqq' is not a setting of a broker; docs/settings.md lists"),
        ({"zookeeper.connect": "x"}, "zookeeper.connect is 'x', and 'x' is not HOST:PORT; it must be like zk1:2181"),
        ({"zookeeper.connect": "a:1,b:0/c"}, "zookeeper.connect is 'a:1,b:0/c', and 'b:0' is not HOST:PORT"),
        ({"process.roles": "broker"}, "process.roles can't be set: the process is both broker and controller"),
        ({"log.dirs": "/data"}, "log.dirs can't be set: set the data directory with --data-dir"),
        ({"listeners": "x"}, "listeners can't be set: set the address with --listen HOST:PORT"),
        ({"ssl.keystore.location": "x"}, "ssl.keystore.location can't be set: TLS, SASL, ACLs"),
        ({"log.cleaner.threads": 0}, "log.cleaner.threads is 0; it must lie between 1 and"),
        ({"log.cleaner.io.buffer.load.factor": "x"}, "log.cleaner.io.buffer.load.factor is 'x'; it must be a number"),
        ({"num.io.threads": 8}, "num.io.threads can't be set: requests are served by one event loop"),
        ({"default.replication.factor": 0}, "default.replication.factor is 0; it must lie between 1 and 32767"),
        ({"default.replication.factor": 3}, "default.replication.factor is 3; it must be 1: there is one broker"),
        ({"offsets.topic.replication.factor": 0}, "offsets.topic.replication.factor is 0; it must lie between 1 and"),
        ({"log.cleanup.policy": "compacted"}, "log.cleanup.policy is 'compacted'; it must be one of: delete, compact"),
        ({"broker.id": 1, "node.id": 2}, "broker.id is 1, but node.id is 2; set only one of them"),
        ({"queued.max.request.bytes": 1000}, "queued.max.request.bytes is 1000, less than socket.request.max.bytes"),
        ({"socket.send.buffer.bytes": 0}, "socket.send.buffer.bytes is 0; it must be 1 or more, or -1"),
        ({"group.min.session.timeout.ms": 0}, "group.min.session.timeout.ms is 0"),
        ({"fetch.max.bytes": 1023}, "fetch.max.bytes is 1023; it must lie between 1024 and"),
    ],
)
def test_value_that_is_not_valid_is_refused_with_the_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.parse(settings)
    assert str(caught.value).startswith(message)


def test_old_name_of_the_node_id_is_accepted() -> None:
    assert BrokerConfig.parse({"broker.id": "3"}).node_id == 3
    assert BrokerConfig.parse({"broker.id": "3", "node.id": 3}).node_id == 3


@pytest.mark.parametrize(
    ("settings", "host", "port"),
    [
        ("PLAINTEXT://broker.example:9092", "broker.example", 9092),
        ("plaintext://10.0.0.1:1", "10.0.0.1", 1),
        ("PLAINTEXT://[::1]:9092", "::1", 9092),
    ],
)
def test_advertised_address(settings: str, host: str, port: int) -> None:
    assert BrokerConfig.parse({"advertised.listeners": settings}).advertised_address == (host, port)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("broker:9092", "must be one address like PLAINTEXT://host:9092"),
        ("PLAINTEXT://a:1,PLAINTEXT://b:2", "must be one address"),
        ("SSL://a:9092", "only PLAINTEXT is supported"),
        ("PLAINTEXT://0.0.0.0:9092", "clients can't connect to '0.0.0.0'"),
        ("PLAINTEXT://:9092", "clients can't connect to ''"),
        ("PLAINTEXT://a:0", "the port must be 1 to 65535"),
        ("PLAINTEXT://a:65536", "the port must be 1 to 65535"),
        (5, "must be like PLAINTEXT://host:9092"),
    ],
)
def test_advertised_address_that_is_not_valid_is_refused(settings: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        BrokerConfig.parse({"advertised.listeners": settings})
    assert str(caught.value).startswith("advertised.listeners is ")


def test_no_advertised_address_is_the_default() -> None:
    assert BrokerConfig().advertised_address is None
    assert BrokerConfig.parse({"advertised.listeners": ""}).advertised_address is None


def test_override_changes_the_parts_and_keeps_the_explicit_settings() -> None:
    config = BrokerConfig.parse({"num.partitions": 2, "group.max.size": 5})
    changed = config.override({"max.connections": "7", "log.retention.ms": "9"})
    assert (changed.num_partitions, changed.groups.group_max_size) == (2, 5)
    assert (changed.max_connections, changed.log_defaults.retention_ms) == (7, 9)
    assert changed.explicit == config.explicit
    assert config.log_defaults.retention_ms == 604_800_000
    with pytest.raises(ConfigError, match="did you mean"):
        config.override({"max.connection": 1})

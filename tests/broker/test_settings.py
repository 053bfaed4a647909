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
    "queued.max.request.bytes",
    "log.flush.scheduler.interval.ms",  # looked at often; flush.ms says how old what is not flushed may be
    "node.id",
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
    "transaction.state.log.min.isr",
}


def test_each_name_goes_to_its_part() -> None:
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
    assert config.given == {
        "num.partitions": "4",
        "log.segment.bytes": "4096",
        "max.open.segments": "10",
        "group.max.size": "3",
    }


def test_every_setting_of_kafkas_broker_is_taken_or_refused_by_name() -> None:
    known = set(BrokerConfig().all_settings())
    for name in settings_of_kafka("broker"):
        assert (name in known) != (why_refused(name) is not None) or name == "broker.id", name


def test_defaults_and_types_are_kafkas() -> None:
    kafkas = settings_of_kafka("broker")
    for one in BrokerConfig.all_described():
        if one.name in kafkas:
            assert one.values.type.name == kafkas[one.name]["type"], one.name
            if one.name not in OTHER_DEFAULTS:
                assert as_text(one.default) == kafkas[one.name]["default"], one.name


def test_settings_of_our_own_have_names_of_our_own() -> None:
    ours = {one.name for one in BrokerConfig.all_described()} - set(settings_of_kafka("broker"))
    assert ours == {
        "max.open.segments",
        "stratalog.max.coordinator.state.bytes",
        "stratalog.max.partitions",
        "stratalog.max.producer.ids.per.partition",
    }


def test_what_can_be_changed_at_run_time_in_kafka_is_what_can_be_here() -> None:
    kafkas = settings_of_kafka("broker")
    here = {one.name for one in BrokerConfig.all_described() if one.dynamic}
    ours = {"stratalog.max.coordinator.state.bytes"}
    assert here - {name for name, one in kafkas.items() if not one["read_only"]} == ours


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num.partition": 1}, "'num.partition' is not a setting of a broker; did you mean num.partitions?"),
        ({"qqqq": 1}, "'qqqq' is not a setting of a broker; docs/settings.md lists"),
        ({"zookeeper.connect": "x"}, "zookeeper.connect can't be set: there is no ZooKeeper"),
        ({"process.roles": "broker"}, "process.roles can't be set: this process is broker and controller in one"),
        ({"log.dirs": "/data"}, "log.dirs can't be set: the data directory is given as --data-dir"),
        ({"listeners": "x"}, "listeners can't be set: the address is given as --listen HOST:PORT"),
        ({"ssl.keystore.location": "x"}, "ssl.keystore.location can't be set: TLS, SASL, ACLs"),
        ({"log.cleaner.threads": 0}, "log.cleaner.threads is 0; it must lie between 1 and"),
        ({"log.cleaner.io.buffer.load.factor": "x"}, "log.cleaner.io.buffer.load.factor is 'x'; it must be a number"),
        ({"num.io.threads": 8}, "num.io.threads can't be set: requests are served by one event loop"),
        ({"default.replication.factor": 3}, "default.replication.factor is 3; it must be 1: this broker is alone"),
        ({"offsets.topic.replication.factor": 0}, "offsets.topic.replication.factor is 0; it must lie between 1 and"),
        ({"log.cleanup.policy": "compacted"}, "log.cleanup.policy is 'compacted'; it must be one of: delete, compact"),
        ({"broker.id": 1, "node.id": 2}, "broker.id is 1 and node.id is 2: give one, or the same"),
        ({"queued.max.request.bytes": 1000}, "queued.max.request.bytes is 1000, less than socket.request.max.bytes"),
        ({"socket.send.buffer.bytes": 0}, "socket.send.buffer.bytes is 0; it must be 1 or more, or -1"),
        ({"group.min.session.timeout.ms": 0}, "group.min.session.timeout.ms is 0"),
        ({"fetch.max.bytes": 1023}, "fetch.max.bytes is 1023; it must lie between 1024 and"),
    ],
)
def test_what_is_wrong_is_said_with_the_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.parse(given)
    assert str(caught.value).startswith(message)


def test_old_name_of_the_brokers_number_is_known() -> None:
    assert BrokerConfig.parse({"broker.id": "3"}).node_id == 3
    assert BrokerConfig.parse({"broker.id": "3", "node.id": 3}).node_id == 3


@pytest.mark.parametrize(
    ("given", "host", "port"),
    [
        ("PLAINTEXT://broker.example:9092", "broker.example", 9092),
        ("plaintext://10.0.0.1:1", "10.0.0.1", 1),
        ("PLAINTEXT://[::1]:9092", "::1", 9092),
    ],
)
def test_advertised_address(given: str, host: str, port: int) -> None:
    assert BrokerConfig.parse({"advertised.listeners": given}).advertised_address == (host, port)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("broker:9092", "must be one address like PLAINTEXT://host:9092"),
        ("PLAINTEXT://a:1,PLAINTEXT://b:2", "must be one address"),
        ("SSL://a:9092", "only PLAINTEXT is served"),
        ("PLAINTEXT://0.0.0.0:9092", "clients can't connect to '0.0.0.0'"),
        ("PLAINTEXT://:9092", "clients can't connect to ''"),
        ("PLAINTEXT://a:0", "a port is 1 to 65535"),
        ("PLAINTEXT://a:65536", "a port is 1 to 65535"),
        (5, "must be like PLAINTEXT://host:9092"),
    ],
)
def test_advertised_address_that_is_none_is_refused(given: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        BrokerConfig.parse({"advertised.listeners": given})
    assert str(caught.value).startswith("advertised.listeners is ")


def test_nothing_advertised_is_the_default() -> None:
    assert BrokerConfig().advertised_address is None
    assert BrokerConfig.parse({"advertised.listeners": ""}).advertised_address is None


def test_override_goes_to_the_parts_and_keeps_what_was_given() -> None:
    config = BrokerConfig.parse({"num.partitions": 2, "group.max.size": 5})
    changed = config.override({"max.connections": "7", "log.retention.ms": "9"})
    assert (changed.num_partitions, changed.groups.group_max_size) == (2, 5)
    assert (changed.max_connections, changed.log_defaults.retention_ms) == (7, 9)
    assert changed.given == config.given
    assert config.log_defaults.retention_ms == 604_800_000
    with pytest.raises(ConfigError, match="did you mean"):
        config.override({"max.connection": 1})

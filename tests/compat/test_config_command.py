"""Kafka's ConfigCommand against our broker: settings are shown and changed as its users know it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.process import BrokerProcess
from tests.compat.jvm import run_tool, run_tool_or_fail
from tests.compat.kafka_python import KafkaAdminClient

pytestmark = pytest.mark.compat

TOPIC = ("--entity-type", "topics", "--entity-name", "events")
BROKER = ("--entity-type", "brokers", "--entity-name", "1")
ALL_BROKERS = ("--entity-type", "brokers", "--entity-default")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data: Path = tmp_path_factory.mktemp("broker") / "data"
    with BrokerProcess(data, {"log.retention.hours": 24}) as running:
        admin = KafkaAdminClient(bootstrap_servers=running.address)
        admin.create_topics({"events": {"num_partitions": 2, "replication_factor": 1}})
        admin.close()
        yield running


def configs(broker: BrokerProcess, *arguments: str) -> list[str]:
    output = run_tool_or_fail("kafka.admin.ConfigCommand", ["--bootstrap-server", broker.address, *arguments])
    return [line.strip() for line in output.stdout.decode().splitlines() if line.strip()]


def refused(broker: BrokerProcess, *arguments: str) -> str:
    output = run_tool("kafka.admin.ConfigCommand", ["--bootstrap-server", broker.address, *arguments])
    assert output.exit_code != 0
    return output.stderr


def test_topic_is_changed_shown_and_changed_back(broker: BrokerProcess) -> None:
    configs(broker, "--alter", *TOPIC, "--add-config", "retention.ms=5000,max.message.bytes=2000")
    assert configs(broker, "--describe", *TOPIC)[1:] == [
        "max.message.bytes=2000 sensitive=false synonyms="
        "{DYNAMIC_TOPIC_CONFIG:max.message.bytes=2000, DEFAULT_CONFIG:message.max.bytes=1048588}",
        "retention.ms=5000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=5000, "
        "STATIC_BROKER_CONFIG:log.retention.hours=24, DEFAULT_CONFIG:log.retention.hours=168}",
    ]
    configs(broker, "--alter", *TOPIC, "--delete-config", "retention.ms,max.message.bytes")
    assert configs(broker, "--describe", *TOPIC) == ["Dynamic configs for topic events are:"]
    assert len(configs(broker, "--describe", "--all", *TOPIC)) == 34


def test_config_command_prints_the_reason_of_a_refusal(broker: BrokerProcess) -> None:
    message = refused(broker, "--alter", *TOPIC, "--add-config", "cleanup.policy=compacted")
    assert "InvalidConfigurationException: cleanup.policy is 'compacted'; it must be one of: delete, compact" in message
    message = refused(broker, "--alter", *BROKER, "--add-config", "num.partitions=3")
    assert "InvalidRequestException: num.partitions can't be changed while the broker runs" in message


def test_broker_and_the_default_for_all_are_changed_and_shown(broker: BrokerProcess) -> None:
    configs(broker, "--alter", *ALL_BROKERS, "--add-config", "log.retention.ms=777000")
    configs(broker, "--alter", *BROKER, "--add-config", "log.retention.ms=888000")
    assert configs(broker, "--describe", *ALL_BROKERS)[1:] == [
        "log.retention.ms=777000 sensitive=false synonyms={DYNAMIC_DEFAULT_BROKER_CONFIG:log.retention.ms=777000}"
    ]
    (line,) = configs(broker, "--describe", *BROKER)[1:]
    assert line.startswith(
        "log.retention.ms=888000 sensitive=false synonyms={DYNAMIC_BROKER_CONFIG:log.retention.ms=888000"
    )
    for resource in (ALL_BROKERS, BROKER):
        configs(broker, "--alter", *resource, "--delete-config", "log.retention.ms")
        assert len(configs(broker, "--describe", *resource)) == 1

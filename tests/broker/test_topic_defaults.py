from __future__ import annotations

from typing import Any

import pytest

from stratalog.broker.settings import BrokerConfig
from stratalog.broker.topic_defaults import SYNONYMS, TOPIC_SETTINGS, TopicDefaults, topic_config
from stratalog.errors import ConfigError
from stratalog.storage import LogConfig
from tests.golden.settings import settings_of_kafka

HOUR = 3_600_000


def defaults_of(**settings: Any) -> LogConfig:
    return BrokerConfig.parse({name.replace("_", "."): value for name, value in settings.items()}).log_defaults


def test_topic_defaults_are_the_defaults_of_a_log() -> None:
    assert TopicDefaults().log_config() == LogConfig()


def test_every_topic_setting_has_a_default_of_the_broker() -> None:
    assert set(SYNONYMS) == TOPIC_SETTINGS
    names = {synonym.name for chain in SYNONYMS.values() for synonym in chain}
    assert names | {"producer.id.expiration.ms"} == set(TopicDefaults.names())
    assert names <= set(settings_of_kafka("broker"))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"log_retention_hours": 2}, 2 * HOUR),
        ({"log_retention_hours": 2, "log_retention_minutes": 3}, 180_000),
        ({"log_retention_hours": 2, "log_retention_minutes": 3, "log_retention_ms": 4}, 4),
        ({"log_retention_ms": -1}, -1),
        ({"log_retention_minutes": -1, "log_retention_hours": 5}, -1),
        ({"log_retention_hours": -1}, -1),
    ],
)
def test_setting_with_the_finer_unit_takes_precedence(settings: dict[str, Any], expected: int) -> None:
    assert defaults_of(**settings).retention_ms == expected


@pytest.mark.parametrize("name", ["log_retention_hours", "log_retention_minutes"])
def test_retention_of_zero_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="is 0; it must be 1 or more, or -1"):
        defaults_of(**{name: 0})


def test_roll_and_jitter_can_be_set_in_hours() -> None:
    config = defaults_of(log_roll_hours=3, log_roll_jitter_hours=1)
    assert (config.segment_ms, config.segment_jitter_ms) == (3 * HOUR, HOUR)
    config = defaults_of(log_roll_hours=3, log_roll_ms=5, log_roll_jitter_hours=1, log_roll_jitter_ms=2)
    assert (config.segment_ms, config.segment_jitter_ms) == (5, 2)


def test_flush_scheduler_interval_is_the_default_of_flush_ms() -> None:
    assert defaults_of().flush_ms == 2**63 - 1
    assert defaults_of(log_flush_scheduler_interval_ms=2000).flush_ms == 2000
    assert defaults_of(log_flush_scheduler_interval_ms=2000, log_flush_interval_ms=500).flush_ms == 500


@pytest.mark.parametrize(
    ("broker_setting", "value", "topic_setting"),
    [
        ("log.segment.bytes", 5000, "segment.bytes"),
        ("log.index.size.max.bytes", 1024, "segment.index.bytes"),
        ("log.index.interval.bytes", 7, "index.interval.bytes"),
        ("log.preallocate", True, "preallocate"),
        ("message.max.bytes", 777, "max.message.bytes"),
        ("log.message.timestamp.type", "LogAppendTime", "message.timestamp.type"),
        ("log.message.timestamp.before.max.ms", 7, "message.timestamp.before.max.ms"),
        ("log.message.timestamp.after.max.ms", 7, "message.timestamp.after.max.ms"),
        ("compression.type", "zstd", "compression.type"),
        ("compression.gzip.level", 2, "compression.gzip.level"),
        ("compression.lz4.level", 2, "compression.lz4.level"),
        ("compression.zstd.level", 2, "compression.zstd.level"),
        ("log.cleanup.policy", (), "cleanup.policy"),
        ("log.retention.bytes", 7, "retention.bytes"),
        ("log.segment.delete.delay.ms", 7, "file.delete.delay.ms"),
        ("log.flush.interval.messages", 7, "flush.messages"),
        ("min.insync.replicas", 2, "min.insync.replicas"),
        ("unclean.leader.election.enable", True, "unclean.leader.election.enable"),
        ("producer.id.expiration.ms", 7, "producer.id.expiration.ms"),
    ],
)
def test_each_broker_default_is_a_setting_of_the_log(broker_setting: str, value: object, topic_setting: str) -> None:
    config = BrokerConfig.parse({broker_setting: value}).log_defaults
    assert config == LogConfig.parse({topic_setting: value})


def test_topics_own_settings_take_precedence() -> None:
    defaults = LogConfig(retention_ms=5, segment_bytes=4096)
    assert topic_config(defaults, {"retention.ms": "7"}) == LogConfig(retention_ms=7, segment_bytes=4096)


def test_broker_setting_is_refused_for_a_topic() -> None:
    with pytest.raises(ConfigError, match=r"producer\.id\.expiration\.ms is not a setting of a topic"):
        topic_config(LogConfig(), {"producer.id.expiration.ms": "7"})

from __future__ import annotations

import pytest

from stratalog.broker.groups.config import GroupConfig
from stratalog.errors import ConfigError


def test_defaults_are_kafkas() -> None:
    assert GroupConfig().settings() == {
        "group.min.session.timeout.ms": 6_000,
        "group.max.session.timeout.ms": 1_800_000,
        "group.initial.rebalance.delay.ms": 3_000,
        "group.max.size": 2**31 - 1,
        "group.consumer.session.timeout.ms": 45_000,
        "group.consumer.heartbeat.interval.ms": 5_000,
        "group.consumer.min.session.timeout.ms": 45_000,
        "group.consumer.max.session.timeout.ms": 60_000,
        "group.consumer.min.heartbeat.interval.ms": 5_000,
        "group.consumer.max.heartbeat.interval.ms": 15_000,
        "group.consumer.max.size": 2**31 - 1,
        "group.consumer.assignors": ("uniform", "range"),
        "group.consumer.migration.policy": "bidirectional",
        "offset.metadata.max.bytes": 4_096,
        "offsets.retention.minutes": 10_080,
        "offsets.retention.check.interval.ms": 600_000,
        "offsets.topic.num.partitions": 50,
        "offsets.topic.segment.bytes": 104_857_600,
        "stratalog.max.coordinator.state.bytes": 536_870_912,
    }


def test_settings_are_parsed_from_text() -> None:
    config = GroupConfig.parse({"group.max.size": "7", "group.consumer.assignors": "range"})
    assert (config.group_max_size, config.group_consumer_assignors) == (7, ("range",))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"group.min.session.timeout.ms": 9_000, "group.max.session.timeout.ms": 8_999}, "must be at least"),
        ({"group.consumer.session.timeout.ms": 5_000}, "must be more than"),
        ({"group.consumer.assignors": "sticky"}, "must be one of: uniform, range"),
        ({"group.consumer.assignors": ""}, "at least 1"),
        ({"group.max.size": 0}, "group.max.size is 0"),
        ({"offsets.topic.num.partitions": 0}, "offsets.topic.num.partitions is 0"),
    ],
)
def test_settings_that_are_not_valid_are_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        GroupConfig.parse(settings)

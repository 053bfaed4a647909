from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from stratalog.errors import ConfigError
from stratalog.storage import DirectoryConfig, LogConfig
from tests.golden.settings import settings_of_kafka

LONG_MAX = 2**63 - 1


def test_every_topic_setting_of_kafka_is_accepted_or_refused_with_kafkas_default() -> None:
    defaults = LogConfig().texts() | {name: setting.default for name, setting in LogConfig.refused().items()}
    for name, theirs in settings_of_kafka("topic").items():
        assert defaults.get(name) == theirs["default"], name


def test_types_are_kafkas() -> None:
    types = {setting.name: setting.values.type for setting in LogConfig.described()}
    types |= {name: setting.type for name, setting in LogConfig.refused().items()}
    for name, theirs in settings_of_kafka("topic").items():
        assert types[name].name == theirs["type"], name


def test_only_listed_settings_are_unknown_to_kafka() -> None:
    ours = set(LogConfig.names()) - set(settings_of_kafka("topic"))
    assert ours == {"producer.id.expiration.ms"}  # a broker setting in Kafka; here, a log can be used without a broker


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("remote.storage.enable", "true", "tiered storage is not available yet"),
        ("local.retention.ms", "1000", "tiered storage is not available yet"),
        ("leader.replication.throttled.replicas", "*", "not throttled yet"),
        ("message.format.version", "2.0", "Kafka 4 has removed it"),
        ("message.downconversion.enable", "true", "Kafka 4 has removed it"),
        ("message.timestamp.difference.max.ms", "1", r"use message\.timestamp\.before\.max\.ms"),
    ],
)
def test_unsupported_setting_is_refused_by_name_with_the_reason(name: str, value: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name} .*: .*{reason}"):
        LogConfig.parse({name: value})


def test_refused_setting_is_accepted_with_its_default() -> None:
    holding = {name: setting.default for name, setting in LogConfig.refused().items() if setting.default is not None}
    assert holding["remote.storage.enable"] == "false"
    assert LogConfig.parse(holding) == LogConfig()


def test_override_changes_only_the_given_settings() -> None:
    base = LogConfig(segment_bytes=4096, retention_ms=5)
    assert base.override({"retention.ms": "7"}) == LogConfig(segment_bytes=4096, retention_ms=7)
    with pytest.raises(ConfigError, match=r"retention\.ms is -2"):
        base.override({"retention.ms": "-2"})


@pytest.mark.parametrize("level", [-1, 1, 9])
def test_gzip_has_no_level_0(level: int) -> None:
    assert LogConfig(compression_gzip_level=level).compression_gzip_level == level
    with pytest.raises(ConfigError, match=r"compression\.gzip\.level is 0; it must be 1 to 9, or -1"):
        LogConfig(compression_gzip_level=0)


def test_text_and_numbers_are_parsed_to_the_same_settings() -> None:
    parsed = LogConfig.parse(
        {"segment.bytes": " 4096 ", "retention.ms": "-1", "message.timestamp.type": "LogAppendTime"}
    )
    assert parsed == LogConfig(segment_bytes=4096, retention_ms=-1, message_timestamp_type="LogAppendTime")
    assert LogConfig.parse(parsed.settings()) == parsed


def test_misspelled_name_gets_a_suggestion() -> None:
    with pytest.raises(ConfigError, match=r"'segment\.byte' is not a setting of a log; did you mean segment\.bytes\?"):
        LogConfig.parse({"segment.byte": 1})


def test_unknown_name_without_a_similar_one_gets_the_list() -> None:
    with pytest.raises(ConfigError, match=r"'zzz' .* known are: segment\.bytes, segment\.ms"):
        LogConfig.parse({"zzz": 1})


def test_setting_of_a_directory_is_refused_for_a_log() -> None:
    with pytest.raises(ConfigError, match=r"max\.open\.segments can.t be set: it is a setting of a data directory"):
        LogConfig.parse({"max.open.segments": 3})
    assert DirectoryConfig.parse({"max.open.segments": "3"}).max_open_segments == 3


@pytest.mark.parametrize("value", ["", "1 MB", "12.0", 12.0, True, None, b"12", "0x10", "1_000", "٣"])
def test_ill_typed_number_is_refused_with_name_and_value(value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        LogConfig.parse({"segment.bytes": value})
    assert str(caught.value).startswith(f"segment.bytes is {value!r}; it must be a whole number")
    assert caught.value.code == 40


@pytest.mark.parametrize(
    ("name", "smallest", "largest"),
    [
        ("segment.bytes", 256, 2**31 - 1),
        ("segment.ms", 1, LONG_MAX),
        ("segment.jitter.ms", 0, LONG_MAX),
        ("segment.index.bytes", 64, 2**31 - 1),
        ("index.interval.bytes", 0, 2**31 - 1),
        ("max.message.bytes", 0, 2**31 - 1),
        ("retention.ms", -1, LONG_MAX),
        ("retention.bytes", -1, LONG_MAX),
        ("file.delete.delay.ms", 0, LONG_MAX),
        ("flush.messages", 1, LONG_MAX),
        ("flush.ms", 0, LONG_MAX),
        ("message.timestamp.before.max.ms", 0, LONG_MAX),
        ("message.timestamp.after.max.ms", 0, LONG_MAX),
        ("compression.lz4.level", 1, 17),
        ("compression.zstd.level", -131072, 22),
        ("min.insync.replicas", 1, 2**31 - 1),
    ],
)
def test_limits_of_a_range_are_accepted_and_values_outside_refused(name: str, smallest: int, largest: int) -> None:
    for value in (smallest, largest):
        assert LogConfig.parse({name: str(value)}).settings()[name] == value
    for value in (smallest - 1, largest + 1):
        with pytest.raises(ConfigError, match=f"{name} is {value}; it must lie between {smallest} and {largest}"):
            LogConfig.parse({name: value})


@pytest.mark.parametrize("name", DirectoryConfig.names())
def test_housekeeping_intervals_are_positive(name: str) -> None:
    assert DirectoryConfig.parse({name: 1}).settings()[name] == 1
    with pytest.raises(ConfigError, match=f"{name} is 0"):
        DirectoryConfig.parse({name: 0})


@pytest.mark.parametrize(
    ("name", "value"),
    [("message.timestamp.type", "createtime"), ("message.timestamp.type", 1), ("compression.type", "none")],
)
def test_unknown_choice_is_refused_with_the_valid_ones(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name} is {value!r}; it must be one of: "):
        LogConfig.parse({name: value})


def test_python_arguments_are_checked_like_text() -> None:
    with pytest.raises(ConfigError, match=r"segment\.bytes is 255"):
        LogConfig(segment_bytes=255)


def test_settings_do_not_change_under_a_log() -> None:
    with pytest.raises(FrozenInstanceError):
        LogConfig().segment_bytes = 4096  # type: ignore[misc]

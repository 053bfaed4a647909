from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from stratalog.errors import ConfigError
from stratalog.storage import DirectoryConfig, LogConfig

LONG_MAX = 2**63 - 1


def test_defaults_are_kafkas() -> None:
    assert LogConfig().settings() == {
        "segment.bytes": 1073741824,
        "segment.ms": 604800000,
        "segment.jitter.ms": 0,
        "segment.index.bytes": 10485760,
        "index.interval.bytes": 4096,
        "max.message.bytes": 1048588,
        "message.timestamp.type": "CreateTime",
        "cleanup.policy": "delete",
        "retention.ms": 604800000,
        "retention.bytes": -1,
        "file.delete.delay.ms": 60000,
        "producer.id.expiration.ms": 86400000,
        "flush.messages": LONG_MAX,
        "flush.ms": LONG_MAX,
    }


def test_text_and_numbers_give_the_same_settings() -> None:
    parsed = LogConfig.parse(
        {"segment.bytes": " 4096 ", "retention.ms": "-1", "message.timestamp.type": "LogAppendTime"}
    )
    assert parsed == LogConfig(segment_bytes=4096, retention_ms=-1, message_timestamp_type="LogAppendTime")
    assert LogConfig.parse(parsed.settings()) == parsed


def test_misspelled_name_gets_a_suggestion() -> None:
    with pytest.raises(ConfigError, match=r"'segment\.byte' is not a setting of a log; did you mean segment\.bytes\?"):
        LogConfig.parse({"segment.byte": 1})


def test_name_like_no_other_gets_the_list() -> None:
    with pytest.raises(ConfigError, match=r"'zzz' .* known are: segment\.bytes, segment\.ms"):
        LogConfig.parse({"zzz": 1})


def test_setting_of_a_directory_is_none_of_a_log() -> None:
    with pytest.raises(ConfigError, match=r"max\.open\.segments can.t be set: it belongs to a data directory"):
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
    ],
)
def test_range_ends_are_taken_and_what_lies_beyond_is_refused(name: str, smallest: int, largest: int) -> None:
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
    [("message.timestamp.type", "createtime"), ("message.timestamp.type", 1), ("cleanup.policy", "compact,drop")],
)
def test_unknown_choice_is_refused_with_the_known_ones(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name} is {value!r}; it must be one of: "):
        LogConfig.parse({name: value})


def test_python_arguments_are_checked_like_text() -> None:
    with pytest.raises(ConfigError, match=r"segment\.bytes is 255"):
        LogConfig(segment_bytes=255)


def test_settings_do_not_change_under_a_log() -> None:
    with pytest.raises(FrozenInstanceError):
        LogConfig().segment_bytes = 4096  # type: ignore[misc]

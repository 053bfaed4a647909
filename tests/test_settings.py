from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from stratalog.errors import ConfigError
from stratalog.settings import (
    LONG_MAX,
    Refused,
    Settings,
    ValueType,
    as_text,
    boolean,
    integer,
    list_of,
    nullable,
    one_of,
    setting,
    text,
    unknown_setting,
)


@dataclass(frozen=True, kw_only=True)
class CacheConfig(Settings):
    kind: ClassVar[str] = "a cache"

    cache_max_bytes: int = setting(1024, integer(0, 4096), "room for entries", dynamic=True)
    cache_enable: bool = setting(True, boolean(), "whether there is one")
    cache_kinds: tuple[str, ...] = setting(("hot",), list_of(one_of("hot", "cold"), at_least=1), "what is kept")
    cache_peer: str | None = setting(None, nullable(text()), "where to look next")
    made_by: str = field(default="test")  # not a setting

    @classmethod
    def refused(cls) -> Mapping[str, Refused]:
        return {"cache.shards": Refused("there is one", "1", ValueType.INT), "cache.color": Refused("it is grey")}


def test_python_names_have_underscores_where_settings_have_dots() -> None:
    parsed = CacheConfig.parse({"cache.max.bytes": "7", "cache.kinds": "cold, hot", "cache.peer": "there"})
    assert parsed == CacheConfig(cache_max_bytes=7, cache_kinds=("cold", "hot"), cache_peer="there")
    assert CacheConfig.names() == ["cache.max.bytes", "cache.enable", "cache.kinds", "cache.peer"]


def test_settings_parsed_from_texts_are_equal() -> None:
    config = CacheConfig(cache_enable=False, cache_kinds=("cold", "hot"))
    assert config.texts() == {
        "cache.max.bytes": "1024",
        "cache.enable": "false",
        "cache.kinds": "cold,hot",
        "cache.peer": None,
    }
    assert CacheConfig.parse(config.texts()) == config


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cache.max.byte": 1}, "'cache.max.byte' is not a setting of a cache; did you mean cache.max.bytes?"),
        ({"zzz": 1}, "'zzz' is not a setting of a cache; known are: cache.max.bytes, cache.enable"),
        ({"made.by": "me"}, "'made.by' is not a setting of a cache"),
        ({"cache.max.bytes": 4097}, "cache.max.bytes is 4097; it must lie between 0 and 4096"),
        ({"cache.max.bytes": "1e3"}, "cache.max.bytes is '1e3'; it must be a whole number"),
        ({"cache.enable": "yes"}, "cache.enable is 'yes'; it must be true or false"),
        ({"cache.enable": 1}, "cache.enable is 1; it must be true or false"),
        ({"cache.kinds": "hot,warm"}, "cache.kinds is 'warm'; it must be one of: hot, cold"),
        ({"cache.kinds": ""}, "cache.kinds has 0 items; it must have at least 1"),
        ({"cache.kinds": "hot,hot"}, "cache.kinds is 'hot,hot'; it must not have the same item twice"),
        ({"cache.kinds": 3}, "cache.kinds is 3; it must be a list, with commas between the items"),
        ({"cache.peer": 3}, "cache.peer is 3; it must be text"),
        ({"cache.color": "red"}, "cache.color can't be set: it is grey"),
        ({"cache.shards": "2"}, "cache.shards can't be set: there is one"),
    ],
)
def test_value_that_is_not_valid_is_refused_with_the_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        CacheConfig.parse(settings)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("value", ["TRUE", "true", " True ", True])
def test_booleans_are_parsed_as_in_kafka(value: object) -> None:
    assert CacheConfig.parse({"cache.enable": value}).cache_enable is True


@pytest.mark.parametrize("value", ["", None])
def test_none_and_empty_text_mean_not_set(value: object) -> None:
    assert CacheConfig.parse({"cache.peer": value}).cache_peer is None


def test_refused_setting_is_accepted_with_the_value_in_effect() -> None:
    assert CacheConfig.parse({"cache.shards": 1}) == CacheConfig()
    assert CacheConfig().override({"cache.shards": " 1 "}) == CacheConfig()


def test_override_keeps_all_other_fields() -> None:
    config = CacheConfig(cache_max_bytes=5, made_by="me").override({"cache.enable": "false"})
    assert config == CacheConfig(cache_max_bytes=5, made_by="me", cache_enable=False)


def test_described_has_everything_except_the_value() -> None:
    described = CacheConfig.described()[0]
    assert (described.name, described.default, described.doc, described.dynamic) == (
        "cache.max.bytes",
        1024,
        "room for entries",
        True,
    )
    assert (described.values.type, described.values.allowed) == (ValueType.INT, "0 to 4096")


def test_maximum_of_a_number_decides_its_type() -> None:
    assert integer(0).type is ValueType.LONG
    assert integer(0, LONG_MAX).type is ValueType.LONG
    assert integer(0, 2**31 - 1).type is ValueType.INT


def test_long_lists_of_names_are_left_to_the_documentation() -> None:
    error = unknown_setting("zzz", "a broker", [f"some.setting.{number}" for number in range(41)])
    assert str(error) == "'zzz' is not a setting of a broker; docs/settings.md lists all settings"


@pytest.mark.parametrize(("value", "text"), [(None, None), (True, "true"), (("a", "b"), "a,b"), ((), ""), (5, "5")])
def test_values_as_text(value: object, text: str | None) -> None:
    assert as_text(value) == text

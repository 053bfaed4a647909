"""Settings as DescribeConfigs and CreateTopics show them: value, where it comes from, type, and what it is for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any

from stratalog.broker.groups.group_settings import BROKER_SETTING, EffectiveGroupSettings, OwnGroupConfig
from stratalog.broker.live_settings import Layers
from stratalog.broker.requests import Reply
from stratalog.broker.settings import BrokerConfig
from stratalog.broker.topic_defaults import SYNONYMS, TOPIC_SETTINGS
from stratalog.settings import Described, ValueType, as_text
from stratalog.storage.config import REFUSED, LogConfig


class Source(IntEnum):
    """Kafka's numbers for where a value comes from."""

    TOPIC = 1
    BROKER = 2
    CLUSTER = 3
    GIVEN = 4  # when the broker started
    DEFAULT = 5
    GROUP = 8


# What a broker is told in another way than by settings, and shown as if.
_ELSEWHERE = {
    "listeners": "the address that is listened on; given as --listen",
    "log.dirs": "the data directory; given as --data-dir",
}
_OF_TOPICS = {one.name: one for one in LogConfig.described() if one.name in TOPIC_SETTINGS}
_OF_BROKERS = {one.name: one for one in BrokerConfig.all_described()}
_OF_GROUPS = {one.name: one for one in OwnGroupConfig.described()}


def topic_entries(own: Mapping[str, str], config: LogConfig, layers: Layers) -> list[Reply]:
    """Of a topic that has these settings of its own, and with the broker's defaults these in all."""
    entries = []
    texts = config.texts()
    for name in sorted(_OF_TOPICS.keys() | REFUSED.keys()):
        if name in _OF_TOPICS:
            one = _OF_TOPICS[name]
            synonyms = _own(name, own, texts[name]) + _chain((synonym.name for synonym in SYNONYMS[name]), layers)
            entries.append(_entry(name, texts[name], synonyms, one.values.type, one.doc, read_only=False))
        elif REFUSED[name].default is not None:
            refused = REFUSED[name]
            synonyms = _own(name, own, refused.default)
            doc = f"can't be changed: {refused.reason}"
            entries.append(_entry(name, refused.default, synonyms, refused.type, doc, read_only=True))
    return entries


def broker_entries(config: BrokerConfig, layers: Layers, elsewhere: Mapping[str, str]) -> list[Reply]:
    """Of this broker."""
    values = config.all_settings()
    entries = []
    for name, one in _OF_BROKERS.items():
        value = elsewhere.get(name) if values[name] is None else as_text(values[name])
        entries.append(_broker_entry(one, value, _chain([name], layers)))
    for name, doc in _ELSEWHERE.items():
        synonyms = [_synonym(name, elsewhere[name], Source.GIVEN)]
        entries.append(_entry(name, elsewhere[name], synonyms, ValueType.STRING, doc, read_only=True))
    return sorted(entries, key=lambda entry: str(entry["name"]))


def cluster_entries(layers: Layers) -> list[Reply]:
    """What was changed for all brokers, and nothing else, as Kafka shows it."""
    return [
        _broker_entry(_OF_BROKERS[name], value, [_synonym(name, value, Source.CLUSTER)])
        for name, value in sorted(layers.cluster.items())
    ]


def group_entries(own: Mapping[str, str], effective: EffectiveGroupSettings, layers: Layers) -> list[Reply]:
    """Of a group that has these settings of its own, and with the broker's these in all."""
    entries = []
    for name, value in sorted(effective.texts().items()):
        one = _OF_GROUPS[name]
        synonyms = [_synonym(name, value, Source.GROUP)] if name in own else []
        synonyms += _chain([BROKER_SETTING[name]], layers)
        entries.append(_entry(name, value, synonyms, one.values.type, one.doc, read_only=False))
    return entries


def as_asked(entries: list[Reply], names: Iterable[str] | None, *, synonyms: bool, documentation: bool) -> list[Reply]:
    """Those of these names (all, where none is named), without what was not asked for."""
    wanted = set(names or ())
    return [
        {
            **entry,
            "synonyms": entry["synonyms"] if synonyms else (),
            "documentation": entry["documentation"] if documentation else None,
        }
        for entry in entries
        if not wanted or entry["name"] in wanted
    ]


def _broker_entry(one: Described, value: str | None, synonyms: list[Reply]) -> Reply:
    return _entry(one.name, value, synonyms, one.values.type, one.doc, read_only=not one.dynamic)


def _entry(name: str, value: str | None, synonyms: list[Reply], kind: ValueType, doc: str, *, read_only: bool) -> Reply:
    return {
        "name": name,
        "value": value,
        "read_only": read_only,
        "config_source": synonyms[0]["source"] if synonyms else Source.DEFAULT,
        "is_sensitive": False,
        "synonyms": synonyms,
        "config_type": kind.value,
        "documentation": doc,
    }


def _own(name: str, own: Mapping[str, str], value: str | None) -> list[Reply]:
    return [_synonym(name, value, Source.TOPIC)] if name in own else []


def _chain(names: Iterable[str], layers: Layers) -> list[Reply]:
    """Every place that has a value for these names of a broker's settings, the one that counts first.

    Kafka leaves out what comes before the first of the names, so that a topic's retention.ms that comes from
    log.retention.hours seems to be a default. Here it says where it comes from.
    """
    found = []
    for name in names:
        for layer, source in (
            (layers.broker, Source.BROKER),
            (layers.cluster, Source.CLUSTER),
            (layers.given, Source.GIVEN),
        ):
            if name in layer:
                found.append(_synonym(name, layer[name], source))
        default: Any = _OF_BROKERS[name].default
        if default is not None:
            found.append(_synonym(name, as_text(default), Source.DEFAULT))
    return found


def _synonym(name: str, value: str | None, source: Source) -> Reply:
    return {"name": name, "value": value, "source": source}

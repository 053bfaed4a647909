"""Settings as DescribeConfigs and CreateTopics return them: value, source, type and documentation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any

from stratalog.broker.groups.group_settings import BROKER_SETTING, EffectiveGroupSettings, OwnGroupConfig
from stratalog.broker.live_settings import Layers
from stratalog.broker.requests import Reply
from stratalog.broker.settings import ALIASES, BrokerConfig
from stratalog.broker.topic_defaults import SYNONYMS, TOPIC_SETTINGS
from stratalog.settings import Described, ValueType, as_text
from stratalog.storage.config import REFUSED, LogConfig


class Source(IntEnum):
    """Kafka's numbers for the source of a value."""

    TOPIC = 1
    BROKER = 2
    CLUSTER = 3
    AT_START = 4  # set when the broker started
    DEFAULT = 5
    GROUP = 8


# Options of the command line that are shown as settings.
_ELSEWHERE = {
    "listeners": "the address that the broker listens on; set with --listen",
    "log.dirs": "the data directory; set with --data-dir",
}
_OF_TOPICS = {described.name: described for described in LogConfig.described() if described.name in TOPIC_SETTINGS}
_OF_BROKERS = {described.name: described for described in BrokerConfig.all_described()}
_OF_GROUPS = {described.name: described for described in OwnGroupConfig.described()}


def topic_entries(own: Mapping[str, str], config: LogConfig, layers: Layers) -> list[Reply]:
    """Return the settings of a topic. `own` are the topic's own settings, `config` includes the broker's defaults."""
    entries = []
    texts = config.texts()
    for name in sorted(_OF_TOPICS.keys() | REFUSED.keys()):
        if name in _OF_TOPICS:
            described = _OF_TOPICS[name]
            synonyms = _own(name, own, texts[name]) + _chain((synonym.name for synonym in SYNONYMS[name]), layers)
            entries.append(_entry(name, texts[name], synonyms, described.values.type, described.doc, read_only=False))
        elif REFUSED[name].default is not None:
            refused = REFUSED[name]
            synonyms = _own(name, own, refused.default)
            doc = f"can't be changed: {refused.reason}"
            entries.append(_entry(name, refused.default, synonyms, refused.type, doc, read_only=True))
    return entries


def broker_entries(config: BrokerConfig, layers: Layers, elsewhere: Mapping[str, str]) -> list[Reply]:
    """Return the settings of this broker. `elsewhere` are the values of command line options."""
    values = config.all_settings()
    entries = []
    for name, described in _OF_BROKERS.items():
        value = elsewhere.get(name) if values[name] is None else as_text(values[name])
        entries.append(_broker_entry(described, value, _chain([name], layers)))
    for name, doc in _ELSEWHERE.items():
        synonyms = [_synonym(name, elsewhere[name], Source.AT_START)]
        entries.append(_entry(name, elsewhere[name], synonyms, ValueType.STRING, doc, read_only=True))
    return sorted(entries, key=lambda entry: str(entry["name"]))


def changed_entries(changed: Mapping[str, str], source: Source) -> list[Reply]:
    """Return only settings that were changed while brokers ran: as in Kafka, those of all brokers; and those of another
    broker. Names that only newer brokers know are left out."""
    return [
        _broker_entry(described, value, [_synonym(name, value, source)])
        for name, value in sorted(changed.items())
        if (described := _OF_BROKERS.get(ALIASES.get(name, name))) is not None
    ]


def group_entries(own: Mapping[str, str], effective: EffectiveGroupSettings, layers: Layers) -> list[Reply]:
    """Return the settings of a group. `own` are the group's own settings, `effective` includes the broker's."""
    entries = []
    for name, value in sorted(effective.texts().items()):
        described = _OF_GROUPS[name]
        synonyms = [_synonym(name, value, Source.GROUP)] if name in own else []
        synonyms += _chain([BROKER_SETTING[name]], layers)
        entries.append(_entry(name, value, synonyms, described.values.type, described.doc, read_only=False))
    return entries


def as_asked(entries: list[Reply], names: Iterable[str] | None, *, synonyms: bool, documentation: bool) -> list[Reply]:
    """Return the entries with these names, or all entries without names. Leave out synonyms and documentation that were
    not requested."""
    requested = set(names or ())
    return [
        {
            **entry,
            "synonyms": entry["synonyms"] if synonyms else (),
            "documentation": entry["documentation"] if documentation else None,
        }
        for entry in entries
        if not requested or entry["name"] in requested
    ]


def _broker_entry(described: Described, value: str | None, synonyms: list[Reply]) -> Reply:
    return _entry(
        described.name, value, synonyms, described.values.type, described.doc, read_only=not described.dynamic
    )


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
    """Return every value that is set for these names of broker settings, the one in effect first.

    Kafka leaves out the values before the first of the names, so that a topic's retention.ms that comes from
    log.retention.hours seems to be a default. This function shows the real source.
    """
    synonyms = []
    for name in names:
        for layer, source in (
            (layers.broker, Source.BROKER),
            (layers.cluster, Source.CLUSTER),
            (layers.explicit, Source.AT_START),
        ):
            if name in layer:
                synonyms.append(_synonym(name, layer[name], source))
        default: Any = _OF_BROKERS[name].default
        if default is not None:
            synonyms.append(_synonym(name, as_text(default), Source.DEFAULT))
    return synonyms


def _synonym(name: str, value: str | None, source: Source) -> Reply:
    return {"name": name, "value": value, "source": source}

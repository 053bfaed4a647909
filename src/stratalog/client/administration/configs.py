"""Settings of topics, brokers and groups: DescribeConfigs and IncrementalAlterConfigs. The latter changes only the
settings that a request names."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, Self

from stratalog.client.administration.outcomes import Collected, Outcomes
from stratalog.client.administration.topics import config_text
from stratalog.client.cluster import Cluster
from stratalog.errors import ClientError, ConfigError
from stratalog.protocol.api_keys import ApiKey
from stratalog.settings import ValueType

_MILLISECONDS = {"hours": 3_600_000, "minutes": 60_000}


class ResourceKind(IntEnum):
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigResource(NamedTuple):
    """The topic, broker or group that settings belong to. A broker without a name stands for all brokers."""

    kind: ResourceKind
    name: str

    @classmethod
    def topic(cls, name: str) -> Self:
        return cls(ResourceKind.TOPIC, name)

    @classmethod
    def broker(cls, node_id: int | None = None) -> Self:
        return cls(ResourceKind.BROKER, "" if node_id is None else str(node_id))

    @classmethod
    def group(cls, name: str) -> Self:
        return cls(ResourceKind.GROUP, name)

    def __str__(self) -> str:
        return f"{self.kind.name.lower()} {self.name!r}"


class ConfigSource(IntEnum):
    """The origin of a setting's value."""

    UNKNOWN = 0
    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    name: str
    value: str | None  # None if the setting is not set, or is sensitive
    source: ConfigSource
    is_read_only: bool
    is_sensitive: bool
    type: ValueType | None = None  # None from brokers before Kafka 2.6
    documentation: str | None = None
    default: str | None = None  # Kafka's default; None if the broker does not report it

    @property
    def is_default(self) -> bool:
        return self.source is ConfigSource.DEFAULT


class ConfigOperation(IntEnum):
    SET = 0
    DELETE = 1  # resets the setting to its default
    APPEND = 2  # adds values to a list
    SUBTRACT = 3  # removes values from a list


class ConfigChange(NamedTuple):
    operation: ConfigOperation
    value: object = None


async def describe_configs(
    cluster: Cluster,
    resources: Iterable[ConfigResource],
    names: Iterable[str] | None,
    include_documentation: bool,
    timeout: float | None,
) -> Outcomes[ConfigResource, dict[str, ConfigEntry]]:
    requested = list(dict.fromkeys(resources))
    collected: Collected[ConfigResource, dict[str, ConfigEntry]] = Collected({each: str(each) for each in requested})
    keys = None if names is None else list(names)

    def body(some: list[ConfigResource]) -> dict[str, Any]:
        described = [
            {"resource_type": int(each.kind), "resource_name": each.name, "configuration_keys": keys} for each in some
        ]
        return {"resources": described, "include_synonyms": True, "include_documentation": include_documentation}

    def take(response: Any) -> None:
        for described in response.results:
            entries = {config.name: _entry(config) for config in described.configs}
            collected.take((described.resource_type, described.resource_name), described, entries)  # type: ignore[arg-type]

    await _ask_each(cluster, ApiKey.DESCRIBE_CONFIGS, requested, body, take, collected, timeout)
    return collected.outcomes()


def _entry(config: Any) -> ConfigEntry:
    source = getattr(config, "config_source", ConfigSource.UNKNOWN)
    kind = getattr(config, "config_type", 0)
    return ConfigEntry(
        config.name,
        config.value,
        ConfigSource(source) if source in list(ConfigSource) else ConfigSource.UNKNOWN,
        config.read_only,
        config.is_sensitive,
        ValueType(kind) if kind in [known.value for known in ValueType] else None,
        getattr(config, "documentation", None),
        _default(config),
    )


def _default(config: Any) -> str | None:
    """Return the default of a setting. A broker may report it as a setting with another unit: the default of
    retention.ms as that of log.retention.hours."""
    synonym = next((each for each in getattr(config, "synonyms", ()) if each.source == ConfigSource.DEFAULT), None)
    if synonym is None or synonym.value is None:
        return None
    factor = _MILLISECONDS.get(synonym.name.rpartition(".")[2], 1) if config.name.endswith(".ms") else 1
    return str(int(synonym.value) * factor) if factor > 1 else str(synonym.value)


async def alter_configs(
    cluster: Cluster,
    changes: Mapping[ConfigResource, Mapping[str, object]],
    validate_only: bool,
    timeout: float | None,
) -> Outcomes[ConfigResource, None]:
    collected: Collected[ConfigResource, None] = Collected({resource: str(resource) for resource in changes})
    altered = {
        resource: [_alterable(name, value) for name, value in values.items()] for resource, values in changes.items()
    }

    def body(some: list[ConfigResource]) -> dict[str, Any]:
        resources = [
            {"resource_type": int(each.kind), "resource_name": each.name, "configs": altered[each]} for each in some
        ]
        return {"resources": resources, "validate_only": validate_only}

    def take(response: Any) -> None:
        for each in response.responses:
            collected.take((each.resource_type, each.resource_name), each, None)  # type: ignore[arg-type]

    await _ask_each(cluster, ApiKey.INCREMENTAL_ALTER_CONFIGS, list(changes), body, take, collected, timeout)
    return collected.outcomes()


def _alterable(name: str, value: object) -> dict[str, Any]:
    if value is None:
        change = ConfigChange(ConfigOperation.DELETE)
    else:
        change = value if isinstance(value, ConfigChange) else ConfigChange(ConfigOperation.SET, value)
    text = None if change.value is None else config_text(change.value)
    return {"name": name, "config_operation": int(change.operation), "value": text}


async def _ask_each(
    cluster: Cluster,
    key: ApiKey,
    resources: list[ConfigResource],
    body: Any,
    take: Any,
    collected: Collected[ConfigResource, Any],
    timeout: float | None,
) -> None:
    """Send a request about a broker to that broker, and one about anything else to the controller."""
    by_node: dict[int | None, list[ConfigResource]] = {}
    for resource in resources:
        by_node.setdefault(_node_of(resource), []).append(resource)

    async def ask(node: int | None, some: list[ConfigResource]) -> None:
        try:
            if node is None:
                take(await cluster.ask_controller(key, body(some), timeout=timeout))
            else:
                take(await cluster.ask_node(node, key, body(some), timeout=timeout))
        except ClientError as error:
            for resource in some:
                collected.fail(resource, error)

    await asyncio.gather(*[ask(node, some) for node, some in by_node.items()])


def _node_of(resource: ConfigResource) -> int | None:
    if resource.kind not in (ResourceKind.BROKER, ResourceKind.BROKER_LOGGER) or not resource.name:
        return None
    if not (resource.name.isascii() and resource.name.isdigit()):
        raise ConfigError(
            f"broker {resource.name!r} is not valid: it must be a node id; Admin.describe_cluster lists them"
        )
    return int(resource.name)

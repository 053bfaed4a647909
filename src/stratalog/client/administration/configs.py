"""Settings of topics, brokers and groups: DescribeConfigs, and IncrementalAlterConfigs, which changes what it names and
leaves the rest alone."""

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
    """Whose settings. A broker without a name stands for what all brokers have in common."""

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
    """Where a setting's value comes from."""

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
    value: str | None  # None for what is not set, and for what is secret
    source: ConfigSource
    is_read_only: bool
    is_sensitive: bool
    type: ValueType | None = None  # None from brokers before Kafka 2.6
    documentation: str | None = None
    default: str | None = None  # what Kafka's default is; None where the broker does not tell

    @property
    def is_default(self) -> bool:
        return self.source is ConfigSource.DEFAULT


class ConfigOperation(IntEnum):
    SET = 0
    DELETE = 1  # back to the default
    APPEND = 2  # to a list
    SUBTRACT = 3  # from a list


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
    wanted = list(dict.fromkeys(resources))
    collected: Collected[ConfigResource, dict[str, ConfigEntry]] = Collected({one: str(one) for one in wanted})
    keys = None if names is None else list(names)

    def body(some: list[ConfigResource]) -> dict[str, Any]:
        described = [
            {"resource_type": int(one.kind), "resource_name": one.name, "configuration_keys": keys} for one in some
        ]
        return {"resources": described, "include_synonyms": True, "include_documentation": include_documentation}

    def take(response: Any) -> None:
        for one in response.results:
            entries = {each.name: _entry(each) for each in one.configs}
            collected.take((one.resource_type, one.resource_name), one, entries)  # type: ignore[arg-type]

    await _ask_each(cluster, ApiKey.DESCRIBE_CONFIGS, wanted, body, take, collected, timeout)
    return collected.outcomes()


def _entry(one: Any) -> ConfigEntry:
    source = getattr(one, "config_source", ConfigSource.UNKNOWN)
    kind = getattr(one, "config_type", 0)
    return ConfigEntry(
        one.name,
        one.value,
        ConfigSource(source) if source in list(ConfigSource) else ConfigSource.UNKNOWN,
        one.read_only,
        one.is_sensitive,
        ValueType(kind) if kind in [known.value for known in ValueType] else None,
        getattr(one, "documentation", None),
        _default(one),
    )


def _default(one: Any) -> str | None:
    """A topic's setting may have that of a broker's in another unit: retention.ms that of log.retention.hours."""
    synonym = next((each for each in getattr(one, "synonyms", ()) if each.source == ConfigSource.DEFAULT), None)
    if synonym is None or synonym.value is None:
        return None
    factor = _MILLISECONDS.get(synonym.name.rpartition(".")[2], 1) if one.name.endswith(".ms") else 1
    return str(int(synonym.value) * factor) if factor > 1 else str(synonym.value)


async def alter_configs(
    cluster: Cluster,
    changes: Mapping[ConfigResource, Mapping[str, object]],
    validate_only: bool,
    timeout: float | None,
) -> Outcomes[ConfigResource, None]:
    collected: Collected[ConfigResource, None] = Collected({one: str(one) for one in changes})
    altered = {one: [_alterable(name, value) for name, value in given.items()] for one, given in changes.items()}

    def body(some: list[ConfigResource]) -> dict[str, Any]:
        resources = [
            {"resource_type": int(one.kind), "resource_name": one.name, "configs": altered[one]} for one in some
        ]
        return {"resources": resources, "validate_only": validate_only}

    def take(response: Any) -> None:
        for one in response.responses:
            collected.take((one.resource_type, one.resource_name), one, None)  # type: ignore[arg-type]

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
    """A broker is asked about itself; about all else, any."""
    by_node: dict[int | None, list[ConfigResource]] = {}
    for one in resources:
        by_node.setdefault(_node_of(one), []).append(one)

    async def ask(node: int | None, some: list[ConfigResource]) -> None:
        try:
            if node is None:
                take(await cluster.ask_controller(key, body(some), timeout=timeout))
            else:
                take(await cluster.ask_node(node, key, body(some), timeout=timeout))
        except ClientError as error:
            for one in some:
                collected.fail(one, error)

    await asyncio.gather(*[ask(node, some) for node, some in by_node.items()])


def _node_of(resource: ConfigResource) -> int | None:
    if resource.kind not in (ResourceKind.BROKER, ResourceKind.BROKER_LOGGER) or not resource.name:
        return None
    if not (resource.name.isascii() and resource.name.isdigit()):
        raise ConfigError(f"a broker is named by its number, not {resource.name!r}; Admin.describe_cluster lists them")
    return int(resource.name)

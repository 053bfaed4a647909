"""The settings of a broker, under Kafka's names: `BrokerConfig.parse({"num.partitions": "4"})`.

The settings have several parts, and each name belongs to one of them: the broker's own settings, the defaults for
topics (`topics`), ZooKeeper and replication (`cluster`), the housekeeping of the data directory (`directory`),
compaction (`cleaner`), groups and committed offsets (`groups`), transactions (`transactions`). An unknown name is
refused with a similar name, and a setting of Kafka that is not supported with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

from stratalog.broker.groups.config import GroupConfig
from stratalog.broker.refused_settings import why_refused
from stratalog.broker.replication.config import ClusterConfig
from stratalog.broker.topic_defaults import TopicDefaults
from stratalog.broker.transactions.config import TransactionConfig
from stratalog.errors import ConfigError
from stratalog.settings import (
    INT_MAX,
    LONG_MAX,
    Described,
    Refused,
    Settings,
    Values,
    ValueType,
    as_text,
    boolean,
    integer,
    nullable,
    setting,
    unknown_setting,
)
from stratalog.storage.compaction.config import CleanerConfig
from stratalog.storage.config import DirectoryConfig, LogConfig

ALIASES = {"broker.id": "node.id"}
SHORT_MAX = 2**15 - 1
_ALONE = "there is one broker, so each partition has one replica"
_LISTENER = re.compile(r"(?P<protocol>[A-Za-z_]+)://(?P<host>\[[0-9a-fA-F:.%]+\]|[^:/\[\]]*):(?P<port>[0-9]{1,5})")


class Address(NamedTuple):
    host: str
    port: int


def _only(required: int, reason: str, kind: ValueType = ValueType.INT) -> Values:
    number = integer(required, INT_MAX)

    def check(name: str, value: object) -> object:
        if number.check(name, value) != required:
            raise ConfigError(f"{name} is {value}; it must be {required}: {reason}")
        return required

    return Values(kind, check, str(required))


def _listener() -> Values:
    def check(name: str, value: object) -> str:
        if not isinstance(value, str):
            raise ConfigError(f"{name} is {value!r}; it must be like PLAINTEXT://host:9092")
        parse_listener(name, value)
        return value

    return Values(ValueType.STRING, check, "PLAINTEXT://host:port")


def _size_or_none(maximum: int) -> Values:
    number = integer(-1, maximum)

    def check(name: str, value: object) -> object:
        if (size := number.check(name, value)) == 0:
            raise ConfigError(f"{name} is 0; it must be 1 or more, or -1")
        return size

    return Values(number.type, check, "1 or more, or -1")


@dataclass(frozen=True, kw_only=True)
class BrokerConfig(Settings):
    """All settings of a broker."""

    kind: ClassVar[str] = "a broker"

    node_id: int = setting(1, integer(0, INT_MAX), "this broker's id; `broker.id` is another name for it")
    advertised_listeners: str | None = setting(
        None, nullable(_listener()), "the address that clients connect to, if it is not the --listen address"
    )
    num_partitions: int = setting(1, integer(1, INT_MAX), "partitions of a topic that is created without a number")
    default_replication_factor: int = setting(
        1, integer(1, SHORT_MAX), "replicas of each partition of a topic that is created without a number"
    )
    offsets_topic_replication_factor: int = setting(
        1, _only(1, _ALONE, ValueType.SHORT), "replicas of the partitions of __consumer_offsets"
    )
    transaction_state_log_replication_factor: int = setting(
        1, _only(1, _ALONE, ValueType.SHORT), "replicas of the partitions of __transaction_state"
    )
    transaction_state_log_min_isr: int = setting(1, _only(1, _ALONE), "min.insync.replicas of __transaction_state")
    auto_create_topics_enable: bool = setting(
        True, boolean(), "create a topic when a client requests its metadata and allows its creation"
    )
    delete_topic_enable: bool = setting(True, boolean(), "whether topics can be deleted")
    stratalog_max_partitions: int = setting(
        10_000,
        integer(1, INT_MAX),
        "most partitions of all topics together; requests for more are refused (INVALID_PARTITIONS)",
    )
    socket_request_max_bytes: int = setting(
        100 * 1024**2, integer(1, INT_MAX), "largest request that is read; a larger one closes the connection"
    )
    socket_send_buffer_bytes: int = setting(
        -1,
        _size_or_none(INT_MAX),
        "SO_SNDBUF; with -1, the kernel adjusts it to the load (Kafka's default is 102400)",
    )
    socket_receive_buffer_bytes: int = setting(
        -1,
        _size_or_none(INT_MAX),
        "SO_RCVBUF; with -1, the kernel adjusts it to the load (Kafka's default is 102400)",
    )
    socket_listen_backlog_size: int = setting(
        1024, integer(1, INT_MAX), "connections that may wait to be accepted (Kafka's default is 50)"
    )
    connections_max_idle_ms: int = setting(600_000, integer(1), "close a connection without requests for this long")
    max_connections: int = setting(INT_MAX, integer(0, INT_MAX), "most connections at a time", dynamic=True)
    max_connections_per_ip: int = setting(
        INT_MAX, integer(0, INT_MAX), "most connections at a time from one address", dynamic=True
    )
    queued_max_request_bytes: int = setting(
        512 * 1024**2,
        _size_or_none(LONG_MAX),
        "most bytes that the broker holds for all clients together, in incomplete requests and in responses that "
        "clients have not read; -1 for no limit (Kafka's default)",
    )
    fetch_max_bytes: int = setting(
        55 * 1024**2, integer(1024, INT_MAX), "most bytes in a fetch response, even if the client requests more"
    )
    max_incremental_fetch_session_cache_slots: int = setting(
        1000, integer(0, INT_MAX), "most incremental fetch sessions (KIP-227) that are remembered"
    )
    max_request_partition_size_limit: int = setting(
        2000, integer(1, INT_MAX), "most partitions in a response to DescribeTopicPartitions"
    )

    topics: TopicDefaults = field(default_factory=TopicDefaults)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    directory: DirectoryConfig = field(default_factory=DirectoryConfig)
    cleaner: CleanerConfig = field(default_factory=CleanerConfig)
    groups: GroupConfig = field(default_factory=GroupConfig)
    transactions: TransactionConfig = field(default_factory=TransactionConfig)
    explicit: Mapping[str, str | None] = field(default_factory=dict)  # the settings at the start, by name, as text

    def __post_init__(self) -> None:
        super().__post_init__()
        if -1 < self.queued_max_request_bytes < self.socket_request_max_bytes:
            raise ConfigError(
                f"queued.max.request.bytes is {self.queued_max_request_bytes}, less than socket.request.max.bytes, "
                f"{self.socket_request_max_bytes}: the largest request could never be read"
            )
        if self.default_replication_factor > 1 and not self.cluster.is_cluster:
            raise ConfigError(
                f"default.replication.factor is {self.default_replication_factor}; it must be 1: {_ALONE} (set "
                "zookeeper.connect to join a cluster)"
            )
        self.log_defaults  # noqa: B018 - raises if the defaults for topics are not valid

    @cached_property
    def log_defaults(self) -> LogConfig:
        """The settings of a topic without settings of its own."""
        config = self.topics.log_config()
        interval = "log.flush.scheduler.interval.ms"
        if self.topics.log_flush_interval_ms is None and interval in self.explicit:
            return config.override({"flush.ms": self.directory.log_flush_scheduler_interval_ms})  # as in Kafka
        return config

    @property
    def advertised_address(self) -> Address | None:
        if self.advertised_listeners is None:
            return None
        return parse_listener("advertised.listeners", self.advertised_listeners)

    @classmethod
    def all_described(cls) -> list[Described]:
        """Return every supported setting, of all parts."""
        return [*cls.described(), *(described for part in PARTS.values() for described in part.described())]

    def all_settings(self) -> dict[str, Any]:
        parts = [getattr(self, name).settings() for name in PARTS]
        return {name: value for part in [self.settings(), *parts] for name, value in part.items()}

    def all_texts(self) -> dict[str, str | None]:
        return {name: as_text(value) for name, value in self.all_settings().items()}

    @classmethod
    def parse(cls, settings: Mapping[str, object]) -> Self:
        """Create the settings from Kafka's dotted names. Values may be text. Raises ConfigError."""
        own, by_part = _split(settings)
        parts: dict[str, Any] = {name: part.parse(by_part[name]) for name, part in PARTS.items()}
        explicit = {name: as_text(value) for name, value in _without_aliases(settings).items()}
        return cls(**cls._arguments(own), **parts, explicit=explicit)

    def override(self, settings: Mapping[str, object]) -> Self:
        """Return these settings with some replaced. `explicit` does not change. Raises ConfigError."""
        own, by_part = _split(settings)
        parts: dict[str, Any] = {name: getattr(self, name).override(by_part[name]) for name in PARTS}
        return replace(self, **self._arguments(own), **parts)


PARTS: Mapping[str, type[Settings]] = {
    "topics": TopicDefaults,
    "cluster": ClusterConfig,
    "directory": DirectoryConfig,
    "cleaner": CleanerConfig,
    "groups": GroupConfig,
    "transactions": TransactionConfig,
}


def _split(settings: Mapping[str, object]) -> tuple[dict[str, object], dict[str, dict[str, object]]]:
    """Return the broker's own settings, and those of each part."""
    own: dict[str, object] = {}
    parts: dict[str, dict[str, object]] = {name: {} for name in PARTS}
    names = set(BrokerConfig.names())
    for name, value in _without_aliases(settings).items():
        if name in names:
            own[name] = value
        else:
            parts[_part_of(name)][name] = value
    return own, parts


def _part_of(name: str) -> str:
    for part, kind in PARTS.items():
        if name in kind.names():
            return part
    raise unknown_broker_setting(name)


def unknown_broker_setting(name: str) -> ConfigError:
    """Return the error for a name that is not supported, for the caller to raise."""
    reason = why_refused(name)
    refused = {} if reason is None else {name: Refused(reason)}
    names = [described.name for described in BrokerConfig.all_described()]
    return unknown_setting(name, BrokerConfig.kind, names, refused)


def _without_aliases(settings: Mapping[str, object]) -> dict[str, object]:
    named = {name: value for name, value in settings.items() if name not in ALIASES}
    for alias, name in ALIASES.items():
        if alias in settings:
            if name in settings and as_text(settings[name]) != as_text(settings[alias]):
                raise ConfigError(f"{alias} is {settings[alias]}, but {name} is {settings[name]}; set only one of them")
            named[name] = settings[alias]
    return named


def parse_listener(name: str, value: str) -> Address:
    """Return the address in PLAINTEXT://host:port. Raises ConfigError, which names the setting."""
    match = _LISTENER.fullmatch(value.strip())
    if match is None:
        raise ConfigError(f"{name} is {value!r}; it must be one address like PLAINTEXT://host:9092")
    if match["protocol"].upper() != "PLAINTEXT":
        raise ConfigError(f"{name} is {value!r}; only PLAINTEXT is supported: {why_refused('security.')}")
    host, port = match["host"].strip("[]"), int(match["port"])
    if host in ("", "0.0.0.0", "::"):
        raise ConfigError(f"{name} is {value!r}; clients can't connect to {host!r}: name a host that they can reach")
    if not 0 < port < 65536:
        raise ConfigError(f"{name} is {value!r}; the port must be 1 to 65535")
    return Address(host, port)

"""Settings that producers, consumers and admins share, with Kafka's names and defaults.

Python names have underscores where Kafka's have dots: `Producer("localhost:9092", linger_ms=5)` sets `linger.ms`. An
unknown name is refused, with the most similar name that exists. Settings of the Java client and of librdkafka that
can't be supported are refused with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self, TypedDict

from stratalog.errors import ConfigError
from stratalog.settings import INT_MAX, Refused, Settings, Values, ValueType, integer, setting, text

DEFAULT_PORT = 9092


class ServerAddress(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class CommonOptions(TypedDict, total=False):
    """Keyword arguments of every client's constructor, for type checkers."""

    client_id: str
    request_timeout_ms: int
    default_api_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    reconnect_backoff_ms: int
    reconnect_backoff_max_ms: int
    metadata_max_age_ms: int
    connections_max_idle_ms: int
    socket_connection_setup_timeout_ms: int
    send_buffer_bytes: int
    receive_buffer_bytes: int
    receive_message_max_bytes: int
    security_protocol: str


def server_addresses() -> Values:
    """Return the values of bootstrap.servers: host:port, separated by commas or in a list; parsed to a tuple of
    ServerAddress."""

    def check(name: str, value: object) -> tuple[ServerAddress, ...]:
        if isinstance(value, str):
            items: list[object] = [part.strip() for part in value.split(",") if part.strip()]
        elif isinstance(value, list | tuple):
            items = list(value)
        else:
            raise ConfigError(f"{name} is {value!r}; it must be host:port, or a list of addresses of this form")
        if not items:
            raise ConfigError(f"{name} is empty; name at least one broker as host:port")
        return tuple(dict.fromkeys(_address(name, item) for item in items))

    return Values(ValueType.LIST, check, "host:port, separated by commas")


def _address(name: str, item: object) -> ServerAddress:
    if isinstance(item, ServerAddress):
        return item
    if not isinstance(item, str):
        raise ConfigError(f"{name} contains {item!r}; it must be a string host:port")
    _, slashes, rest = item.rpartition("://")  # brokers write their listeners as PLAINTEXT://host:port
    if slashes and not item.upper().startswith("PLAINTEXT://"):
        raise ConfigError(f"{name} contains {item!r}; only PLAINTEXT is supported: use host:port")
    if rest.startswith("["):
        host, bracket, port = rest[1:].partition("]")
        is_valid = bool(bracket) and (not port or port.startswith(":"))
        port = port[1:]
    else:
        host, _, port = rest.partition(":")
        is_valid = ":" not in port
        if not is_valid:
            raise ConfigError(f"{name} contains {item!r}; an IPv6 address needs brackets: [::1]:{DEFAULT_PORT}")
    port = port or str(DEFAULT_PORT)
    if not is_valid or not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise ConfigError(f"{name} contains {item!r}; it must be host:port, with a port from 1 to 65535")
    return ServerAddress(host, int(port))


def plain_text() -> Values:
    def check(name: str, value: object) -> str:
        if value != "PLAINTEXT":
            raise ConfigError(f"{name} is {value!r}; it must be PLAINTEXT, as TLS and SASL are not supported yet")
        return "PLAINTEXT"

    return Values(ValueType.STRING, check, "PLAINTEXT")


_SECURITY = "TLS and SASL are not supported yet; connect in plain text, over a trusted network"
_JAVA = "Java classes can't be loaded"
_METRICS = "the client has no metrics yet"
_LIBRDKAFKA = "it is librdkafka's"
_REFUSED_NAMES = {
    "client.dns.lookup": Refused("all addresses of a host name are tried in turn", "use_all_dns_ips"),
    "metadata.recovery.strategy": Refused(
        "the bootstrap servers are always tried again if no broker responds", "rebootstrap"
    ),
    "socket.connection.setup.timeout.max.ms": Refused("set socket.connection.setup.timeout.ms"),
    "enable.metrics.push": Refused(_METRICS, "false"),
    "interceptor.classes": Refused(_JAVA),
    "metric.reporters": Refused(_JAVA),
    "metrics.num.samples": Refused(_METRICS),
    "metrics.recording.level": Refused(_METRICS),
    "metrics.sample.window.ms": Refused(_METRICS),
    "metadata.broker.list": Refused(f"{_LIBRDKAFKA}; set bootstrap.servers"),
    "broker.address.family": Refused(f"{_LIBRDKAFKA}; all addresses of a host name are tried in turn", "any"),
    "socket.timeout.ms": Refused(f"{_LIBRDKAFKA}; set request.timeout.ms"),
    "socket.keepalive.enable": Refused(f"{_LIBRDKAFKA}; keepalive is always on", "true"),
    "socket.nagle.disable": Refused(f"{_LIBRDKAFKA}; Nagle's algorithm is always off", "true"),
    "statistics.interval.ms": Refused(_METRICS, "0"),
    "debug": Refused("set the level of Python's logger `stratalog.client`"),
}
_REFUSED_PREFIXES = {"ssl.": _SECURITY, "sasl.": _SECURITY, "security.providers": _SECURITY}


class _RefusedSettings(Mapping[str, Refused]):
    """Refused settings by name, including all names with a refused prefix."""

    def __init__(self, names: Mapping[str, Refused]) -> None:
        self._names = names

    def __getitem__(self, name: str) -> Refused:
        if name in self._names:
            return self._names[name]
        for prefix, reason in _REFUSED_PREFIXES.items():
            if name.startswith(prefix):
                return Refused(reason)
        raise KeyError(name)

    def __iter__(self) -> Any:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True, kw_only=True)
class CommonSettings(Settings):
    kind: ClassVar[str] = "a client"

    bootstrap_servers: tuple[ServerAddress, ...] = setting(
        (), server_addresses(), "brokers to connect to first, as host:port"
    )
    client_id: str = setting("stratalog", text(), "the name of this client in the brokers' logs and metrics")
    request_timeout_ms: int = setting(30_000, integer(1, INT_MAX), "how long to wait for a response")
    default_api_timeout_ms: int = setting(60_000, integer(1, INT_MAX), "how long a call may take, including retries")
    retry_backoff_ms: int = setting(100, integer(0), "the first wait before a request is retried")
    retry_backoff_max_ms: int = setting(1000, integer(0), "the longest wait before a request is retried")
    reconnect_backoff_ms: int = setting(50, integer(0), "the first wait before the client connects to a broker again")
    reconnect_backoff_max_ms: int = setting(
        1000, integer(0), "the longest wait before the client connects to a broker again"
    )
    metadata_max_age_ms: int = setting(300_000, integer(1), "the age at which metadata is refreshed")
    connections_max_idle_ms: int = setting(540_000, integer(1), "idle time after which a connection is closed")
    socket_connection_setup_timeout_ms: int = setting(10_000, integer(1), "how long opening a connection may take")
    send_buffer_bytes: int = setting(-1, integer(-1, INT_MAX), "SO_SNDBUF; -1: the system adapts it")
    receive_buffer_bytes: int = setting(-1, integer(-1, INT_MAX), "SO_RCVBUF; -1: the system adapts it")
    receive_message_max_bytes: int = setting(
        100_000_000, integer(1000, INT_MAX), "limit of a response; a larger response closes the connection"
    )
    security_protocol: str = setting("PLAINTEXT", plain_text(), "how to connect")

    @classmethod
    def refused(cls) -> Mapping[str, Refused]:
        return _RefusedSettings(_REFUSED_NAMES | dict(cls.also_refused()))

    @classmethod
    def also_refused(cls) -> Mapping[str, Refused]:
        """Return the settings that this kind of client refuses, in addition to those that all clients refuse."""
        return {}

    @classmethod
    def from_options(cls, bootstrap_servers: object, options: Mapping[str, object]) -> Self:
        """Parse a constructor's arguments, whose names have underscores."""
        settings = {name.replace("_", "."): value for name, value in options.items()}
        if "bootstrap.servers" in settings:
            raise ConfigError("bootstrap_servers is set twice: it is the first argument; remove the keyword argument")
        return cls.parse({"bootstrap.servers": bootstrap_servers} | settings)


class AdminOptions(CommonOptions, total=False):
    """Keyword arguments of Admin's constructor, for type checkers."""


@dataclass(frozen=True, kw_only=True)
class AdminSettings(CommonSettings):
    """Settings of an Admin: exactly those that all clients share."""

    kind: ClassVar[str] = "an admin"

"""Settings that producers, consumers and admins share, with Kafka's names and defaults.

Python names have underscores where Kafka's have dots: `Producer("localhost:9092", linger_ms=5)` is `linger.ms`. A name
that does not exist is refused with the nearest one that does; so are settings of the Java client and of librdkafka that
are known and can't count here, with the reason.
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
    """What every client's constructor takes beside the servers, for type checkers."""

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
    """host:port, with commas between them, or a list of such; the typed value is a tuple of ServerAddress."""

    def check(name: str, value: object) -> tuple[ServerAddress, ...]:
        if isinstance(value, str):
            items: list[object] = [part.strip() for part in value.split(",") if part.strip()]
        elif isinstance(value, list | tuple):
            items = list(value)
        else:
            raise ConfigError(f"{name} is {value!r}; it must be host:port, or a list of such")
        if not items:
            raise ConfigError(f"{name} is empty; name at least one broker as host:port")
        return tuple(dict.fromkeys(_address(name, item) for item in items))

    return Values(ValueType.LIST, check, "host:port, with commas between")


def _address(name: str, item: object) -> ServerAddress:
    if isinstance(item, ServerAddress):
        return item
    if not isinstance(item, str):
        raise ConfigError(f"{name} has {item!r}; it must be text as host:port")
    _, slashes, rest = item.rpartition("://")  # PLAINTEXT://host:port is how brokers list their listeners
    if slashes and not item.upper().startswith("PLAINTEXT://"):
        raise ConfigError(f"{name} has {item!r}; only plain text is spoken: host:port")
    if rest.startswith("["):
        host, bracket, port = rest[1:].partition("]")
        sound = bool(bracket) and (not port or port.startswith(":"))
        port = port[1:]
    else:
        host, _, port = rest.partition(":")
        sound = ":" not in port
        if not sound:
            raise ConfigError(f"{name} has {item!r}; an IPv6 address needs brackets: [::1]:{DEFAULT_PORT}")
    port = port or str(DEFAULT_PORT)
    if not sound or not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise ConfigError(f"{name} has {item!r}; it must be host:port, with a port from 1 to 65535")
    return ServerAddress(host, int(port))


def plain_text() -> Values:
    def check(name: str, value: object) -> str:
        if value != "PLAINTEXT":
            raise ConfigError(f"{name} is {value!r}; TLS and SASL are not available yet, so it can only be PLAINTEXT")
        return "PLAINTEXT"

    return Values(ValueType.STRING, check, "PLAINTEXT")


_SECURITY = "TLS and SASL are not available yet; connect in plain text, over a network that only friends reach"
_JAVA = "Java classes can't be loaded here"
_METRICS = "the client keeps no metrics of its own yet"
_LIBRDKAFKA = "it is librdkafka's"
_REFUSED_NAMES = {
    "client.dns.lookup": Refused("all addresses of a name are tried in turn", "use_all_dns_ips"),
    "metadata.recovery.strategy": Refused(
        "bootstrap servers are always asked again where no broker answers", "rebootstrap"
    ),
    "socket.connection.setup.timeout.max.ms": Refused("set socket.connection.setup.timeout.ms"),
    "enable.metrics.push": Refused(_METRICS, "false"),
    "interceptor.classes": Refused(_JAVA),
    "metric.reporters": Refused(_JAVA),
    "metrics.num.samples": Refused(_METRICS),
    "metrics.recording.level": Refused(_METRICS),
    "metrics.sample.window.ms": Refused(_METRICS),
    "metadata.broker.list": Refused(f"{_LIBRDKAFKA}; set bootstrap.servers"),
    "broker.address.family": Refused(f"{_LIBRDKAFKA}; all addresses of a name are tried in turn", "any"),
    "socket.timeout.ms": Refused(f"{_LIBRDKAFKA}; set request.timeout.ms"),
    "socket.keepalive.enable": Refused(f"{_LIBRDKAFKA}; it is always on", "true"),
    "socket.nagle.disable": Refused(f"{_LIBRDKAFKA}; it is always so", "true"),
    "statistics.interval.ms": Refused(_METRICS, "0"),
    "debug": Refused("set the level of Python's logger `stratalog.client`"),
}
_REFUSED_PREFIXES = {"ssl.": _SECURITY, "sasl.": _SECURITY, "security.providers": _SECURITY}


class _RefusedSettings(Mapping[str, Refused]):
    """Names, and beginnings of names."""

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

    bootstrap_servers: tuple[ServerAddress, ...] = setting((), server_addresses(), "brokers to ask first, as host:port")
    client_id: str = setting("stratalog", text(), "the name that brokers log and count this client under")
    request_timeout_ms: int = setting(30_000, integer(1, INT_MAX), "how long to wait for one answer")
    default_api_timeout_ms: int = setting(60_000, integer(1, INT_MAX), "how long a call may take in all, with retries")
    retry_backoff_ms: int = setting(100, integer(0), "the first wait before a request is tried again")
    retry_backoff_max_ms: int = setting(1000, integer(0), "the longest such wait")
    reconnect_backoff_ms: int = setting(50, integer(0), "the first wait before a broker is connected to again")
    reconnect_backoff_max_ms: int = setting(1000, integer(0), "the longest such wait")
    metadata_max_age_ms: int = setting(300_000, integer(1), "when to ask again what the cluster looks like")
    connections_max_idle_ms: int = setting(540_000, integer(1), "when to close a connection that is not used")
    socket_connection_setup_timeout_ms: int = setting(10_000, integer(1), "how long a connection may take to be ready")
    send_buffer_bytes: int = setting(-1, integer(-1, INT_MAX), "SO_SNDBUF; -1: what the system chooses, which adapts")
    receive_buffer_bytes: int = setting(
        -1, integer(-1, INT_MAX), "SO_RCVBUF; -1: what the system chooses, which adapts"
    )
    receive_message_max_bytes: int = setting(
        100_000_000, integer(1000, INT_MAX), "the largest answer that is taken; a larger one ends the connection"
    )
    security_protocol: str = setting("PLAINTEXT", plain_text(), "how to connect")

    @classmethod
    def refused(cls) -> Mapping[str, Refused]:
        return _RefusedSettings(_REFUSED_NAMES | dict(cls.also_refused()))

    @classmethod
    def also_refused(cls) -> Mapping[str, Refused]:
        """What one kind of client refuses beside what all do."""
        return {}

    @classmethod
    def from_options(cls, bootstrap_servers: object, options: Mapping[str, object]) -> Self:
        """From a constructor's arguments, whose names have underscores."""
        given = {name.replace("_", "."): value for name, value in options.items()}
        if "bootstrap.servers" in given:
            raise ConfigError("bootstrap_servers is given twice: it is the first argument")
        return cls.parse({"bootstrap.servers": bootstrap_servers} | given)

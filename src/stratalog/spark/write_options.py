"""The options of a write, parsed: those of Spark's Kafka connector, with its names and meaning, and our own. Pure.

| option | meaning |
|---|---|
| `kafka.bootstrap.servers`, `kafka.*` | settings of the producer, except those that the sink sets itself |
| `topic` | the topic for all rows; by default the column `topic` of each row |
| `delivery` | `exactly-once` fails if the broker does not support it; `at-least-once`: no transactions; default: best |
| `sinkId` | the name under which a stream records what it has written, by default the query's id |
| `decisionTimeout` | how long finished tasks may wait for the others, by default a day |

Names are case-insensitive, as in Spark. An unknown name is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from enum import Enum

from stratalog.client.producer_settings import ProducerSettings
from stratalog.client.settings import AdminSettings
from stratalog.errors import ConfigError
from stratalog.spark.options import KAFKA, READ_OPTIONS

WRITE_OPTIONS = ("topic", "delivery", "sinkId", "decisionTimeout", "includeHeaders")
_SPARKS_OWN = ("checkpointlocation", "queryname")  # Spark passes these to every sink
_SINK_ID = re.compile(r"[A-Za-z0-9._-]{1,200}")
_DURATION = re.compile(r"([0-9]{1,15})\s*(ms|s|m|min|h|d|)")
_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "": 1}
_DAY_MS = 86_400_000
_LONGEST_MS = 2**31 - 2
_SET_BY_SINK = {
    "key.serializer": "keys are written unchanged: cast the column `key` to string or binary",
    "value.serializer": "values are written unchanged: cast the column `value` to string or binary",
    "transactional.id": "every task has its own transactions; sinkId names the sink",
    "interceptor.classes": "Java classes can't be loaded here",
}


class Delivery(Enum):
    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"
    BEST = ""  # exactly once if the broker supports it


@dataclass(frozen=True)
class WriteOptions:
    kafka: Mapping[str, str]
    topic: str | None = None
    delivery: Delivery = Delivery.BEST
    sink_id: str | None = None
    decision_timeout_ms: int = _DAY_MS

    def producer_config(self, transactional_id: str | None) -> dict[str, object]:
        if transactional_id is None:
            return dict(self.kafka)
        return {**self.kafka, "transactional.id": transactional_id}

    def admin_config(self) -> dict[str, object]:
        shared = set(AdminSettings.names())
        return {name: value for name, value in self.kafka.items() if name in shared}

    @property
    def servers(self) -> str:
        return self.kafka["bootstrap.servers"]

    def with_delivery(self, delivery: Delivery) -> WriteOptions:
        return replace(self, delivery=delivery)


def parse(options: Mapping[str, str]) -> WriteOptions:
    """Parse the options of a write. Raises ConfigError."""
    lower = {name.lower(): value for name, value in options.items()}
    _check_names(lower)
    delivery = _delivery(lower.get("delivery"))
    include_headers = lower.get("includeheaders", "true").strip().lower()
    if include_headers not in ("true", "false"):
        raise ConfigError(f"includeHeaders is {lower['includeheaders']!r}; it must be true or false")
    topic = lower.get("topic")
    if topic is not None and not topic.strip():
        raise ConfigError(f"topic is {topic!r}; it must name a topic, or be left out to use the column `topic`")
    parsed = WriteOptions(
        _kafka(lower),
        topic if topic is None else topic.strip(),
        delivery,
        _sink_id(lower.get("sinkid")),
        _milliseconds(lower.get("decisiontimeout")),
    )
    _check_producer(parsed)
    return parsed


def _check_names(options: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in WRITE_OPTIONS}
    for name, value in options.items():
        if name in known or name in _SPARKS_OWN or name.startswith(KAFKA):
            continue
        if name == "path":
            raise ConfigError(f"save({value!r}) names a path; name a topic by the option `topic` and call save()")
        near = get_close_matches(name, [*known, "kafka.bootstrap.servers"], 1)
        hint = f"did you mean {known.get(near[0], near[0])}?" if near else f"known are: {', '.join(WRITE_OPTIONS)}"
        if name in ProducerSettings.names():
            hint = f"did you mean kafka.{name}?"
        elif name in (option.lower() for option in READ_OPTIONS):
            hint = "it is an option of a read"
        raise ConfigError(f"{name!r} is not an option of a write; {hint}")


def _kafka(options: Mapping[str, str]) -> Mapping[str, str]:
    settings = {name[len(KAFKA) :]: value for name, value in options.items() if name.startswith(KAFKA)}
    if "bootstrap.servers" not in settings:
        raise ConfigError("kafka.bootstrap.servers is missing; set it to the brokers' addresses, as host:port")
    for name in settings:
        if name in _SET_BY_SINK:
            raise ConfigError(f"kafka.{name} can't be set: {_SET_BY_SINK[name]}")
    settings.setdefault("client.id", "stratalog-spark")
    return settings


def _check_producer(options: WriteOptions) -> None:
    """Check the producer's settings now, instead of in every task."""
    transactional_id = None if options.delivery is Delivery.AT_LEAST_ONCE else "any"
    try:
        ProducerSettings.parse(options.producer_config(transactional_id))
    except ConfigError as error:
        if transactional_id is None:
            raise ConfigError(f"kafka.{error}") from None
        text = str(error).removeprefix("transactional.id is 'any', and ")
        raise ConfigError(f"kafka.{text}, or set delivery to {Delivery.AT_LEAST_ONCE.value}") from None


def _delivery(value: str | None) -> Delivery:
    if value is None:
        return Delivery.BEST
    for delivery in (Delivery.EXACTLY_ONCE, Delivery.AT_LEAST_ONCE):
        if value.strip().lower() == delivery.value:
            return delivery
    raise ConfigError(f"delivery is {value!r}; it must be exactly-once or at-least-once")


def _sink_id(value: str | None) -> str | None:
    if value is not None and not _SINK_ID.fullmatch(value):
        raise ConfigError(f"sinkId is {value[:250]!r}; it must be 1 to 200 letters, digits, dots, - and _")
    return value


def _milliseconds(value: str | None) -> int:
    if value is None:
        return _DAY_MS
    match = _DURATION.fullmatch(value.strip().lower())
    milliseconds = 0 if match is None else int(match[1]) * _UNITS[match[2]]
    if not 0 < milliseconds <= _LONGEST_MS:
        raise ConfigError(f"decisionTimeout is {value!r}; it must be a duration like 30m, 12h or 7d, at most 24 days")
    return milliseconds

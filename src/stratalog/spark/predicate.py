"""The filter of a scan: rows that the plan, the indexes and the kernels can skip before Spark sees them. Pure.

A `Predicate` is a conjunction; a part without a value selects everything. It is made from the filters that Spark pushes
down (`from_filters`), or from options, for sessions without push-down (`from_options`). It selects exactly the rows of
Spark's filters, or more of them: a filter that it can't express exactly is also left to Spark.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from stratalog.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

FIRST, LAST = -(2**63), 2**63 - 1
# These columns describe where a record is stored, and always have a value.
NEVER_NULL = frozenset({"topic", "partition", "offset", "timestamp", "timestampType"})

# Options with the same effect. `from` is inclusive, `until` exclusive.
FILTER_KEYS = "filterKeys"
FILTER_PARTITIONS = "filterPartitions"
FILTER_FROM_OFFSET = "filterFromOffset"
FILTER_UNTIL_OFFSET = "filterUntilOffset"
FILTER_FROM_TIMESTAMP = "filterFromTimestamp"
FILTER_UNTIL_TIMESTAMP = "filterUntilTimestamp"
OPTIONS = (
    FILTER_KEYS,
    FILTER_PARTITIONS,
    FILTER_FROM_OFFSET,
    FILTER_UNTIL_OFFSET,
    FILTER_FROM_TIMESTAMP,
    FILTER_UNTIL_TIMESTAMP,
)
MOST_KEYS = 100_000
_KEYS_FORMAT = 'it must be a JSON list, like ["a", {"base64": "AAE="}]'

T = TypeVar("T")


@dataclass(frozen=True)
class Predicate:
    """The selected rows. Ranges are [from, until); timestamps are in milliseconds, as in records."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    from_offset: int = FIRST
    until_offset: int = LAST
    from_timestamp: int = FIRST
    until_timestamp: int = LAST
    keys: frozenset[bytes] | None = None

    @property
    def is_everything(self) -> bool:
        return self == EVERYTHING

    @property
    def is_nothing(self) -> bool:
        """True if no row can match, so that nothing has to be read."""
        sets = (self.topics, self.partitions, self.keys)
        return (
            any(values is not None and not values for values in sets)
            or self.from_offset >= self.until_offset
            or self.from_timestamp >= self.until_timestamp
        )

    @property
    def has_time_range(self) -> bool:
        return self.from_timestamp > FIRST or self.until_timestamp < LAST

    def selects_partition(self, topic: str, partition: int) -> bool:
        return (self.topics is None or topic in self.topics) and (
            self.partitions is None or partition in self.partitions
        )

    def clamp(self, start: int, end: int) -> tuple[int, int]:
        """Return the part of [start, end) that can contain matching rows, or (start, start)."""
        first, last = max(start, self.from_offset), min(end, self.until_offset)
        return (first, last) if first < last else (start, start)

    def __and__(self, other: Predicate) -> Predicate:
        return Predicate(
            _intersection(self.topics, other.topics),
            _intersection(self.partitions, other.partitions),
            max(self.from_offset, other.from_offset),
            min(self.until_offset, other.until_offset),
            max(self.from_timestamp, other.from_timestamp),
            min(self.until_timestamp, other.until_timestamp),
            _intersection(self.keys, other.keys),
        )

    def __str__(self) -> str:
        """Describe the predicate, for the plan."""
        parts = []
        if self.topics is not None:
            parts.append(f"topic in ({', '.join(sorted(self.topics))})")
        if self.partitions is not None:
            parts.append(f"partition in ({', '.join(map(str, sorted(self.partitions)))})")
        parts += _range_parts("offset", self.from_offset, self.until_offset)
        parts += _range_parts("timestamp", self.from_timestamp, self.until_timestamp)
        if self.keys is not None:
            parts.append("key in 1 value" if len(self.keys) == 1 else f"key in {len(self.keys)} values")
        return " and ".join(parts) or "everything"


EVERYTHING = Predicate()
NOTHING = Predicate(keys=frozenset())


def from_filters(filters: Iterable[Filter]) -> tuple[Predicate, list[Filter]]:
    """Return the conjunction of the filters, and the filters that Spark still has to apply."""
    predicate = EVERYTHING
    remaining: list[Filter] = []
    not_null_keys: list[Filter] = []
    for filter in filters:
        if _is_not_null(filter, "key"):
            not_null_keys.append(filter)
            continue
        part = _from_filter(filter)
        if part is None:
            remaining.append(filter)
            part = _bounds_of_in(filter)
        predicate &= part
    if predicate.keys is None or len(predicate.keys) > MOST_KEYS:
        remaining += not_null_keys  # otherwise the keys are compared with values, which excludes null
    return predicate, remaining


def _from_filter(filter: Filter) -> Predicate | None:
    """Return an equivalent predicate, or None for a filter without one."""
    kind = type(filter).__name__
    attribute: tuple[str, ...] = getattr(filter, "attribute", ())
    if len(attribute) != 1:
        return None
    column: str = attribute[0]
    if kind == "IsNotNull":
        return EVERYTHING if column in NEVER_NULL else None
    if kind == "IsNull":
        return NOTHING if column in NEVER_NULL else None
    value: Any = getattr(filter, "value", None)
    if kind == "In":
        # A null among the values never makes IN true, so it can be dropped.
        return _equal(column, [each for each in value if each is not None])
    if kind == "EqualTo" or (kind == "EqualNullSafe" and value is not None):
        return _equal(column, [value]) if value is not None else NOTHING
    if kind in _BOUNDS and column in ("offset", "timestamp"):
        return _bounded(column, kind, value)
    return None


def _bounds_of_in(filter: Filter) -> Predicate:
    """Return a condition that an IN filter implies: the value is between its lowest and its highest value."""
    attribute: tuple[str, ...] = getattr(filter, "attribute", ())
    if type(filter).__name__ != "In" or attribute not in (("offset",), ("timestamp",)):
        return EVERYTHING
    values: list[Any] = [each for each in getattr(filter, "value", ()) if each is not None]
    if not values:
        return EVERYTHING
    low = _bounded(attribute[0], _AT_LEAST, min(values))
    high = _bounded(attribute[0], _AT_MOST, max(values))
    return EVERYTHING if low is None or high is None else low & high


_AT_LEAST, _AT_MOST = "GreaterThanOrEqual", "LessThanOrEqual"
_BOUNDS = ("GreaterThan", _AT_LEAST, "LessThan", _AT_MOST)


def _is_not_null(filter: Filter, column: str) -> bool:
    return type(filter).__name__ == "IsNotNull" and getattr(filter, "attribute", None) == (column,)


def _equal(column: str, values: list[Any]) -> Predicate | None:
    if column == "key" and len(values) <= MOST_KEYS and all(isinstance(each, bytes | bytearray) for each in values):
        return Predicate(keys=frozenset(map(bytes, values)))
    if column == "topic" and all(isinstance(each, str) for each in values):
        return Predicate(topics=frozenset(values))
    if column == "partition" and all(_is_integer(each) for each in values):
        return Predicate(partitions=frozenset(values))
    if column in ("offset", "timestamp") and len(values) == 1:
        low, high = _bounded(column, _AT_LEAST, values[0]), _bounded(column, _AT_MOST, values[0])
        return None if low is None or high is None else low & high
    return None


def _bounded(column: str, kind: str, value: Any) -> Predicate | None:
    if column == "offset":
        if not _is_integer(value):
            return None
        floor = ceiling = value
    else:
        if not isinstance(value, datetime):
            return None
        microseconds = _microseconds(value)
        floor, ceiling = microseconds // 1000, -(-microseconds // 1000)
    if kind == "GreaterThan":
        return _from(column, floor + 1)
    if kind == _AT_LEAST:
        return _from(column, ceiling)
    return _until(column, ceiling if kind == "LessThan" else floor + 1)


def _from(column: str, first: int) -> Predicate:
    if first > LAST:
        return NOTHING
    return Predicate(from_offset=first) if column == "offset" else Predicate(from_timestamp=first)


def _until(column: str, end: int) -> Predicate:
    end = min(end, LAST)
    return Predicate(until_offset=end) if column == "offset" else Predicate(until_timestamp=end)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _microseconds(value: datetime) -> int:
    """Return microseconds since 1970, computed without floats. Spark's timestamps without a time zone are UTC here."""
    if value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    since = value - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _intersection(first: frozenset[T] | None, second: frozenset[T] | None) -> frozenset[T] | None:
    if first is None:
        return second
    return first if second is None else first & second


def _range_parts(name: str, first: int, end: int) -> list[str]:
    parts = [f"{name} >= {first}"] if first > FIRST else []
    return [*parts, f"{name} < {end}"] if end < LAST else parts


def from_options(options: Mapping[str, str]) -> Predicate:
    """Parse the options that OPTIONS lists, and ignore others. Names are case-insensitive, as in Spark.

    `filterKeys` is a JSON list: a string stands for its UTF-8 bytes, {"base64": "..."} for any bytes.
    `filterPartitions` is a list of numbers: 0,3,7. Timestamps are milliseconds since 1970 or ISO 8601; without a time
    zone they are UTC. Raises ConfigError.
    """
    lower = {name.lower(): value for name, value in options.items()}
    predicate = EVERYTHING
    for name in OPTIONS:
        text = lower.get(name.lower())
        if text is not None:
            predicate &= _from_option(name, text)
    return predicate


def _from_option(name: str, text: str) -> Predicate:
    if name == FILTER_KEYS:
        return Predicate(keys=_parse_keys(text))
    if name == FILTER_PARTITIONS:
        return Predicate(partitions=frozenset(_parse_integer(name, part) for part in text.split(",")))
    if name == FILTER_FROM_OFFSET:
        return _from("offset", _parse_integer(name, text))
    if name == FILTER_UNTIL_OFFSET:
        return _until("offset", _parse_integer(name, text))
    milliseconds = _parse_timestamp(name, text)
    return _from("timestamp", milliseconds) if name == FILTER_FROM_TIMESTAMP else _until("timestamp", milliseconds)


def _parse_keys(text: str) -> frozenset[bytes]:
    try:
        values = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"option {FILTER_KEYS}: {error}; {_KEYS_FORMAT}") from None
    if not isinstance(values, list):
        raise ConfigError(f"option {FILTER_KEYS} is {text[:100]!r}; {_KEYS_FORMAT}")
    if len(values) > MOST_KEYS:
        raise ConfigError(f"option {FILTER_KEYS} has {len(values)} keys; the limit is {MOST_KEYS}")
    return frozenset(_parse_key(value) for value in values)


def _parse_key(value: object) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and list(value) == ["base64"] and isinstance(value["base64"], str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except binascii.Error as error:
            raise ConfigError(f"option {FILTER_KEYS}: {value['base64'][:100]!r} is not base64: {error}") from None
    raise ConfigError(f"option {FILTER_KEYS}: {str(value)[:100]!r} is not a key; {_KEYS_FORMAT}")


def _parse_integer(name: str, text: str) -> int:
    try:
        number = int(text.strip())
    except ValueError:
        raise ConfigError(f"option {name}: {text[:100]!r} is not a whole number") from None
    if not FIRST <= number <= LAST:
        raise ConfigError(f"option {name}: {text[:100]} is outside the range of 64 bits")
    return number


def _parse_timestamp(name: str, text: str) -> int:
    stripped = text.strip()
    if stripped.lstrip("-").isdigit():
        return _parse_integer(name, stripped)
    try:
        when = datetime.fromisoformat(stripped)
    except ValueError:
        raise ConfigError(
            f"option {name} is {text[:100]!r}; it must be milliseconds since 1970, or ISO 8601 like "
            "2026-11-16T09:00:00Z"
        ) from None
    return -(-_microseconds(when) // 1000)

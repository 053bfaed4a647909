"""Parses the values of read options. Each function takes an option's name and value, and raises ConfigError with both.
Pure."""

from __future__ import annotations

import json
import re

from stratalog.client.metadata import TopicPartition
from stratalog.errors import ConfigError
from stratalog.spark.read_options import EARLIEST, LATEST, AtEdge, AtOffsets, Limit

HIGHEST_LONG = 2**63 - 1
HIGHEST_INT = 2**31 - 1
_UNIT_MS = {
    "us": 0.001,
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "": 1,
}


def boolean(name: str, value: str) -> bool:
    if value.strip().lower() not in ("true", "false"):
        raise ConfigError(f"{name} is {value!r}; it must be true or false")
    return value.strip().lower() == "true"


def integer(name: str, value: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,19}", value.strip(), re.ASCII) or abs(int(value)) > HIGHEST_LONG:
        raise ConfigError(f"{name} is {value[:100]!r}; it must be a whole number of at most 64 bits")
    return int(value)


def not_empty(name: str, value: str) -> str:
    if not value.strip():
        raise ConfigError(f"{name} is {value!r}; it must be a name")
    return value.strip()


def milliseconds(name: str, value: str) -> int:
    """Parse a duration as Spark writes it: 15m, 30s, 100ms. A number without a unit is milliseconds."""
    match = re.fullmatch(r"([0-9]{1,15})\s*([a-z]*)", value.strip().lower())
    if match is None or match[2] not in _UNIT_MS:
        raise ConfigError(f"{name} is {value!r}; it must be a duration like 500ms, 30s, 15m or 1h")
    return int(int(match[1]) * _UNIT_MS[match[2]])


def timestamp(name: str, milliseconds: int) -> int:
    """Check a timestamp. A negative one would look like -1 and -2, with which brokers mean the end and the start."""
    if milliseconds < 0:
        raise ConfigError(f"{name} has {milliseconds}; times are milliseconds since 1970, 0 or more")
    return milliseconds


def data_dirs(name: str, value: str) -> tuple[str, ...]:
    """Parse absolute paths with commas between them; `none` means that files must not be read directly."""
    dirs = tuple(part.strip() for part in value.split(",") if part.strip())
    if dirs == ("none",):
        return ()
    if not dirs or not all(part.startswith("/") for part in dirs):
        raise ConfigError(
            f"{name} is {value!r}; it must be the absolute paths of the brokers' data directories as the executors see "
            "them, separated by commas, or none, to read over the wire"
        )
    return dirs


def pattern(name: str, value: str) -> str:
    if not value:
        raise ConfigError(f"{name} is empty; it must be a regular expression that matches the whole name of a topic")
    try:
        re.compile(value)
    except re.error as error:
        raise ConfigError(f"{name} is {value!r}, which is not a regular expression: {error}") from None
    return value


# JSON


def offsets(name: str, value: str) -> Limit:
    word = value.strip().lower()
    if word in ("earliest", "latest"):
        return AtEdge(EARLIEST if word == "earliest" else LATEST)
    if not word.startswith("{"):
        raise ConfigError(
            f'{name} is {value[:100]!r}; it must be earliest, latest, or JSON like {{"topic": {{"0": 23}}}}'
        )
    by_partition = numbers(name, value)
    for partition, offset in by_partition.items():
        if offset < EARLIEST:
            raise ConfigError(
                f"{name} has {offset} for {partition}; it must be an offset, -2 (earliest) or -1 (latest)"
            )
    return AtOffsets(by_partition)


def numbers(name: str, value: str) -> dict[TopicPartition, int]:
    """Parse {"topic": {"0": 23}}."""
    parsed: dict[TopicPartition, int] = {}
    for topic, partitions in _object(name, value).items():
        if not isinstance(partitions, dict):
            raise ConfigError(f'{name}: {topic!r} has {_shown(partitions)}; it must have partitions, like {{"0": 23}}')
        for partition, number in partitions.items():
            if not isinstance(number, int) or isinstance(number, bool) or abs(number) > HIGHEST_LONG:
                raise ConfigError(f"{name}: {topic} partition {partition} has {_shown(number)}; it must be a number")
            parsed[TopicPartition(topic, _partition(name, topic, partition))] = number
    if not parsed:
        raise ConfigError(f'{name} is {value[:100]!r}; it must name partitions, like {{"topic": {{"0": 23}}}}')
    return parsed


def partitions(name: str, value: str) -> tuple[TopicPartition, ...]:
    """Parse {"topic": [0, 1]}."""
    parsed: set[TopicPartition] = set()
    for topic, indexes in _object(name, value).items():
        if not isinstance(indexes, list):
            raise ConfigError(
                f"{name}: {topic!r} has {_shown(indexes)}; it must have a list of partitions, like [0, 1]"
            )
        parsed |= {TopicPartition(topic, _partition(name, topic, index)) for index in indexes}
    if not parsed:
        raise ConfigError(f'{name} is {value[:100]!r}; it must name partitions, like {{"topic": [0, 1]}}')
    return tuple(sorted(parsed))


def _object(name: str, value: str) -> dict[str, object]:
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{name} is {value[:100]!r}, which is not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise ConfigError(f'{name} is {value[:100]!r}; it must be JSON like {{"topic": ...}}')
    return parsed


def _partition(name: str, topic: str, partition: object) -> int:
    text = str(partition)
    if isinstance(partition, bool) or not re.fullmatch(r"[0-9]{1,10}", text, re.ASCII) or int(text) > HIGHEST_INT:
        raise ConfigError(f"{name}: {topic} has {_shown(partition)}, which is not the number of a partition")
    return int(text)


def _shown(value: object) -> str:
    return repr(value)[:100]

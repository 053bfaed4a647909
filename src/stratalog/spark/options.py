"""What may be asked of a read: the stock Kafka connector's options, with its names, defaults and meaning, and ours.

Names are compared without case, as Spark's are. One that is not known is refused, with the nearest that is; so is a
`kafka.` setting that the reader has to decide itself. Pure: what the options name is looked up by broker_offsets.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TypeVar

from stratalog.client.consumer_settings import ConsumerSettings
from stratalog.client.metadata import TopicPartition
from stratalog.errors import ConfigError
from stratalog.spark import predicate as predicates
from stratalog.spark.predicate import EVERYTHING, Predicate
from stratalog.spark.scan_request import DEFAULT_PATIENCE_SECONDS, MIB, READ_COMMITTED, READ_UNCOMMITTED

T = TypeVar("T")

LATEST, EARLIEST = -1, -2  # in JSON, in the place of an offset
KAFKA = "kafka."
DEFAULT_TRIGGER_DELAY_MS = 15 * 60 * 1000
DEFAULT_FETCH_BYTES = 8 * MIB  # of one partition; a scan reads one, and reads it to its end
_LONG = 2**63 - 1
_INT = 2**31 - 1

SUBSCRIBE, SUBSCRIBE_PATTERN, ASSIGN = "subscribe", "subscribePattern", "assign"
STRATEGIES = (SUBSCRIBE, SUBSCRIBE_PATTERN, ASSIGN)
READ_OPTIONS = (
    *STRATEGIES,
    "startingOffsets",
    "endingOffsets",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestampStrategy",
    "failOnDataLoss",
    "includeHeaders",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxBytesPerTrigger",
    "groupIdPrefix",
    "group.id",
    "isolation.level",
    "log.dirs",
    "pushFilters",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "kafkaConsumer.pollTimeoutMs",
    *predicates.OPTIONS,
)
_STREAM_ONLY = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "maxBytesPerTrigger", "group.id")
_BATCH_ONLY = ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp")

_DECIDED_HERE = {
    "auto.offset.reset": "the checkpoint and startingOffsets say where to read on: set startingOffsets",
    "key.deserializer": "keys are given as they are, in binary: decode them in the query",
    "value.deserializer": "values are given as they are, in binary: decode them in the query",
    "enable.auto.commit": "progress is in the checkpoint; give group.id, without kafka., to have it committed as well",
    "interceptor.classes": "Java classes can't be loaded here",
}


# Where to begin and to end


@dataclass(frozen=True)
class AtEdge:
    """All partitions at their first offset (EARLIEST) or at their end (LATEST)."""

    edge: int


@dataclass(frozen=True)
class AtOffsets:
    """Per partition an offset, EARLIEST or LATEST."""

    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True)
class AtTimestamps:
    """The first record at or after a time in milliseconds: one for each partition, or one for all (`everywhere`). Where
    there is none a start is an error, or the end of the partition if `or_latest`; an end always is the latter."""

    timestamps: Mapping[TopicPartition, int] = field(default_factory=dict)
    everywhere: int | None = None
    or_latest: bool = False


Limit = AtEdge | AtOffsets | AtTimestamps


# Which partitions


@dataclass(frozen=True)
class Subscribed:
    topics: tuple[str, ...]

    def __str__(self) -> str:
        return f"subscribe={','.join(self.topics)}"


@dataclass(frozen=True)
class Matching:
    pattern: str

    def __str__(self) -> str:
        return f"subscribePattern={self.pattern}"


@dataclass(frozen=True)
class Assigned:
    partitions: tuple[TopicPartition, ...]

    def __str__(self) -> str:
        return f"assign={','.join(map(str, self.partitions))}"


Strategy = Subscribed | Matching | Assigned


@dataclass(frozen=True)
class ReadOptions:
    """`data_dirs`: None where nothing was said, so that they may be found; () where files are not to be read."""

    strategy: Strategy
    kafka: Mapping[str, str]
    starting: Limit
    ending: Limit
    predicate: Predicate = EVERYTHING
    isolation: str = READ_UNCOMMITTED
    fail_on_data_loss: bool = True
    include_headers: bool = False
    push_filters: bool | None = None  # for frames that are used once, see push_down.py
    data_dirs: tuple[str, ...] | None = None
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    max_trigger_delay_ms: int = DEFAULT_TRIGGER_DELAY_MS
    group_id: str | None = None
    patience_seconds: float = DEFAULT_PATIENCE_SECONDS
    offset_attempts: int = 3  # before an end that lies before what was read is believed
    offset_interval_ms: int = 1000
    ignored: tuple[str, ...] = ()  # that were given, and count only in a stream


def batch_options(options: Mapping[str, str]) -> ReadOptions:
    return _Parser(options).parsed(is_stream=False)


def stream_options(options: Mapping[str, str]) -> ReadOptions:
    return _Parser(options).parsed(is_stream=True)


def includes_headers(options: Mapping[str, str]) -> bool:
    """That one option, before it is known whether this is a batch, a stream or a write."""
    given = {name.lower(): value for name, value in options.items()}
    return _boolean("includeHeaders", given.get("includeheaders", "false"))


class _Parser:
    def __init__(self, options: Mapping[str, str]) -> None:
        self._given = {name.lower(): value for name, value in options.items()}

    def parsed(self, *, is_stream: bool) -> ReadOptions:
        self._check_names()
        if is_stream:
            self._refuse_ends()
        starting = self._limit("starting", AtEdge(LATEST if is_stream else EARLIEST))
        ending = self._limit("ending", AtEdge(LATEST))
        if not is_stream:
            _check_batch_limits(starting, ending)
        least, most = self._positive("minOffsetsPerTrigger"), self._positive("maxOffsetsPerTrigger")
        if least is not None and most is not None and least > most:
            raise ConfigError(f"minOffsetsPerTrigger is {least}, more than maxOffsetsPerTrigger, which is {most}")
        return ReadOptions(
            strategy=self._strategy(),
            kafka=self._kafka(),
            starting=starting,
            ending=ending,
            predicate=predicates.from_options(self._given),
            isolation=self._isolation(),
            fail_on_data_loss=self._flag("failOnDataLoss", default=True),
            include_headers=self._flag("includeHeaders", default=False),
            push_filters=self._option("pushFilters", _boolean),
            data_dirs=self._data_dirs(),
            min_partitions=self._positive("minPartitions", _INT),
            max_records_per_partition=self._positive("maxRecordsPerPartition"),
            max_offsets_per_trigger=most,
            min_offsets_per_trigger=least,
            max_bytes_per_trigger=self._positive("maxBytesPerTrigger"),
            max_trigger_delay_ms=self._option("maxTriggerDelay", _milliseconds) or DEFAULT_TRIGGER_DELAY_MS,
            group_id=self._option("group.id", _not_empty),
            patience_seconds=(self._positive("kafkaConsumer.pollTimeoutMs") or DEFAULT_PATIENCE_SECONDS * 1000) / 1000,
            offset_attempts=self._positive("fetchOffset.numRetries", _INT) or 3,
            offset_interval_ms=self._positive("fetchOffset.retryIntervalMs", _INT) or 1000,
            ignored=() if is_stream else tuple(name for name in _STREAM_ONLY if self._has(name)),
        )

    # Names

    def _check_names(self) -> None:
        known = {name.lower(): name for name in READ_OPTIONS}
        for name in self._given:
            if name in known or name.startswith(KAFKA):
                continue
            if name == "path":
                raise ConfigError(
                    f"load({self._given[name]!r}) names a path; name topics by {SUBSCRIBE} and call load()"
                )
            near = get_close_matches(name, [*known, "kafka.bootstrap.servers"], 1)
            hint = f"did you mean {known.get(near[0], near[0])}?" if near else f"known are: {', '.join(READ_OPTIONS)}"
            if name in ConsumerSettings.names():
                hint = f"did you mean kafka.{name}?"
            raise ConfigError(f"{name!r} is not an option of a read; {hint}")

    def _refuse_ends(self) -> None:
        for name in _BATCH_ONLY:
            if self._has(name):
                raise ConfigError(f"{name} is for batches; a stream has no end: stop it, or use a trigger availableNow")

    def _has(self, name: str) -> bool:
        return name.lower() in self._given

    def _option(self, name: str, parse: Callable[[str, str], T]) -> T | None:
        value = self._given.get(name.lower())
        return None if value is None else parse(name, value)

    def _flag(self, name: str, *, default: bool) -> bool:
        value = self._option(name, _boolean)
        return default if value is None else value

    def _positive(self, name: str, most: int = _LONG) -> int | None:
        value = self._option(name, _integer)
        if value is not None and not 0 < value <= most:
            raise ConfigError(f"{name} is {value}; it must be 1 to {most}")
        return value

    # Partitions

    def _strategy(self) -> Strategy:
        given = [name for name in STRATEGIES if self._has(name)]
        if len(given) != 1:
            said = f"{' and '.join(given)} are given" if given else "none is given"
            raise ConfigError(f"one of {', '.join(STRATEGIES)} must say what to read; {said}")
        value = self._given[given[0].lower()].strip()
        if given[0] == SUBSCRIBE:
            topics = tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))
            if not topics:
                raise ConfigError(f"{SUBSCRIBE} is {value!r}; it must name a topic, or several with commas between")
            return Subscribed(topics)
        if given[0] == SUBSCRIBE_PATTERN:
            return Matching(_pattern(value))
        return Assigned(_partitions(ASSIGN, value))

    # Kafka's settings

    def _kafka(self) -> Mapping[str, str]:
        settings = {name[len(KAFKA) :]: value for name, value in self._given.items() if name.startswith(KAFKA)}
        if "bootstrap.servers" not in settings:
            raise ConfigError("kafka.bootstrap.servers must say where the brokers are, as host:port")
        for name in settings:
            if name in _DECIDED_HERE:
                raise ConfigError(f"kafka.{name} can't be set: {_DECIDED_HERE[name]}")
        prefix = self._option("groupIdPrefix", _not_empty)
        settings.setdefault("client.id", f"{prefix}-spark" if prefix else "stratalog-spark")
        settings.setdefault("max.partition.fetch.bytes", str(DEFAULT_FETCH_BYTES))
        settings.pop("isolation.level", None)
        try:
            ConsumerSettings.parse(settings)
        except ConfigError as error:
            raise ConfigError(f"kafka.{error}") from None
        return settings

    def _isolation(self) -> str:
        own, kafkas = self._given.get("isolation.level"), self._given.get("kafka.isolation.level")
        if own is not None and kafkas is not None and own != kafkas:
            raise ConfigError(f"isolation.level is {own!r} and kafka.isolation.level {kafkas!r}; give one of them")
        value = (own or kafkas or READ_UNCOMMITTED).strip().lower()
        if value not in (READ_UNCOMMITTED, READ_COMMITTED):
            raise ConfigError(f"isolation.level is {value!r}; it must be {READ_UNCOMMITTED} or {READ_COMMITTED}")
        return value

    def _data_dirs(self) -> tuple[str, ...] | None:
        value = self._given.get("log.dirs")
        if value is None:
            return None
        dirs = tuple(part.strip() for part in value.split(",") if part.strip())
        if dirs == ("none",):
            return ()
        if not dirs or not all(part.startswith("/") for part in dirs):
            raise ConfigError(
                f"log.dirs is {value!r}; it must be the brokers' data directories as the executors see them, absolute, "
                f"with commas between, or none, to read over the wire"
            )
        return dirs

    # Limits

    def _limit(self, which: str, default: Limit) -> Limit:
        """One time for all counts before times by partition, and those before offsets, as in the stock connector."""
        or_latest = self._or_latest()
        everywhere = self._option(f"{which}Timestamp", _integer)
        if everywhere is not None:
            _check_timestamp(f"{which}Timestamp", everywhere)
            return AtTimestamps(everywhere=everywhere, or_latest=or_latest)
        by_time = f"{which}OffsetsByTimestamp"
        timestamps = self._option(by_time, _numbers)
        if timestamps is not None:
            for timestamp in timestamps.values():
                _check_timestamp(by_time, timestamp)
            return AtTimestamps(timestamps, or_latest=or_latest)
        limit = self._option(f"{which}Offsets", _offsets)
        return default if limit is None else limit

    def _or_latest(self) -> bool:
        name = "startingOffsetsByTimestampStrategy"
        value = self._given.get(name.lower(), "error")
        if value.lower() not in ("error", "latest"):
            raise ConfigError(f"{name} is {value!r}; it must be error or latest")
        return value.lower() == "latest"


def _check_batch_limits(starting: Limit, ending: Limit) -> None:
    if starting == AtEdge(LATEST):
        raise ConfigError("startingOffsets is latest; a batch can't begin there: nothing would be left to read")
    if ending == AtEdge(EARLIEST):
        raise ConfigError("endingOffsets is earliest; a batch can't end there: nothing would be before it")
    for limit, edge, what in ((starting, LATEST, "starting"), (ending, EARLIEST, "ending")):
        if isinstance(limit, AtOffsets):
            for place, offset in limit.offsets.items():
                if offset == edge:
                    word = "latest" if edge == LATEST else "earliest"
                    raise ConfigError(f"{what}Offsets has {edge} for {place}; a batch can't be {what} at {word}")
    pairs: tuple[tuple[str, Mapping[TopicPartition, int], Mapping[TopicPartition, int]], ...] = ()
    if isinstance(starting, AtOffsets) and isinstance(ending, AtOffsets):
        pairs = (("Offsets", starting.offsets, ending.offsets),)
    elif isinstance(starting, AtTimestamps) and isinstance(ending, AtTimestamps):
        if starting.everywhere is None and ending.everywhere is None:
            pairs = (("OffsetsByTimestamp", starting.timestamps, ending.timestamps),)
        elif starting.everywhere is not None and ending.everywhere is not None:
            _check_order("Timestamp", "all partitions", starting.everywhere, ending.everywhere)
    for name, start, end in pairs:
        if start.keys() != end.keys():
            odd = sorted(start.keys() ^ end.keys())[0]
            raise ConfigError(f"starting{name} and ending{name} must name the same partitions; {odd} is in one only")
        for place in start:
            _check_order(name, str(place), start[place], end[place])


def _check_order(name: str, place: str, start: int, end: int) -> None:
    if 0 <= end < start:
        raise ConfigError(f"starting{name} has {start} for {place}, and ending{name} has {end}, which is before that")


def _check_timestamp(name: str, milliseconds: int) -> None:
    """Brokers take -1 and -2 for the end and the start: no time must look like one of them."""
    if milliseconds < 0:
        raise ConfigError(f"{name} has {milliseconds}; times are milliseconds since 1970, 0 or more")


# Values


def _boolean(name: str, value: str) -> bool:
    if value.strip().lower() not in ("true", "false"):
        raise ConfigError(f"{name} is {value!r}; it must be true or false")
    return value.strip().lower() == "true"


def _integer(name: str, value: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,19}", value.strip(), re.ASCII) or abs(int(value)) > _LONG:
        raise ConfigError(f"{name} is {value[:100]!r}; it must be a whole number of at most 64 bits")
    return int(value)


def _not_empty(name: str, value: str) -> str:
    if not value.strip():
        raise ConfigError(f"{name} is {value!r}; it must be a name")
    return value.strip()


_UNITS = {
    "us": 0.001,
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "": 1,
}


def _milliseconds(name: str, value: str) -> int:
    """As Spark writes durations: 15m, 30s, 100ms; a number alone is milliseconds."""
    found = re.fullmatch(r"([0-9]{1,15})\s*([a-z]*)", value.strip().lower())
    if found is None or found[2] not in _UNITS:
        raise ConfigError(f"{name} is {value!r}; it must be a duration like 500ms, 30s, 15m or 1h")
    return int(int(found[1]) * _UNITS[found[2]])


def _pattern(value: str) -> str:
    if not value:
        raise ConfigError(
            f"{SUBSCRIBE_PATTERN} is empty; it must be a regular expression that a topic's whole name matches"
        )
    try:
        re.compile(value)
    except re.error as error:
        raise ConfigError(f"{SUBSCRIBE_PATTERN} is {value!r}, which is no regular expression: {error}") from None
    return value


# JSON


def _offsets(name: str, value: str) -> Limit:
    word = value.strip().lower()
    if word in ("earliest", "latest"):
        return AtEdge(EARLIEST if word == "earliest" else LATEST)
    if not word.startswith("{"):
        raise ConfigError(
            f'{name} is {value[:100]!r}; it must be earliest, latest, or JSON like {{"topic": {{"0": 23}}}}'
        )
    offsets = _numbers(name, value)
    for place, offset in offsets.items():
        if offset < EARLIEST:
            raise ConfigError(f"{name} has {offset} for {place}; it must be an offset, -2 (earliest) or -1 (latest)")
    return AtOffsets(offsets)


def _numbers(name: str, value: str) -> dict[TopicPartition, int]:
    """{"topic": {"0": 23}}"""
    found: dict[TopicPartition, int] = {}
    for topic, partitions in _object(name, value).items():
        if not isinstance(partitions, dict):
            raise ConfigError(f'{name}: {topic!r} has {_shown(partitions)}; partitions are wanted, like {{"0": 23}}')
        for partition, number in partitions.items():
            if not isinstance(number, int) or isinstance(number, bool) or abs(number) > _LONG:
                raise ConfigError(f"{name}: {topic} partition {partition} has {_shown(number)}; a number is wanted")
            found[TopicPartition(topic, _partition(name, topic, partition))] = number
    if not found:
        raise ConfigError(f'{name} is {value[:100]!r}; it must name partitions, like {{"topic": {{"0": 23}}}}')
    return found


def _partitions(name: str, value: str) -> tuple[TopicPartition, ...]:
    """{"topic": [0, 1]}"""
    found: dict[TopicPartition, None] = {}
    for topic, partitions in _object(name, value).items():
        if not isinstance(partitions, list):
            raise ConfigError(
                f"{name}: {topic!r} has {_shown(partitions)}; a list of partitions is wanted, like [0, 1]"
            )
        for partition in partitions:
            found[TopicPartition(topic, _partition(name, topic, partition))] = None
    if not found:
        raise ConfigError(f'{name} is {value[:100]!r}; it must name partitions, like {{"topic": [0, 1]}}')
    return tuple(sorted(found))


def _object(name: str, value: str) -> dict[str, object]:
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{name} is {value[:100]!r}, which is no JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise ConfigError(f'{name} is {value[:100]!r}; it must be JSON like {{"topic": ...}}')
    return parsed


def _partition(name: str, topic: str, partition: object) -> int:
    text = str(partition)
    if isinstance(partition, bool) or not re.fullmatch(r"[0-9]{1,10}", text, re.ASCII) or int(text) > _INT:
        raise ConfigError(f"{name}: {topic} has {_shown(partition)} in the place of a partition's number")
    return int(text)


def _shown(value: object) -> str:
    return repr(value)[:100]

"""The options of a read, parsed: those of Spark's Kafka connector, with its names, defaults and meaning, and our own.

Names are case-insensitive, as in Spark. An unknown name is refused, with the most similar one as a suggestion; so is a
`kafka.` setting that the reader sets itself. Pure: broker_offsets.py looks up what the options name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import TypeVar

from stratalog.client.consumer_settings import ConsumerSettings
from stratalog.client.metadata import TopicPartition
from stratalog.errors import ConfigError
from stratalog.spark import option_values as values
from stratalog.spark import predicate as predicates
from stratalog.spark.read_options import (
    DEFAULT_TRIGGER_DELAY_MS,
    EARLIEST,
    LATEST,
    Assigned,
    AtEdge,
    AtOffsets,
    AtTimestamps,
    Limit,
    Matching,
    ReadOptions,
    Strategy,
    Subscribed,
)
from stratalog.spark.scan_request import DEFAULT_PATIENCE_SECONDS, MIB, READ_COMMITTED, READ_UNCOMMITTED

T = TypeVar("T")

KAFKA = "kafka."
DEFAULT_FETCH_BYTES = 8 * MIB  # per partition; a scan reads one partition to its end

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

_SET_BY_READER = {
    "auto.offset.reset": "the checkpoint and startingOffsets decide where to start: set startingOffsets",
    "key.deserializer": "keys are returned as binary: decode them in the query",
    "value.deserializer": "values are returned as binary: decode them in the query",
    "enable.auto.commit": "progress is in the checkpoint; set group.id, without kafka., to commit it as well",
    "interceptor.classes": "Java classes can't be loaded here",
}


def batch_options(options: Mapping[str, str]) -> ReadOptions:
    return _Parser(options).parsed(is_stream=False)


def stream_options(options: Mapping[str, str]) -> ReadOptions:
    return _Parser(options).parsed(is_stream=True)


def includes_headers(options: Mapping[str, str]) -> bool:
    """Parse this one option, before it is known whether the options are for a batch, a stream or a write."""
    lower = {name.lower(): value for name, value in options.items()}
    return values.boolean("includeHeaders", lower.get("includeheaders", "false"))


def consumer_settings(kafka: Mapping[str, str], client_id: str = "stratalog-spark") -> Mapping[str, str]:
    """Check the settings of a reader's client, and add defaults. Raises ConfigError with the prefix `kafka.`."""
    settings = dict(kafka)
    if "bootstrap.servers" not in settings:
        raise ConfigError("kafka.bootstrap.servers is missing; set it to the brokers' addresses, as host:port")
    for name in settings:
        if name in _SET_BY_READER:
            raise ConfigError(f"kafka.{name} can't be set: {_SET_BY_READER[name]}")
    settings.setdefault("client.id", client_id)
    settings.setdefault("max.partition.fetch.bytes", str(DEFAULT_FETCH_BYTES))
    settings.pop("isolation.level", None)
    try:
        ConsumerSettings.parse(settings)
    except ConfigError as error:
        raise ConfigError(f"kafka.{error}") from None
    return settings


class _Parser:
    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = {name.lower(): value for name, value in options.items()}

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
            predicate=predicates.from_options(self._options),
            isolation=self._isolation(),
            fail_on_data_loss=self._flag("failOnDataLoss", default=True),
            include_headers=self._flag("includeHeaders", default=False),
            push_filters=self._option("pushFilters", values.boolean),
            data_dirs=self._option("log.dirs", values.data_dirs),
            min_partitions=self._positive("minPartitions", values.HIGHEST_INT),
            max_records_per_partition=self._positive("maxRecordsPerPartition"),
            max_offsets_per_trigger=most,
            min_offsets_per_trigger=least,
            max_bytes_per_trigger=self._positive("maxBytesPerTrigger"),
            max_trigger_delay_ms=self._option("maxTriggerDelay", values.milliseconds) or DEFAULT_TRIGGER_DELAY_MS,
            group_id=self._option("group.id", values.not_empty),
            patience_seconds=(self._positive("kafkaConsumer.pollTimeoutMs") or DEFAULT_PATIENCE_SECONDS * 1000) / 1000,
            offset_attempts=self._positive("fetchOffset.numRetries", values.HIGHEST_INT) or 3,
            offset_interval_ms=self._positive("fetchOffset.retryIntervalMs", values.HIGHEST_INT) or 1000,
            ignored=() if is_stream else tuple(name for name in _STREAM_ONLY if self._has(name)),
        )

    # Names

    def _check_names(self) -> None:
        known = {name.lower(): name for name in READ_OPTIONS}
        for name in self._options:
            if name in known or name.startswith(KAFKA):
                continue
            if name == "path":
                raise ConfigError(
                    f"load({self._options[name]!r}) names a path; name topics by {SUBSCRIBE} and call load()"
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
        return name.lower() in self._options

    def _option(self, name: str, parse: Callable[[str, str], T]) -> T | None:
        value = self._options.get(name.lower())
        return None if value is None else parse(name, value)

    def _flag(self, name: str, *, default: bool) -> bool:
        value = self._option(name, values.boolean)
        return default if value is None else value

    def _positive(self, name: str, most: int = values.HIGHEST_LONG) -> int | None:
        value = self._option(name, values.integer)
        if value is not None and not 0 < value <= most:
            raise ConfigError(f"{name} is {value}; it must be 1 to {most}")
        return value

    # Partitions

    def _strategy(self) -> Strategy:
        names = [name for name in STRATEGIES if self._has(name)]
        if len(names) != 1:
            reason = f"{' and '.join(names)} are set" if names else "none is set"
            raise ConfigError(f"exactly one of {', '.join(STRATEGIES)} must be set; {reason}")
        value = self._options[names[0].lower()].strip()
        if names[0] == SUBSCRIBE:
            topics = tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))
            if not topics:
                raise ConfigError(f"{SUBSCRIBE} is {value!r}; it must name a topic, or several separated by commas")
            return Subscribed(topics)
        if names[0] == SUBSCRIBE_PATTERN:
            return Matching(values.pattern(SUBSCRIBE_PATTERN, value))
        return Assigned(values.partitions(ASSIGN, value))

    # Kafka's settings

    def _kafka(self) -> Mapping[str, str]:
        settings = {name[len(KAFKA) :]: value for name, value in self._options.items() if name.startswith(KAFKA)}
        prefix = self._option("groupIdPrefix", values.not_empty)
        return consumer_settings(settings, f"{prefix}-spark") if prefix else consumer_settings(settings)

    def _isolation(self) -> str:
        own, kafkas = self._options.get("isolation.level"), self._options.get("kafka.isolation.level")
        if own is not None and kafkas is not None and own != kafkas:
            raise ConfigError(f"isolation.level is {own!r} and kafka.isolation.level {kafkas!r}; set one of them")
        value = (own or kafkas or READ_UNCOMMITTED).strip().lower()
        if value not in (READ_UNCOMMITTED, READ_COMMITTED):
            raise ConfigError(f"isolation.level is {value!r}; it must be {READ_UNCOMMITTED} or {READ_COMMITTED}")
        return value

    # Limits

    def _limit(self, which: str, default: Limit) -> Limit:
        """Return the start or the end. One time for all takes precedence over times by partition, and those over
        offsets, as in Spark's Kafka connector."""
        or_latest = self._or_latest()
        everywhere = self._option(f"{which}Timestamp", values.integer)
        if everywhere is not None:
            return AtTimestamps(everywhere=values.timestamp(f"{which}Timestamp", everywhere), or_latest=or_latest)
        by_time = f"{which}OffsetsByTimestamp"
        timestamps = self._option(by_time, values.numbers)
        if timestamps is not None:
            for milliseconds in timestamps.values():
                values.timestamp(by_time, milliseconds)
            return AtTimestamps(timestamps, or_latest=or_latest)
        limit = self._option(f"{which}Offsets", values.offsets)
        return default if limit is None else limit

    def _or_latest(self) -> bool:
        name = "startingOffsetsByTimestampStrategy"
        value = self._options.get(name.lower(), "error")
        if value.lower() not in ("error", "latest"):
            raise ConfigError(f"{name} is {value!r}; it must be error or latest")
        return value.lower() == "latest"


def _check_batch_limits(starting: Limit, ending: Limit) -> None:
    if starting == AtEdge(LATEST):
        raise ConfigError("startingOffsets is latest; a batch can't start there: nothing would be left to read")
    if ending == AtEdge(EARLIEST):
        raise ConfigError("endingOffsets is earliest; a batch can't end there: nothing would be before it")
    for limit, edge, name, verb in (
        (starting, LATEST, "startingOffsets", "start at latest"),
        (ending, EARLIEST, "endingOffsets", "end at earliest"),
    ):
        if isinstance(limit, AtOffsets):
            for partition, offset in limit.offsets.items():
                if offset == edge:
                    raise ConfigError(f"{name} has {edge} for {partition}; a batch can't {verb}")
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
        for partition in start:
            _check_order(name, str(partition), start[partition], end[partition])


def _check_order(name: str, partition: str, start: int, end: int) -> None:
    if 0 <= end < start:
        raise ConfigError(
            f"starting{name} has {start} for {partition}, and ending{name} has {end}, which is before that"
        )

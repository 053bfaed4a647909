"""What brokers say of topics: which partitions there are, where they begin and end, what lies at a time, how large they
are. Blocking calls, over the process's one client; nothing is kept here.

Where the broker is away it is asked again, for as long as default.api.timeout.ms allows; then the error says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from stratalog.client.administration.brokers import LogDir, describe_log_dirs
from stratalog.client.administration.group_offsets import alter_group_offsets
from stratalog.client.administration.outcomes import Outcomes
from stratalog.client.administration.records import list_offsets
from stratalog.client.administration.topics import ask_metadata
from stratalog.client.errors import ClientError, error_of
from stratalog.client.metadata import Metadata, Node, TopicPartition
from stratalog.client.offset_lookup import OffsetLookup
from stratalog.errors import ConfigError
from stratalog.protocol.error_codes import ErrorCode
from stratalog.spark.broker_client import using
from stratalog.spark.read_options import (
    EARLIEST,
    LATEST,
    Assigned,
    AtEdge,
    AtTimestamps,
    Limit,
    Matching,
    Strategy,
    Subscribed,
)
from stratalog.spark.scan_request import READ_COMMITTED

NONE_FOUND = -1
Offsets = dict[TopicPartition, int]


@dataclass(frozen=True)
class Partitions:
    """What there is to read, in order. A topic whose id is not known has None."""

    places: tuple[TopicPartition, ...]
    topic_ids: Mapping[str, UUID | None] = field(default_factory=dict)
    nodes: tuple[Node, ...] = ()


class BrokerOffsets:
    def __init__(self, kafka: Mapping[str, str], strategy: Strategy, isolation: str) -> None:
        self._kafka = kafka
        self._strategy = strategy
        self._read_committed = isolation == READ_COMMITTED

    # Partitions

    def partitions(self, *, missing_ok: bool = False) -> Partitions:
        """Of the topics that are subscribed to or match, or those assigned. One that does not exist is an error, or
        with `missing_ok` left out."""
        strategy = self._strategy
        if isinstance(strategy, Matching):
            return self._matching(re.compile(strategy.pattern))
        names = strategy.topics if isinstance(strategy, Subscribed) else {one.topic for one in strategy.partitions}
        metadata = self._metadata(sorted(names))
        places: list[TopicPartition] = []
        for name in sorted(names):
            info = metadata.topics.get(name)
            code = ErrorCode.unknown_topic_or_partition if info is None else info.error_code
            if info is None or code:
                if missing_ok and code == ErrorCode.unknown_topic_or_partition:
                    continue
                raise _no_topic(name, int(code))
            places += [TopicPartition(name, one.partition) for one in info.partitions]
        if isinstance(strategy, Assigned):
            absent = sorted(set(strategy.partitions) - set(places))
            if absent and not missing_ok:
                raise error_of(int(ErrorCode.unknown_topic_or_partition), about=f"{absent[0]}, which assign names")
            places = [place for place in places if place in set(strategy.partitions)]
        return _partitions(metadata, places)

    def _matching(self, pattern: re.Pattern[str]) -> Partitions:
        metadata = self._metadata(None)
        places = [
            TopicPartition(name, one.partition)
            for name, info in sorted(metadata.topics.items())
            if pattern.fullmatch(name) and not info.is_internal and not info.error_code
            for one in info.partitions
        ]
        return _partitions(metadata, places)

    def _metadata(self, names: list[str] | None) -> Metadata:
        with using(self._kafka) as client:
            return client.run(ask_metadata(client.cluster, names, None))

    # Offsets

    def earliest(self, places: Iterable[TopicPartition]) -> Offsets:
        return self.lookup(dict.fromkeys(places, EARLIEST))

    def latest(self, places: Iterable[TopicPartition]) -> Offsets:
        """High watermarks; for read_committed the last stable offsets."""
        return self.lookup(dict.fromkeys(places, LATEST))

    def lookup(self, wanted: Mapping[TopicPartition, int]) -> Offsets:
        """For each partition what LATEST or EARLIEST stands for, or the first offset at or after a time."""
        if not wanted:
            return {}
        with using(self._kafka) as client:
            found = client.run(list_offsets(client.cluster, wanted, self._read_committed, None)).check()
        return {place: found[place].offset for place in wanted}

    def latest_again(self, places: Iterable[TopicPartition], seconds: float) -> Offsets:
        """As `latest`, of partitions whose leaders were known a moment ago: one request a leader, and no metadata.
        Gives up after so many seconds, with a ClientError; then `partitions` and `latest` know more."""
        wanted = dict.fromkeys(places, LATEST)
        with using(self._kafka) as client:
            lookup = OffsetLookup(client.cluster, client.settings, read_committed=self._read_committed)
            found = client.run(client.cluster.retry(lambda left: lookup.offsets(wanted, left), seconds))
        return {place: one.offset for place, one in found.items()}

    def resolve(self, limit: Limit, places: tuple[TopicPartition, ...], *, is_start: bool) -> Offsets:
        """The offsets that a limit stands for, all of them known numbers."""
        name = "startingOffsets" if is_start else "endingOffsets"
        if isinstance(limit, AtEdge):
            return self.lookup(dict.fromkeys(places, limit.edge))
        if isinstance(limit, AtTimestamps):
            return self._at_timestamps(limit, places, is_start, name)
        _check_named(name, limit.offsets, places)
        edges = self.lookup({place: offset for place, offset in limit.offsets.items() if offset < 0})
        return {place: edges.get(place, limit.offsets[place]) for place in places}

    def _at_timestamps(
        self, limit: AtTimestamps, places: tuple[TopicPartition, ...], is_start: bool, name: str
    ) -> Offsets:
        if limit.everywhere is not None:
            times: Mapping[TopicPartition, int] = dict.fromkeys(places, limit.everywhere)
        else:
            times = limit.timestamps
            _check_named(f"{name}ByTimestamp", times, places)
        found = self.lookup(times)
        nothing = [place for place, offset in found.items() if offset == NONE_FOUND]
        if nothing and is_start and not limit.or_latest:
            raise ConfigError(
                f"{nothing[0]} has no record at or after {times[nothing[0]]} ms; with "
                f"startingOffsetsByTimestampStrategy=latest such partitions are read from their end on"
            )
        return found | self.latest(nothing)

    # Sizes, and groups

    def sizes(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Bytes on the leaders' disks, or of the largest replica; partitions that no broker tells of are left out."""
        found: dict[TopicPartition, int] = {}
        for dirs in self._log_dirs(places).succeeded().values():
            for directory in dirs.values():
                for place, replica in directory.replicas.items():
                    if not replica.is_future:
                        found[place] = max(found.get(place, 0), replica.size)
        return found

    def directories(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, list[str]]:
        """The data directories that brokers have these in, as they see them."""
        found: dict[TopicPartition, list[str]] = {}
        for dirs in self._log_dirs(places).succeeded().values():
            for path, directory in dirs.items():
                for place in directory.replicas:
                    found.setdefault(place, []).append(path)
        return found

    def _log_dirs(self, places: Iterable[TopicPartition]) -> Outcomes[int, dict[str, LogDir]]:
        with using(self._kafka) as client:
            return client.run(describe_log_dirs(client.cluster, None, list(places), None))

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> Outcomes[TopicPartition, None]:
        """In the group's name, without being a member of it."""
        with using(self._kafka) as client:
            return client.run(alter_group_offsets(client.cluster, group, offsets, None))


def _partitions(metadata: Metadata, places: list[TopicPartition]) -> Partitions:
    ids = {place.topic: metadata.topics[place.topic].id for place in places}
    return Partitions(tuple(sorted(places)), ids, tuple(metadata.nodes.values()))


def _no_topic(name: str, code: int) -> ClientError:
    said = "create it, or correct the name" if code == ErrorCode.unknown_topic_or_partition else None
    return error_of(code, said, about=f"topic {name!r}")


def _check_named(name: str, named: Mapping[TopicPartition, int], places: tuple[TopicPartition, ...]) -> None:
    """All, and no others: one that was forgotten would otherwise be read from who knows where."""
    missing = [place for place in places if place not in named]
    if missing:
        raise ConfigError(
            f"{name} does not name {missing[0]}; it must name each partition that is read (-2: its start, -1: its end)"
        )
    unknown = sorted(set(named) - set(places))
    if unknown:
        raise ConfigError(f"{name} names {unknown[0]}, which is not among the partitions that are read")

"""Looks up topics at the brokers: their partitions, start and end offsets, offsets of timestamps, and sizes.

The calls block, use the process's client, and cache nothing. While the broker is away they retry, up to
default.api.timeout.ms, and then raise an error.
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
from stratalog.client.metadata import MetadataSnapshot, Node, TopicPartition
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
    """Existing partitions, sorted. Topics have no id if the broker supports none."""

    partitions: tuple[TopicPartition, ...]
    topic_ids: Mapping[str, UUID | None] = field(default_factory=dict)
    nodes: tuple[Node, ...] = ()


class BrokerOffsets:
    def __init__(self, kafka: Mapping[str, str], strategy: Strategy, isolation: str) -> None:
        self._kafka = kafka
        self._strategy = strategy
        self._read_committed = isolation == READ_COMMITTED

    # Partitions

    def partitions(self, *, missing_ok: bool = False) -> Partitions:
        """Return the partitions that the strategy selects. A missing topic or partition is an error, or with
        `missing_ok` left out."""
        strategy = self._strategy
        if isinstance(strategy, Matching):
            return self._matching(re.compile(strategy.pattern))
        if isinstance(strategy, Subscribed):
            names = set(strategy.topics)
        else:
            names = {partition.topic for partition in strategy.partitions}
        metadata = self._metadata(sorted(names))
        partitions: list[TopicPartition] = []
        for name in sorted(names):
            info = metadata.topics.get(name)
            code = ErrorCode.unknown_topic_or_partition if info is None else info.error_code
            if info is None or code:
                if missing_ok and code == ErrorCode.unknown_topic_or_partition:
                    continue
                raise _missing_topic(name, int(code))
            partitions += [TopicPartition(name, each.partition) for each in info.partitions]
        if isinstance(strategy, Assigned):
            missing = sorted(set(strategy.partitions) - set(partitions))
            if missing and not missing_ok:
                raise error_of(int(ErrorCode.unknown_topic_or_partition), about=f"{missing[0]}, which assign names")
            partitions = [partition for partition in partitions if partition in set(strategy.partitions)]
        return _partitions(metadata, partitions)

    def _matching(self, pattern: re.Pattern[str]) -> Partitions:
        metadata = self._metadata(None)
        partitions = [
            TopicPartition(name, each.partition)
            for name, info in sorted(metadata.topics.items())
            if pattern.fullmatch(name) and not info.is_internal and not info.error_code
            for each in info.partitions
        ]
        return _partitions(metadata, partitions)

    def _metadata(self, names: list[str] | None) -> MetadataSnapshot:
        with using(self._kafka) as client:
            return client.run(ask_metadata(client.cluster, names, None))

    # Offsets

    def earliest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        return self.lookup(dict.fromkeys(partitions, EARLIEST))

    def latest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """Return the high watermarks, or for read_committed the last stable offsets."""
        return self.lookup(dict.fromkeys(partitions, LATEST))

    def lookup(self, specs: Mapping[TopicPartition, int]) -> Offsets:
        """Return for each partition the offset that LATEST or EARLIEST stands for, or the first one at or after a
        timestamp. NONE_FOUND means that there is no such record."""
        if not specs:
            return {}
        with using(self._kafka) as client:
            listed = client.run(list_offsets(client.cluster, specs, self._read_committed, None)).check()
        return {partition: listed[partition].offset for partition in specs}

    def latest_again(self, partitions: Iterable[TopicPartition], seconds: float) -> Offsets:
        """Return the same as `latest`, with one request per leader and none for metadata: the leaders must be known.
        Raises ClientError after `seconds`; then call `partitions` and `latest`."""
        specs = dict.fromkeys(partitions, LATEST)
        with using(self._kafka) as client:
            lookup = OffsetLookup(client.cluster, client.settings, read_committed=self._read_committed)
            offsets = client.run(client.cluster.retry(lambda left: lookup.offsets(specs, left), seconds))
        return {partition: listed.offset for partition, listed in offsets.items()}

    def resolve(self, limit: Limit, partitions: tuple[TopicPartition, ...], *, is_start: bool) -> Offsets:
        """Return the offsets that a limit stands for."""
        name = "startingOffsets" if is_start else "endingOffsets"
        if isinstance(limit, AtEdge):
            return self.lookup(dict.fromkeys(partitions, limit.edge))
        if isinstance(limit, AtTimestamps):
            return self._at_timestamps(limit, partitions, is_start, name)
        _check_named(name, limit.offsets, partitions)
        edges = self.lookup({partition: offset for partition, offset in limit.offsets.items() if offset < 0})
        return {partition: edges.get(partition, limit.offsets[partition]) for partition in partitions}

    def _at_timestamps(
        self, limit: AtTimestamps, partitions: tuple[TopicPartition, ...], is_start: bool, name: str
    ) -> Offsets:
        if limit.everywhere is not None:
            times: Mapping[TopicPartition, int] = dict.fromkeys(partitions, limit.everywhere)
        else:
            times = limit.timestamps
            _check_named(f"{name}ByTimestamp", times, partitions)
        offsets = self.lookup(times)
        without = [partition for partition, offset in offsets.items() if offset == NONE_FOUND]
        if without and is_start and not limit.or_latest:
            raise ConfigError(
                f"{without[0]} has no record at or after {times[without[0]]} ms; set "
                "startingOffsetsByTimestampStrategy=latest to start such partitions at their end"
            )
        return offsets | self.latest(without)

    # Sizes, and groups

    def sizes(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the bytes on disk of each partition's largest replica, for the partitions that brokers report."""
        sizes: dict[TopicPartition, int] = {}
        for dirs in self._log_dirs(partitions).succeeded().values():
            for directory in dirs.values():
                for partition, replica in directory.replicas.items():
                    if not replica.is_future:
                        sizes[partition] = max(sizes.get(partition, 0), replica.size)
        return sizes

    def directories(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, list[str]]:
        """Return the data directories of the partitions, as the brokers see them."""
        directories: dict[TopicPartition, list[str]] = {}
        for dirs in self._log_dirs(partitions).succeeded().values():
            for path, directory in dirs.items():
                for partition in directory.replicas:
                    directories.setdefault(partition, []).append(path)
        return directories

    def in_sync(self, known: Partitions) -> dict[TopicPartition, tuple[int, ...]]:
        """Return the node ids of the replicas in sync: they have every record before the offsets that `latest` returned
        earlier. Nothing for a single broker, which has the only replica."""
        if len(known.nodes) == 1:
            return {}
        topics = self._metadata(sorted({partition.topic for partition in known.partitions})).topics
        return {
            TopicPartition(name, each.partition): tuple(node_id for node_id in each.isr if node_id not in each.offline)
            for name, info in topics.items()
            for each in info.partitions
        }

    def _log_dirs(self, partitions: Iterable[TopicPartition]) -> Outcomes[int, dict[str, LogDir]]:
        with using(self._kafka) as client:
            return client.run(describe_log_dirs(client.cluster, None, list(partitions), None))

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> Outcomes[TopicPartition, None]:
        """Commit offsets for a group without being a member of it."""
        with using(self._kafka) as client:
            return client.run(alter_group_offsets(client.cluster, group, offsets, None))


def _partitions(metadata: MetadataSnapshot, partitions: list[TopicPartition]) -> Partitions:
    ids = {partition.topic: metadata.topics[partition.topic].id for partition in partitions}
    return Partitions(tuple(sorted(partitions)), ids, tuple(metadata.nodes.values()))


def _missing_topic(name: str, code: int) -> ClientError:
    advice = "create it, or correct the name" if code == ErrorCode.unknown_topic_or_partition else None
    return error_of(code, advice, about=f"topic {name!r}")


def _check_named(name: str, named: Mapping[TopicPartition, int], partitions: tuple[TopicPartition, ...]) -> None:
    """Raise ConfigError unless the option names exactly the partitions that are read."""
    missing = [partition for partition in partitions if partition not in named]
    if missing:
        raise ConfigError(
            f"{name} does not name {missing[0]}; it must name each partition that is read (-2: its start, -1: its end)"
        )
    unknown = sorted(set(named) - set(partitions))
    if unknown:
        raise ConfigError(f"{name} names {unknown[0]}, which is not among the partitions that are read")

"""The methods of Stratalog's own API (key 20000) about compaction:

- `compaction.status`: topic (optional; default: all compacted topics). Returns a row for each partition.
- `compaction.explain`: topic, key (base64), partition (optional; default: all). Returns the key's records, and why each
  of them is still there.
- `compaction.dry_run`: topic, partition (optional; default: all). Returns what a run would save now.

In a cluster, they are about the replicas of this broker.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from stratalog.broker.apis.own import Method
from stratalog.broker.metadata.topics import TopicRegistry
from stratalog.broker.partition import Partition
from stratalog.clock import Clock
from stratalog.errors import MalformedRequestError, NotLeaderError, StorageError, UnknownTopicError
from stratalog.storage.compaction.cleaner import CleanerStatus, LogCleaner
from stratalog.storage.compaction.explain import explain


class CompactionApi:
    def __init__(self, topics: TopicRegistry, cleaner: LogCleaner, clock: Clock) -> None:
        self._topics = topics
        self._cleaner = cleaner
        self._clock = clock

    def methods(self) -> dict[str, Method]:
        return {
            "compaction.status": self.status,
            "compaction.explain": self.explain,
            "compaction.dry_run": self.dry_run,
        }

    def status(self, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
        _check_names(arguments, "topic")
        if arguments.get("topic") is None:
            partitions: Iterator[Partition] = (
                partition
                for partition in self._topics.all_partitions()
                if "compact" in partition.log.config.cleanup_policy and not partition.is_offline and partition.is_hosted
            )
        else:
            partitions = self._partitions(arguments)
        return [self._row(partition) for partition in partitions]

    def explain(self, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
        _check_names(arguments, "topic", "key", "partition")
        key = _bytes(arguments, "key")
        return [
            {
                "partition": partition.index,
                **explain(partition.log, self._cleaner.dirt_of(partition.log), key, self._clock.now_ms()).row(),
            }
            for partition in self._partitions(arguments)
        ]

    def dry_run(self, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
        _check_names(arguments, "topic", "partition")
        return [
            {
                "topic": partition.topic,
                "partition": partition.index,
                **dataclasses.asdict(self._cleaner.dry_run(partition.log)),
            }
            for partition in self._partitions(arguments)
        ]

    def _partitions(self, arguments: Mapping[str, Any]) -> Iterator[Partition]:
        topic, index = arguments.get("topic"), arguments.get("partition")
        if not isinstance(topic, str):
            raise MalformedRequestError(f"topic is {topic!r}; it must be a topic's name")
        if index is not None and (not isinstance(index, int) or isinstance(index, bool)):
            raise MalformedRequestError(f"partition is {index!r}; it must be a number")
        partitions = [
            partition
            for partition in self._topics.all_partitions()
            if partition.topic == topic and index in (None, partition.index)
        ]
        if not partitions:
            name = topic if index is None else f"{topic}-{index}"
            raise UnknownTopicError(f"{name} does not exist")
        hosted = [partition for partition in partitions if partition.is_hosted]
        if not hosted:
            raise NotLeaderError(f"this broker has no replica of the requested partitions of {topic}; ask another one")
        for partition in hosted:
            if partition.is_offline:
                raise StorageError(f"{topic}-{partition.index} is offline: its log could not be opened")
        return iter(hosted)

    def _row(self, partition: Partition) -> dict[str, Any]:
        status = self._cleaner.status(partition.log)
        dirt = status.dirt
        return {
            "topic": partition.topic,
            "partition": partition.index,
            "policy": list(partition.log.config.cleanup_policy),
            "state": _state(status),
            "reason": dirt.reason if status.set_aside is None else status.set_aside.reason,
            "blocked_by": dirt.blocked_by,
            "dirty_ratio": dirt.ratio,
            "clean_bytes": dirt.clean_bytes,
            "cleanable_bytes": dirt.cleanable_bytes,
            "uncleanable_bytes": dirt.uncleanable_bytes,
            "first_dirty_offset": dirt.first_dirty_offset,
            "first_uncleanable_offset": dirt.first_uncleanable_offset,
            "last_run_ms": status.last_run_ms,
            "last_run": None if status.last_run is None else dataclasses.asdict(status.last_run),
        }


def _state(status: CleanerStatus) -> str:
    if status.is_running:
        return "running"
    if status.set_aside is not None:
        return "set aside"
    return "due" if status.dirt.is_due else "waiting"


def _check_names(arguments: Mapping[str, Any], *known: str) -> None:
    for name in arguments:
        if name not in known:
            raise MalformedRequestError(
                f"{name!r} is not an argument of this method; its arguments are {', '.join(known)}"
            )


def _bytes(arguments: Mapping[str, Any], name: str) -> bytes:
    value = arguments.get(name)
    if not isinstance(value, str):
        raise MalformedRequestError(f"{name} is {value!r}; it must be text in base64")
    try:
        return base64.b64decode(value, validate=True)
    except (ValueError, binascii.Error) as error:
        raise MalformedRequestError(f"{name} is not valid base64: {error}") from error

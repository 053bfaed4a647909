"""ListOffsets (key 2), versions 1-11: earliest, latest, by time, and the record with the largest timestamp.

Offsets by time are looked up in a thread: batches are read and inflated for that. For read_committed readers the latest
offset is the last stable one, and nothing past it is found by time.

Known gaps: no segment is in remote storage yet, so "earliest local" is the earliest, and "latest tiered" and "earliest
pending upload" are answered with no offset, as by Kafka without tiered storage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable
from functools import partial
from typing import Any, NamedTuple

from stratalog.broker.apis.leader_epoch_check import check_leader_epoch
from stratalog.broker.metadata.topics import TopicRegistry
from stratalog.broker.partition import Partition
from stratalog.broker.requests import Handler, Reply, RequestContext
from stratalog.broker.worker_threads import WorkerThreads
from stratalog.errors import StratalogError
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode

_LATEST = -1
_EARLIEST = -2
_MAX_TIMESTAMP = -3
_EARLIEST_LOCAL = -4
_LATEST_TIERED = -5
_EARLIEST_PENDING_UPLOAD = -6
_FIRST_VERSION = {_MAX_TIMESTAMP: 7, _EARLIEST_LOCAL: 8, _LATEST_TIERED: 9, _EARLIEST_PENDING_UPLOAD: 11}
_READ_COMMITTED = 1
_NONE = -1


class _LookUp(NamedTuple):
    """A search by time. It reads and inflates batches, so it is no work for the event loop."""

    partition: Partition
    timestamp: int
    end: int  # nothing from here on counts as found


class ListOffsetsApi:
    def __init__(self, topics: TopicRegistry, worker_threads: WorkerThreads) -> None:
        self._topics = topics
        self._worker_threads = worker_threads

    def routes(self) -> dict[ApiKey, Handler]:
        return {ApiKey.LIST_OFFSETS: self.list_offsets}

    def list_offsets(self, request: Any, context: RequestContext) -> Reply | Awaitable[Reply]:
        committed_only = getattr(request, "isolation_level", 0) == _READ_COMMITTED
        asked = Counter(
            (topic.name, partition.partition_index) for topic in request.topics for partition in topic.partitions
        )
        topics = []
        look_ups: list[tuple[Reply, _LookUp]] = []
        for topic in request.topics:
            partitions = []
            for wanted in topic.partitions:
                answer: Reply = {"timestamp": -1, "offset": _NONE, "partition_index": wanted.partition_index}
                partitions.append(answer)
                if asked[topic.name, wanted.partition_index] > 1:
                    answer["error_code"] = ErrorCode.invalid_request
                    continue
                found = self._find(topic.name, wanted, committed_only, context.api_version)
                if isinstance(found, _LookUp):
                    look_ups.append((answer, found))
                else:
                    answer |= found
            topics.append({"name": topic.name, "partitions": partitions})
        if look_ups:
            return self._look_up_all(look_ups, {"topics": topics})
        return {"topics": topics}

    async def _look_up_all(self, look_ups: list[tuple[Reply, _LookUp]], reply: Reply) -> Reply:
        for answer, look_up in look_ups:
            answer |= await self._worker_threads.look_up(partial(_look_up, look_up))
        return reply

    def _find(self, topic: str, wanted: Any, committed_only: bool, version: int) -> Reply | _LookUp:
        partition = self._topics.partition(topic, wanted.partition_index)
        if partition is None:
            return {"error_code": ErrorCode.unknown_topic_or_partition}
        fenced = check_leader_epoch(partition, getattr(wanted, "current_leader_epoch", -1))
        if fenced:
            return {"error_code": fenced}
        timestamp = wanted.timestamp
        if version < _FIRST_VERSION.get(timestamp, 0) or timestamp < _EARLIEST_PENDING_UPLOAD:
            return {"error_code": ErrorCode.unsupported_version}
        end = partition.last_stable_offset if committed_only else partition.high_watermark
        if timestamp == _LATEST:
            return _found(partition, -1, end)
        if timestamp in (_EARLIEST, _EARLIEST_LOCAL):
            return _found(partition, -1, partition.log.log_start_offset)
        if timestamp in (_LATEST_TIERED, _EARLIEST_PENDING_UPLOAD):
            return _found(partition, -1, _NONE)
        return _LookUp(partition, timestamp, end)


def _look_up(look_up: _LookUp) -> Reply:
    partition, timestamp, end = look_up
    try:
        if timestamp == _MAX_TIMESTAMP:
            timestamp = partition.log.max_timestamp
            if timestamp < 0:
                return _found(partition, -1, _NONE)
        found = partition.log.find_timestamp(timestamp)
    except StratalogError as error:
        return {"error_code": error.code}
    if found is None or found.offset >= end:
        return _found(partition, -1, _NONE)
    return _found(partition, found.timestamp, found.offset)


def _found(partition: Partition, timestamp: int, offset: int) -> Reply:
    epoch = -1 if offset == _NONE else _epoch_of(partition, offset)
    return {"error_code": 0, "timestamp": timestamp, "offset": offset, "leader_epoch": epoch}


def _epoch_of(partition: Partition, offset: int) -> int:
    epoch = partition.log.leader_epochs.epoch_of(offset)
    return partition.leader_epoch if epoch is None else epoch

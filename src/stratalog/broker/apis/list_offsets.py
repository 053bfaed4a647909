"""ListOffsets (key 2), versions 1-11: returns the earliest and the latest offset, the offset of a timestamp, and the
offset of the largest timestamp.

Threads look up timestamps, because a lookup reads and decompresses batches. For read_committed readers, the latest
offset is the last stable offset, and a lookup returns no offset after it.

Known gaps: there is no remote storage yet. So the "earliest local" offset is the earliest offset, and "latest tiered"
and "earliest pending upload" return no offset, as in Kafka without tiered storage.
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


class _Lookup(NamedTuple):
    """A lookup of a timestamp. It reads and decompresses batches, so the event loop must not run it."""

    partition: Partition
    timestamp: int
    end: int  # results from this offset on don't count


class ListOffsetsApi:
    def __init__(self, topics: TopicRegistry, worker_threads: WorkerThreads) -> None:
        self._topics = topics
        self._worker_threads = worker_threads

    def routes(self) -> dict[ApiKey, Handler]:
        return {ApiKey.LIST_OFFSETS: self.list_offsets}

    def list_offsets(self, request: Any, context: RequestContext) -> Reply | Awaitable[Reply]:
        committed_only = getattr(request, "isolation_level", 0) == _READ_COMMITTED
        times = Counter(
            (topic.name, partition.partition_index) for topic in request.topics for partition in topic.partitions
        )
        topics = []
        lookups: list[tuple[Reply, _Lookup]] = []
        for topic in request.topics:
            partitions = []
            for query in topic.partitions:
                result: Reply = {"timestamp": -1, "offset": _NONE, "partition_index": query.partition_index}
                partitions.append(result)
                if times[topic.name, query.partition_index] > 1:
                    result["error_code"] = ErrorCode.invalid_request
                    continue
                offset = self._find(topic.name, query, committed_only, context.api_version)
                if isinstance(offset, _Lookup):
                    lookups.append((result, offset))
                else:
                    result |= offset
            topics.append({"name": topic.name, "partitions": partitions})
        if lookups:
            return self._look_up_all(lookups, {"topics": topics})
        return {"topics": topics}

    async def _look_up_all(self, lookups: list[tuple[Reply, _Lookup]], reply: Reply) -> Reply:
        for result, lookup in lookups:
            result |= await self._worker_threads.look_up(partial(_look_up, lookup))
        return reply

    def _find(self, topic: str, query: Any, committed_only: bool, version: int) -> Reply | _Lookup:
        """Return the fields of the result, or the lookup that will return them."""
        partition = self._topics.partition(topic, query.partition_index)
        if partition is None:
            return {"error_code": ErrorCode.unknown_topic_or_partition}
        fenced = check_leader_epoch(partition, getattr(query, "current_leader_epoch", -1))
        if fenced:
            return {"error_code": fenced}
        timestamp = query.timestamp
        if version < _FIRST_VERSION.get(timestamp, 0) or timestamp < _EARLIEST_PENDING_UPLOAD:
            return {"error_code": ErrorCode.unsupported_version}
        if timestamp not in (_EARLIEST, _EARLIEST_LOCAL) and not partition.is_confirmed:
            return {"error_code": ErrorCode.offset_not_available if version >= 5 else ErrorCode.leader_not_available}
        end = partition.last_stable_offset if committed_only else partition.high_watermark
        if timestamp == _LATEST:
            return _result(partition, -1, end)
        if timestamp in (_EARLIEST, _EARLIEST_LOCAL):
            return _result(partition, -1, partition.log.log_start_offset)
        if timestamp in (_LATEST_TIERED, _EARLIEST_PENDING_UPLOAD):
            return _result(partition, -1, _NONE)
        return _Lookup(partition, timestamp, end)


def _look_up(lookup: _Lookup) -> Reply:
    partition, timestamp, end = lookup
    log, limit = partition.log, end if partition.is_replicated else None
    try:
        if timestamp == _MAX_TIMESTAMP:
            timestamp = log.max_timestamp if limit is None else log.max_timestamp_before(limit)
            if timestamp < 0:
                return _result(partition, -1, _NONE)
        match = log.find_timestamp(timestamp, limit)
    except StratalogError as error:
        return {"error_code": error.code}
    if match is None or match.offset >= end:
        return _result(partition, -1, _NONE)
    return _result(partition, match.timestamp, match.offset)


def _result(partition: Partition, timestamp: int, offset: int) -> Reply:
    epoch = -1 if offset == _NONE else _epoch_of(partition, offset)
    return {"error_code": 0, "timestamp": timestamp, "offset": offset, "leader_epoch": epoch}


def _epoch_of(partition: Partition, offset: int) -> int:
    epoch = partition.log.leader_epochs.epoch_of(offset)
    return partition.leader_epoch if epoch is None else epoch

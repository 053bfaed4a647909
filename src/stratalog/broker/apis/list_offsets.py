"""ListOffsets (key 2), versions 1-11: earliest, latest, by time, and the record with the largest timestamp.

For read_committed readers the latest offset is the last stable one, and nothing past it is found by time.

Known gaps: no segment is in remote storage yet, so "earliest local" is the earliest, and "latest tiered" and "earliest
pending upload" are answered with no offset, as by Kafka without tiered storage.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from stratalog.broker.apis.leader_epoch_check import check_leader_epoch
from stratalog.broker.metadata.topics import TopicRegistry
from stratalog.broker.partition import Partition
from stratalog.broker.requests import Handler, Reply, RequestContext
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


class ListOffsetsApi:
    def __init__(self, topics: TopicRegistry) -> None:
        self._topics = topics

    def routes(self) -> dict[ApiKey, Handler]:
        return {ApiKey.LIST_OFFSETS: self.list_offsets}

    def list_offsets(self, request: Any, context: RequestContext) -> Reply:
        committed_only = getattr(request, "isolation_level", 0) == _READ_COMMITTED
        asked = Counter(
            (topic.name, partition.partition_index) for topic in request.topics for partition in topic.partitions
        )
        topics = []
        for topic in request.topics:
            partitions = []
            for wanted in topic.partitions:
                if asked[topic.name, wanted.partition_index] > 1:
                    found: Reply = {"error_code": ErrorCode.invalid_request}
                else:
                    found = self._find(topic.name, wanted, committed_only, context.api_version)
                partitions.append(
                    {"timestamp": -1, "offset": _NONE, **found, "partition_index": wanted.partition_index}
                )
            topics.append({"name": topic.name, "partitions": partitions})
        return {"topics": topics}

    def _find(self, topic: str, wanted: Any, committed_only: bool, version: int) -> Reply:
        partition = self._topics.partition(topic, wanted.partition_index)
        if partition is None:
            return {"error_code": ErrorCode.unknown_topic_or_partition}
        fenced = check_leader_epoch(partition, getattr(wanted, "current_leader_epoch", -1))
        if fenced:
            return {"error_code": fenced}
        if version < _FIRST_VERSION.get(wanted.timestamp, 0) or wanted.timestamp < _EARLIEST_PENDING_UPLOAD:
            return {"error_code": ErrorCode.unsupported_version}
        try:
            timestamp, offset = self._look_up(partition, wanted.timestamp, committed_only)
        except StratalogError as error:
            return {"error_code": error.code}
        epoch = -1 if offset == _NONE else _epoch_of(partition, offset)
        return {"error_code": 0, "timestamp": timestamp, "offset": offset, "leader_epoch": epoch}

    def _look_up(self, partition: Partition, timestamp: int, committed_only: bool) -> tuple[int, int]:
        log = partition.log
        end = partition.last_stable_offset if committed_only else partition.high_watermark
        if timestamp == _LATEST:
            return -1, end
        if timestamp in (_EARLIEST, _EARLIEST_LOCAL):
            return -1, log.log_start_offset
        if timestamp in (_LATEST_TIERED, _EARLIEST_PENDING_UPLOAD):
            return -1, _NONE
        if timestamp == _MAX_TIMESTAMP:
            timestamp = log.max_timestamp
            if timestamp < 0:
                return -1, _NONE
        found = log.find_timestamp(timestamp)
        if found is None or found.offset >= end:
            return -1, _NONE
        return found.timestamp, found.offset


def _epoch_of(partition: Partition, offset: int) -> int:
    epoch = partition.log.leader_epochs.epoch_of(offset)
    return partition.leader_epoch if epoch is None else epoch

"""OffsetForLeaderEpoch (key 23), versions 2-4: returns the end offset of a leader epoch.

A consumer sends this request after a change of leader, to learn whether records that it has read were truncated. For
the current leader epoch, the end offset is the log end offset. For a leader epoch without records, the response has the
previous leader epoch, or the first one in the log, as in Kafka. For a leader epoch that never existed, and for -1, it
is unknown (-1, -1). A request whose current leader epoch is not the partition's gets an error. Replica ids are ignored,
because the request changes nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from stratalog.broker.apis.leader_epoch_check import check_leader_epoch
from stratalog.broker.apis.requested_partitions import each_partition_once
from stratalog.broker.metadata.topics import TopicRegistry
from stratalog.broker.partition import Partition
from stratalog.broker.requests import Handler, Reply, RequestContext
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode

_UNKNOWN = (-1, -1)


class LeaderEpochsApi:
    def __init__(self, topics: TopicRegistry) -> None:
        self._topics = topics

    def routes(self) -> dict[ApiKey, Handler]:
        return {ApiKey.OFFSET_FOR_LEADER_EPOCH: self.offset_for_leader_epoch}

    def offset_for_leader_epoch(self, request: Any, context: RequestContext) -> Reply:  # noqa: ARG002 - a handler
        requested = each_partition_once(
            (topic.topic, ((partition.partition, partition) for partition in topic.partitions))
            for topic in request.topics
        )
        return {
            "topics": [
                {"topic": name, "partitions": [self._result(name, query) for query in partitions.values()]}
                for name, partitions in requested.items()
            ]
        }

    def _result(self, name: str, query: Any) -> Reply:
        partition = self._topics.partition(name, query.partition)
        error = ErrorCode.unknown_topic_or_partition
        epoch, end = _UNKNOWN
        if partition is not None:
            error = check_leader_epoch(partition, query.current_leader_epoch)
            if error is ErrorCode.none:
                epoch, end = end_of_epoch(partition, query.leader_epoch)
        return {"partition": query.partition, "error_code": error, "leader_epoch": epoch, "end_offset": end}


def end_of_epoch(partition: Partition, epoch: int) -> tuple[int, int]:
    """Return the highest leader epoch with records that is not above this one, and its end offset."""
    if epoch == partition.leader_epoch:
        return epoch, partition.log.log_end_offset
    entries = partition.log.leader_epochs.entries
    later = bisect_right(entries, epoch, key=lambda entry: entry[0])
    if epoch < 0 or later == len(entries):
        return _UNKNOWN
    start_of_later = entries[later][1]
    return (epoch, start_of_later) if later == 0 else (entries[later - 1][0], start_of_later)

"""OffsetForLeaderEpoch (key 23), versions 2-4: where the records of a leader epoch end.

A consumer asks after a change of leader, to learn whether what it read was cut off since. The answer for the current
epoch is the log's end. For an epoch that has no records left it is the one before, or the log's first, as in Kafka; for
one that never was, and for -1, it is "unknown" (-1, -1). A client that takes another epoch for the current one is told
so. Replica ids are not looked at: nothing is changed by asking.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from stratalog.broker.apis.asked_partitions import each_partition_once
from stratalog.broker.apis.leader_epoch_check import check_leader_epoch
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
        wanted = each_partition_once(
            (topic.topic, ((asked.partition, asked) for asked in topic.partitions)) for topic in request.topics
        )
        return {
            "topics": [
                {"topic": name, "partitions": [self._answer(name, asked) for asked in partitions.values()]}
                for name, partitions in wanted.items()
            ]
        }

    def _answer(self, name: str, asked: Any) -> Reply:
        partition = self._topics.partition(name, asked.partition)
        error = ErrorCode.unknown_topic_or_partition
        epoch, end = _UNKNOWN
        if partition is not None:
            error = check_leader_epoch(partition, asked.current_leader_epoch)
            if error is ErrorCode.none:
                epoch, end = end_of_epoch(partition, asked.leader_epoch)
        return {"partition": asked.partition, "error_code": error, "leader_epoch": epoch, "end_offset": end}


def end_of_epoch(partition: Partition, epoch: int) -> tuple[int, int]:
    """The largest epoch with records that is not above this one, and where it ends."""
    if epoch == partition.leader_epoch:
        return epoch, partition.log.log_end_offset
    entries = partition.log.leader_epochs.entries
    later = bisect_right(entries, epoch, key=lambda entry: entry[0])
    if epoch < 0 or later == len(entries):
        return _UNKNOWN
    start_of_later = entries[later][1]
    return (epoch, start_of_later) if later == 0 else (entries[later - 1][0], start_of_later)

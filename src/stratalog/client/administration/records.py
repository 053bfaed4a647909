"""Requests of an admin client to the leaders of partitions: ListOffsets and DeleteRecords."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from stratalog.client.administration.group_offsets import by_topic
from stratalog.client.administration.outcomes import Outcomes
from stratalog.client.administration.topics import body_timeout
from stratalog.client.cluster import Cluster
from stratalog.client.leader_calls import LeaderCaller
from stratalog.client.metadata import TopicPartition, to_topic_partition
from stratalog.client.offset_lookup import list_offsets_body
from stratalog.protocol.api_keys import ApiKey


class OffsetSpec(IntEnum):
    """Which offset to list. A timestamp in milliseconds, passed instead, means the first record at or after it."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3


_FIRST_WITH_MAX_TIMESTAMP = 7


class ListedOffset(NamedTuple):
    """`offset` is -1 if no record is at or after the timestamp. `timestamp` is -1 for LATEST and EARLIEST."""

    offset: int
    timestamp: int
    leader_epoch: int


async def list_offsets(
    cluster: Cluster, specs: Mapping[TopicPartition, OffsetSpec | int], read_committed: bool, timeout: float | None
) -> Outcomes[TopicPartition, ListedOffset]:
    timestamps = {to_topic_partition(partition): int(spec) for partition, spec in specs.items()}
    lowest = _FIRST_WITH_MAX_TIMESTAMP if OffsetSpec.MAX_TIMESTAMP in timestamps.values() else 1

    def body(timestamps: Mapping[TopicPartition, int]) -> dict[str, Any]:
        return list_offsets_body(
            timestamps, lambda _: -1, read_committed=read_committed, timeout_ms=body_timeout(cluster, timeout)
        )

    def result(listed: Any) -> ListedOffset:
        return ListedOffset(listed.offset, listed.timestamp, getattr(listed, "leader_epoch", -1))

    caller = LeaderCaller(cluster, ApiKey.LIST_OFFSETS, body, result, lowest=lowest)
    return (await caller.call(timestamps, timeout)).outcomes()


async def delete_records(
    cluster: Cluster, before: Mapping[TopicPartition, int], timeout: float | None
) -> Outcomes[TopicPartition, int]:
    offsets = {to_topic_partition(partition): offset for partition, offset in before.items()}

    def body(of_leader: Mapping[TopicPartition, int]) -> dict[str, Any]:
        topics = [
            {
                "name": name,
                "partitions": [{"partition_index": index, "offset": offset} for index, offset in of_topic.items()],
            }
            for name, of_topic in by_topic(of_leader).items()
        ]
        return {"topics": topics, "timeout": body_timeout(cluster, timeout)}

    def result(deleted: Any) -> int:
        return int(deleted.low_watermark)

    caller = LeaderCaller(cluster, ApiKey.DELETE_RECORDS, body, result)
    return (await caller.call(offsets, timeout)).outcomes()

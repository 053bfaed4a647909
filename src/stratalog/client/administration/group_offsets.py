"""Requests with which an administrator lists, changes and deletes the committed offsets of a group: OffsetFetch,
OffsetCommit without a member id, and OffsetDelete."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from stratalog.client.administration.outcomes import Collected, Outcomes
from stratalog.client.cluster import Cluster, CoordinatorKind
from stratalog.client.errors import Subject, error_of
from stratalog.client.metadata import TopicPartition, to_topic_partition
from stratalog.client.offsets import OffsetAndMetadata, parse_offsets
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode

_LAST_BY_NAME = 9  # of OffsetFetch and OffsetCommit; later versions name topics by id, which a deleted topic lacks
_FIRST_FOR_ALL = 2  # of OffsetFetch: the first version in which no topics stands for all topics


async def list_group_offsets(
    cluster: Cluster, group: str, partitions: Iterable[TopicPartition] | None, timeout: float | None
) -> dict[TopicPartition, OffsetAndMetadata]:
    requested = None if partitions is None else by_topic(dict.fromkeys(partitions))
    topics = None
    if requested is not None:
        topics = [{"name": name, "partition_indexes": list(indexes)} for name, indexes in requested.items()]
    body = {
        "group_id": group,  # up to version 7; later versions list groups
        "topics": topics,
        "groups": [{"group_id": group, "topics": topics}],
        "require_stable": False,
    }
    response = await cluster.ask_coordinator(
        CoordinatorKind.GROUP,
        group,
        ApiKey.OFFSET_FETCH,
        body,
        lowest=_FIRST_FOR_ALL,
        highest=_LAST_BY_NAME,
        timeout=timeout,
    )
    listed = next((each for each in getattr(response, "groups", ()) if each.group_id == group), response)
    if getattr(listed, "error_code", ErrorCode.none) != ErrorCode.none:
        raise error_of(listed.error_code, about=Subject("group", group))
    committed = {}
    for topic in getattr(listed, "topics", ()):
        for each in topic.partitions:
            partition = TopicPartition(topic.name, each.partition_index)
            if each.error_code != ErrorCode.none:
                raise error_of(each.error_code, about=f"group {group!r}, {partition}")
            if each.committed_offset >= 0:  # -1 if the group has no committed offset
                epoch = getattr(each, "committed_leader_epoch", -1)
                committed[partition] = OffsetAndMetadata(each.committed_offset, each.metadata or "", epoch)
    return committed


async def alter_group_offsets(
    cluster: Cluster, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata | int], timeout: float | None
) -> Outcomes[TopicPartition, None]:
    by_partition = parse_offsets(offsets)
    body = {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "retention_time_ms": -1,
        "topics": [
            {
                "name": name,
                "partitions": [
                    {
                        "partition_index": index,
                        "committed_offset": offset.offset,
                        "committed_leader_epoch": offset.leader_epoch,
                        "committed_metadata": offset.metadata,
                    }
                    for index, offset in of_topic.items()
                ],
            }
            for name, of_topic in by_topic(by_partition).items()
        ],
    }
    response = await cluster.ask_coordinator(
        CoordinatorKind.GROUP, group, ApiKey.OFFSET_COMMIT, body, highest=_LAST_BY_NAME, timeout=timeout
    )
    return _outcomes(group, by_partition, response)


async def delete_group_offsets(
    cluster: Cluster, group: str, partitions: Iterable[TopicPartition], timeout: float | None
) -> Outcomes[TopicPartition, None]:
    requested = {to_topic_partition(partition): None for partition in partitions}
    topics = [
        {"name": name, "partitions": [{"partition_index": index} for index in indexes]}
        for name, indexes in by_topic(requested).items()
    ]
    body = {"group_id": group, "topics": topics}
    response = await cluster.ask_coordinator(CoordinatorKind.GROUP, group, ApiKey.OFFSET_DELETE, body, timeout=timeout)
    if response.error_code != ErrorCode.none:
        raise error_of(response.error_code, about=Subject("group", group))
    return _outcomes(group, requested, response)


def by_topic(values: Mapping[TopicPartition, Any]) -> dict[str, dict[int, Any]]:
    """Group values by topic and then by partition index, as requests list them."""
    topics: dict[str, dict[int, Any]] = {}
    for (topic, partition), value in values.items():
        topics.setdefault(topic, {})[partition] = value
    return topics


def _outcomes(group: str, partitions: Iterable[TopicPartition], response: Any) -> Outcomes[TopicPartition, None]:
    collected: Collected[TopicPartition, None] = Collected(
        {partition: f"group {group!r}, {partition}" for partition in partitions}
    )
    for topic in response.topics:
        for each in topic.partitions:
            collected.take(TopicPartition(topic.name, each.partition_index), each, None)
    return collected.outcomes()

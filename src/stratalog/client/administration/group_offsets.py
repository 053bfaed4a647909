"""The committed offsets of a group that an administrator looks at, moves and removes: OffsetFetch, OffsetCommit in
nobody's name, OffsetDelete."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from stratalog.client.administration.outcomes import Collected, Outcomes
from stratalog.client.cluster import Cluster, CoordinatorKind
from stratalog.client.errors import Subject, error_of
from stratalog.client.metadata import TopicPartition, place_of
from stratalog.client.offsets import OffsetAndMetadata, offsets_given
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode

_LAST_BY_NAME = 9  # of OffsetFetch and OffsetCommit; topics have ids from then on, and a deleted one has none
_FIRST_FOR_ALL = 2  # of OffsetFetch, where no topics stand for all


async def list_group_offsets(
    cluster: Cluster, group: str, partitions: Iterable[TopicPartition] | None, timeout: float | None
) -> dict[TopicPartition, OffsetAndMetadata]:
    asked = None if partitions is None else by_topic(dict.fromkeys(partitions))
    topics = None
    if asked is not None:
        topics = [{"name": name, "partition_indexes": list(indexes)} for name, indexes in asked.items()]
    body = {
        "group_id": group,  # up to version 7; later ones ask about many groups
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
    answer = next((one for one in getattr(response, "groups", ()) if one.group_id == group), response)
    if getattr(answer, "error_code", ErrorCode.none) != ErrorCode.none:
        raise error_of(answer.error_code, about=Subject("group", group))
    found = {}
    for topic in getattr(answer, "topics", ()):
        for one in topic.partitions:
            place = TopicPartition(topic.name, one.partition_index)
            if one.error_code != ErrorCode.none:
                raise error_of(one.error_code, about=f"group {group!r}, {place}")
            if one.committed_offset >= 0:  # -1: none
                epoch = getattr(one, "committed_leader_epoch", -1)
                found[place] = OffsetAndMetadata(one.committed_offset, one.metadata or "", epoch)
    return found


async def alter_group_offsets(
    cluster: Cluster, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata | int], timeout: float | None
) -> Outcomes[TopicPartition, None]:
    given = offsets_given(offsets)
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
                    for index, offset in places.items()
                ],
            }
            for name, places in by_topic(given).items()
        ],
    }
    response = await cluster.ask_coordinator(
        CoordinatorKind.GROUP, group, ApiKey.OFFSET_COMMIT, body, highest=_LAST_BY_NAME, timeout=timeout
    )
    return _outcomes(group, given, response)


async def delete_group_offsets(
    cluster: Cluster, group: str, partitions: Iterable[TopicPartition], timeout: float | None
) -> Outcomes[TopicPartition, None]:
    given = {place_of(place): None for place in partitions}
    topics = [
        {"name": name, "partitions": [{"partition_index": index} for index in places]}
        for name, places in by_topic(given).items()
    ]
    body = {"group_id": group, "topics": topics}
    response = await cluster.ask_coordinator(CoordinatorKind.GROUP, group, ApiKey.OFFSET_DELETE, body, timeout=timeout)
    if response.error_code != ErrorCode.none:
        raise error_of(response.error_code, about=Subject("group", group))
    return _outcomes(group, given, response)


def by_topic(places: Mapping[TopicPartition, Any]) -> dict[str, dict[int, Any]]:
    """As requests have it: partitions within topics."""
    topics: dict[str, dict[int, Any]] = {}
    for (topic, partition), value in places.items():
        topics.setdefault(topic, {})[partition] = value
    return topics


def _outcomes(group: str, given: Mapping[TopicPartition, Any], response: Any) -> Outcomes[TopicPartition, None]:
    collected: Collected[TopicPartition, None] = Collected({place: f"group {group!r}, {place}" for place in given})
    for topic in response.topics:
        for one in topic.partitions:
            collected.take(TopicPartition(topic.name, one.partition_index), one, None)
    return collected.outcomes()

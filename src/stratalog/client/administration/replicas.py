"""Requests about the replicas of partitions: ElectLeaders, AlterPartitionReassignments, ListPartitionReassignments and
DescribeTopicPartitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from stratalog.client.administration.group_offsets import by_topic
from stratalog.client.administration.outcomes import Collected, Outcomes
from stratalog.client.administration.topics import body_timeout
from stratalog.client.cluster import Cluster
from stratalog.client.errors import UnsupportedVersionError, error_of
from stratalog.client.metadata import TopicPartition, to_topic_partition
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode

_PARTITIONS_IN_A_PAGE = 2000


class ElectionType(IntEnum):
    """PREFERRED: the first replica of each partition leads, if it is in sync. UNCLEAN: a partition without a leader
    gets any replica that is alive, although committed records may be lost."""

    PREFERRED = 0
    UNCLEAN = 1


class Reassignment(NamedTuple):
    """A reassignment that is running. `replicas` includes both those that are added and those that will go."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


async def elect_leaders(
    cluster: Cluster,
    election_type: ElectionType,
    partitions: Iterable[TopicPartition] | None,
    timeout: float | None,
) -> Outcomes[TopicPartition, None]:
    requested = None if partitions is None else [to_topic_partition(partition) for partition in partitions]
    topics = None
    if requested is not None:
        grouped = by_topic(dict.fromkeys(requested))
        topics = [{"topic": name, "partitions": list(indexes)} for name, indexes in grouped.items()]
    body = {
        "election_type": int(election_type),
        "topic_partitions": topics,
        "timeout": body_timeout(cluster, timeout),
    }
    lowest = 0 if election_type is ElectionType.PREFERRED else 1  # version 0 knows no other type
    response = await cluster.ask_controller(ApiKey.ELECT_LEADERS, body, lowest=lowest, timeout=timeout)
    _check(response, "the election of leaders")
    results = {
        TopicPartition(topic.topic, result.partition_id): result
        for topic in response.replica_election_results
        for result in topic.partition_result
    }
    collected = _collected(results if requested is None else requested)
    for partition, result in results.items():
        collected.take(partition, result, None)
    return collected.outcomes()


async def alter_reassignments(
    cluster: Cluster, targets: Mapping[TopicPartition, Sequence[int] | None], timeout: float | None
) -> Outcomes[TopicPartition, None]:
    requested = {to_topic_partition(partition): target for partition, target in targets.items()}
    body = {
        "timeout": body_timeout(cluster, timeout),
        "allow_replication_factor_change": True,
        "topics": [
            {
                "name": name,
                "partitions": [
                    {"partition_index": index, "replicas": None if replicas is None else list(replicas)}
                    for index, replicas in indexes.items()
                ],
            }
            for name, indexes in by_topic(requested).items()
        ],
    }
    response = await cluster.ask_controller(ApiKey.ALTER_PARTITION_REASSIGNMENTS, body, timeout=timeout)
    _check(response, "the reassignment of partitions")
    collected = _collected(requested)
    for topic in response.responses:
        for result in topic.partitions:
            collected.take(TopicPartition(topic.name, result.partition_index), result, None)
    return collected.outcomes()


async def list_reassignments(
    cluster: Cluster, partitions: Iterable[TopicPartition] | None, timeout: float | None
) -> dict[TopicPartition, Reassignment]:
    topics = None
    if partitions is not None:
        grouped = by_topic({to_topic_partition(partition): None for partition in partitions})
        topics = [{"name": name, "partition_indexes": list(indexes)} for name, indexes in grouped.items()]
    body = {"timeout": body_timeout(cluster, timeout), "topics": topics}
    response = await cluster.ask_controller(ApiKey.LIST_PARTITION_REASSIGNMENTS, body, timeout=timeout)
    _check(response, "the list of reassignments")
    return {
        TopicPartition(topic.name, each.partition_index): Reassignment(
            _node_ids(each.replicas), _node_ids(each.adding_replicas), _node_ids(each.removing_replicas)
        )
        for topic in response.topics
        for each in topic.partitions
    }


async def eligible_leaders(
    cluster: Cluster, topics: Iterable[str], timeout: float | None
) -> dict[TopicPartition, tuple[int, ...]]:
    eligible: dict[TopicPartition, tuple[int, ...]] = {}
    names = sorted(set(topics))
    cursor: dict[str, Any] | None = None
    while names:
        body = {
            "topics": [{"name": name} for name in names],
            "response_partition_limit": _PARTITIONS_IN_A_PAGE,
            "cursor": cursor,
        }
        try:
            response = await cluster.ask_any(ApiKey.DESCRIBE_TOPIC_PARTITIONS, body, timeout=timeout)
        except UnsupportedVersionError:
            return {}
        for topic in response.topics:
            for each in topic.partitions:
                if each.eligible_leader_replicas:
                    eligible[TopicPartition(topic.name, each.partition_index)] = _node_ids(
                        each.eligible_leader_replicas
                    )
        following = response.next_cursor
        if following is None:
            break
        cursor = {"topic_name": following.topic_name, "partition_index": following.partition_index}
        names = [name for name in names if name >= following.topic_name]
    return eligible


def _collected(partitions: Iterable[TopicPartition]) -> Collected[TopicPartition, None]:
    return Collected({partition: str(partition) for partition in partitions})


def _node_ids(replicas: Iterable[int]) -> tuple[int, ...]:
    return tuple(int(replica) for replica in replicas)


def _check(response: Any, about: str) -> None:
    """Raise the error of a whole response; version 0 of ElectLeaders has none."""
    code = getattr(response, "error_code", ErrorCode.none)
    if code != ErrorCode.none:
        raise error_of(code, getattr(response, "error_message", None), about=about)

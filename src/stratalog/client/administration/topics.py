"""Requests about topics and their partitions: CreateTopics, DeleteTopics, CreatePartitions and Metadata."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from stratalog.client.administration.outcomes import Collected, Outcomes
from stratalog.client.cluster import Cluster
from stratalog.client.errors import Subject
from stratalog.client.metadata import MetadataSnapshot, TopicInfo, read_metadata
from stratalog.protocol.api_keys import ApiKey

CHOSEN_BY_BROKER = -1


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. -1 means the broker's default (num.partitions, default.replication.factor). `assignments`
    lists the broker ids of each partition's replicas, and replaces both numbers."""

    name: str
    partitions: int = CHOSEN_BY_BROKER
    replication_factor: int = CHOSEN_BY_BROKER
    config: Mapping[str, object] = field(default_factory=dict)
    assignments: Sequence[Sequence[int]] = ()


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """A topic as the broker created it, or would create it. From brokers before Kafka 2.4, which don't report this, the
    fields are -1 and None."""

    name: str
    id: UUID | None
    partitions: int
    replication_factor: int
    config: Mapping[str, str | None]


def body_timeout(cluster: Cluster, timeout: float | None) -> int:
    """Return how many milliseconds the broker may take: no longer than this client waits for the response."""
    limit = cluster.settings.request_timeout_ms
    return limit if timeout is None else max(1, min(limit, int(timeout * 1000)))


async def create_topics(
    cluster: Cluster, topics: Iterable[NewTopic], validate_only: bool, timeout: float | None
) -> Outcomes[str, CreatedTopic]:
    requested = {topic.name: topic for topic in topics}
    collected: Collected[str, CreatedTopic] = Collected({name: Subject("topic", name) for name in requested})
    body = {
        "topics": [_creatable(topic) for topic in requested.values()],
        "timeout": body_timeout(cluster, timeout),
        "validate_only": validate_only,
    }
    response = await cluster.ask_controller(ApiKey.CREATE_TOPICS, body, timeout=timeout)
    for reported in response.topics:
        config = {entry.name: entry.value for entry in getattr(reported, "configs", None) or ()}
        created = CreatedTopic(
            reported.name,
            getattr(reported, "topic_id", None),
            getattr(reported, "num_partitions", CHOSEN_BY_BROKER),
            getattr(reported, "replication_factor", CHOSEN_BY_BROKER),
            config,
        )
        collected.take(reported.name, reported, created)
    return collected.outcomes()


def _creatable(topic: NewTopic) -> dict[str, Any]:
    assigned = [{"partition_index": index, "broker_ids": list(nodes)} for index, nodes in enumerate(topic.assignments)]
    return {
        "name": topic.name,
        "num_partitions": CHOSEN_BY_BROKER if assigned else topic.partitions,
        "replication_factor": CHOSEN_BY_BROKER if assigned else topic.replication_factor,
        "assignments": assigned,
        "configs": [{"name": name, "value": config_text(value)} for name, value in topic.config.items()],
    }


def config_text(value: object) -> str:
    """Return the value of a setting as Kafka writes it: True is "true"."""
    return str(value).lower() if isinstance(value, bool) else str(value)


async def delete_topics(cluster: Cluster, names: Iterable[str], timeout: float | None) -> Outcomes[str, None]:
    requested = list(dict.fromkeys(names))
    collected: Collected[str, None] = Collected({name: Subject("topic", name) for name in requested})
    body = {
        "topics": [{"name": name, "topic_id": None} for name in requested],
        "topic_names": requested,  # before version 6
        "timeout": body_timeout(cluster, timeout),
    }
    response = await cluster.ask_controller(ApiKey.DELETE_TOPICS, body, timeout=timeout)
    for deleted in response.responses:
        collected.take(deleted.name or "", deleted, None)
    return collected.outcomes()


async def create_partitions(
    cluster: Cluster, counts: Mapping[str, int], validate_only: bool, timeout: float | None
) -> Outcomes[str, None]:
    collected: Collected[str, None] = Collected({name: Subject("topic", name) for name in counts})
    body = {
        "topics": [{"name": name, "count": count, "assignments": None} for name, count in counts.items()],
        "timeout": body_timeout(cluster, timeout),
        "validate_only": validate_only,
    }
    response = await cluster.ask_controller(ApiKey.CREATE_PARTITIONS, body, timeout=timeout)
    for created in response.results:
        collected.take(created.name, created, None)
    return collected.outcomes()


async def list_topics(cluster: Cluster, include_internal: bool, timeout: float | None) -> dict[str, TopicInfo]:
    metadata = await ask_metadata(cluster, None, timeout)
    return {
        name: metadata.topics[name]
        for name in sorted(metadata.topics)
        if include_internal or not metadata.topics[name].is_internal
    }


async def describe_topics(cluster: Cluster, names: Iterable[str], timeout: float | None) -> Outcomes[str, TopicInfo]:
    requested = list(dict.fromkeys(names))
    collected: Collected[str, TopicInfo] = Collected({name: Subject("topic", name) for name in requested})
    metadata = await ask_metadata(cluster, requested, timeout)
    for name, info in metadata.topics.items():
        collected.take_code(name, info.error_code, None, info)
    return collected.outcomes()


async def ask_metadata(cluster: Cluster, names: Iterable[str] | None, timeout: float | None) -> MetadataSnapshot:
    """Return the metadata of these topics, or of all topics. It creates no topic, and refreshes don't include them."""
    body = {
        "topics": None if names is None else [{"name": name, "topic_id": None} for name in names],
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }
    response = await cluster.ask_any(ApiKey.METADATA, body, lowest=4, timeout=timeout)
    return read_metadata(response, MetadataSnapshot(), asyncio.get_running_loop().time())

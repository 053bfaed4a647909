"""Topics and their partitions: CreateTopics, DeleteTopics, CreatePartitions, and what Metadata says of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from stratalog.client.administration.outcomes import Collected, Outcomes
from stratalog.client.cluster import Cluster
from stratalog.client.errors import Subject
from stratalog.client.metadata import Metadata, TopicInfo, read_metadata
from stratalog.protocol.api_keys import ApiKey

CHOSEN_BY_BROKER = -1


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. -1 is what the broker has as default (num.partitions, default.replication.factor).
    `assignments`: the nodes of each partition's replicas, in place of both numbers."""

    name: str
    partitions: int = CHOSEN_BY_BROKER
    replication_factor: int = CHOSEN_BY_BROKER
    config: Mapping[str, object] = field(default_factory=dict)
    assignments: Sequence[Sequence[int]] = ()


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """As the broker made it, or would: brokers before Kafka 2.4 don't say, and leave -1 and None."""

    name: str
    id: UUID | None
    partitions: int
    replication_factor: int
    config: Mapping[str, str | None]


def body_timeout(cluster: Cluster, timeout: float | None) -> int:
    """Milliseconds that the broker may take: no longer than we wait for its answer."""
    most = cluster.settings.request_timeout_ms
    return most if timeout is None else max(1, min(most, int(timeout * 1000)))


async def create_topics(
    cluster: Cluster, topics: Iterable[NewTopic], validate_only: bool, timeout: float | None
) -> Outcomes[str, CreatedTopic]:
    wanted = {topic.name: topic for topic in topics}
    collected: Collected[str, CreatedTopic] = Collected({name: Subject("topic", name) for name in wanted})
    body = {
        "topics": [_creatable(topic) for topic in wanted.values()],
        "timeout": body_timeout(cluster, timeout),
        "validate_only": validate_only,
    }
    response = await cluster.ask_controller(ApiKey.CREATE_TOPICS, body, timeout=timeout)
    for one in response.topics:
        config = {entry.name: entry.value for entry in getattr(one, "configs", None) or ()}
        created = CreatedTopic(
            one.name,
            getattr(one, "topic_id", None),
            getattr(one, "num_partitions", CHOSEN_BY_BROKER),
            getattr(one, "replication_factor", CHOSEN_BY_BROKER),
            config,
        )
        collected.take(one.name, one, created)
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
    """A setting's value as Kafka has it: True is "true"."""
    return str(value).lower() if isinstance(value, bool) else str(value)


async def delete_topics(cluster: Cluster, names: Iterable[str], timeout: float | None) -> Outcomes[str, None]:
    wanted = list(dict.fromkeys(names))
    collected: Collected[str, None] = Collected({name: Subject("topic", name) for name in wanted})
    body = {
        "topics": [{"name": name, "topic_id": None} for name in wanted],
        "topic_names": wanted,  # before version 6
        "timeout": body_timeout(cluster, timeout),
    }
    response = await cluster.ask_controller(ApiKey.DELETE_TOPICS, body, timeout=timeout)
    for one in response.responses:
        collected.take(one.name or "", one, None)
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
    for one in response.results:
        collected.take(one.name, one, None)
    return collected.outcomes()


async def list_topics(cluster: Cluster, include_internal: bool, timeout: float | None) -> dict[str, TopicInfo]:
    found = await ask_metadata(cluster, None, timeout)
    return {
        name: found.topics[name]
        for name in sorted(found.topics)
        if include_internal or not found.topics[name].is_internal
    }


async def describe_topics(cluster: Cluster, names: Iterable[str], timeout: float | None) -> Outcomes[str, TopicInfo]:
    wanted = list(dict.fromkeys(names))
    collected: Collected[str, TopicInfo] = Collected({name: Subject("topic", name) for name in wanted})
    found = await ask_metadata(cluster, wanted, timeout)
    for name, info in found.topics.items():
        collected.take_code(name, info.error_code, None, info)
    return collected.outcomes()


async def ask_metadata(cluster: Cluster, names: Iterable[str] | None, timeout: float | None) -> Metadata:
    """Of these topics, or of all. None is made by asking for it, and none is asked for again later."""
    body = {
        "topics": None if names is None else [{"name": name, "topic_id": None} for name in names],
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }
    response = await cluster.ask_any(ApiKey.METADATA, body, lowest=4, timeout=timeout)
    return read_metadata(response, Metadata(), asyncio.get_running_loop().time())

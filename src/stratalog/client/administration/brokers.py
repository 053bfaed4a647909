"""The cluster and its brokers: DescribeCluster, ApiVersions, DescribeLogDirs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from stratalog.client.administration.group_offsets import by_topic
from stratalog.client.administration.outcomes import Collected, Outcomes
from stratalog.client.cluster import Cluster
from stratalog.client.errors import ClientError, error_of
from stratalog.client.metadata import Node, TopicPartition, to_topic_partition
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    cluster_id: str
    controller: Node | None
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Replica:
    size: int
    offset_lag: int
    is_future: bool  # on its way into this directory from another


@dataclass(frozen=True, slots=True)
class LogDir:
    path: str
    error: ClientError | None
    total_bytes: int  # of its volume; -1 from brokers before Kafka 3.3
    usable_bytes: int
    replicas: Mapping[TopicPartition, Replica]


async def describe_cluster(cluster: Cluster, timeout: float | None) -> ClusterDescription:
    body = {"include_cluster_authorized_operations": False, "endpoint_type": 1, "include_fenced_brokers": False}
    response = await cluster.ask_any(ApiKey.DESCRIBE_CLUSTER, body, timeout=timeout)
    if response.error_code != ErrorCode.none:
        raise error_of(response.error_code, response.error_message, about="the cluster")
    nodes = {int(one.broker_id): Node(int(one.broker_id), one.host, one.port, one.rack) for one in response.brokers}
    return ClusterDescription(
        response.cluster_id, nodes.get(int(response.controller_id)), tuple(nodes[each] for each in sorted(nodes))
    )


async def api_versions(cluster: Cluster, node: int, timeout: float | None) -> dict[int, tuple[int, int]]:
    body = {"client_software_name": "stratalog", "client_software_version": "admin"}
    response = await cluster.ask_node(node, ApiKey.API_VERSIONS, body, timeout=timeout)
    if response.error_code != ErrorCode.none:
        raise error_of(response.error_code, about=f"node {node}")
    return {int(one.api_key): (one.min_version, one.max_version) for one in response.api_keys}


async def describe_log_dirs(
    cluster: Cluster,
    nodes: Iterable[int] | None,
    partitions: Iterable[TopicPartition] | None,
    timeout: float | None,
) -> Outcomes[int, dict[str, LogDir]]:
    if nodes is None:
        nodes = (await cluster.retry(lambda seconds: cluster.refresh(timeout=seconds), timeout)).nodes
    wanted = list(dict.fromkeys(nodes))
    collected: Collected[int, dict[str, LogDir]] = Collected({node: f"node {node}" for node in wanted})
    topics = None
    if partitions is not None:
        places = by_topic({to_topic_partition(place): None for place in partitions})
        topics = [{"topic": name, "partitions": list(indexes)} for name, indexes in places.items()]

    async def ask(node: int) -> None:
        try:
            response = await cluster.ask_node(node, ApiKey.DESCRIBE_LOG_DIRS, {"topics": topics}, timeout=timeout)
            code = getattr(response, "error_code", ErrorCode.none)
            collected.take_code(node, code, None, {one.log_dir: _log_dir(one) for one in response.results})
        except ClientError as error:
            collected.fail(node, error)

    await asyncio.gather(*[ask(node) for node in wanted])
    return collected.outcomes()


def _log_dir(one: Any) -> LogDir:
    replicas = {
        TopicPartition(topic.name, each.partition_index): Replica(
            each.partition_size, each.offset_lag, each.is_future_key
        )
        for topic in one.topics
        for each in topic.partitions
    }
    error = None if one.error_code == ErrorCode.none else error_of(one.error_code, about=one.log_dir)
    return LogDir(one.log_dir, error, getattr(one, "total_bytes", -1), getattr(one, "usable_bytes", -1), replicas)

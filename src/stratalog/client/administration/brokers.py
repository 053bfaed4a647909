"""Requests about the cluster and its brokers: DescribeCluster, ApiVersions and DescribeLogDirs."""

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
    is_future: bool  # the replica is being moved into this directory from another


@dataclass(frozen=True, slots=True)
class LogDir:
    path: str
    error: ClientError | None
    total_bytes: int  # of the directory's volume; -1 from brokers before Kafka 3.3
    usable_bytes: int
    replicas: Mapping[TopicPartition, Replica]


async def describe_cluster(cluster: Cluster, timeout: float | None) -> ClusterDescription:
    body = {"include_cluster_authorized_operations": False, "endpoint_type": 1, "include_fenced_brokers": True}
    response = await cluster.ask_any(ApiKey.DESCRIBE_CLUSTER, body, timeout=timeout)
    if response.error_code != ErrorCode.none:
        raise error_of(response.error_code, response.error_message, about="the cluster")
    nodes = {
        int(each.broker_id): Node(
            int(each.broker_id), each.host, each.port, each.rack, getattr(each, "is_fenced", False)
        )
        for each in response.brokers
    }
    return ClusterDescription(
        response.cluster_id, nodes.get(int(response.controller_id)), tuple(nodes[broker] for broker in sorted(nodes))
    )


async def api_versions(cluster: Cluster, node: int, timeout: float | None) -> dict[int, tuple[int, int]]:
    body = {"client_software_name": "stratalog", "client_software_version": "admin"}
    response = await cluster.ask_node(node, ApiKey.API_VERSIONS, body, timeout=timeout)
    if response.error_code != ErrorCode.none:
        raise error_of(response.error_code, about=f"broker {node}")
    return {int(api.api_key): (api.min_version, api.max_version) for api in response.api_keys}


async def describe_log_dirs(
    cluster: Cluster,
    nodes: Iterable[int] | None,
    partitions: Iterable[TopicPartition] | None,
    timeout: float | None,
) -> Outcomes[int, dict[str, LogDir]]:
    if nodes is None:
        nodes = (await cluster.retry(lambda seconds: cluster.refresh(timeout=seconds), timeout)).nodes
    requested = list(dict.fromkeys(nodes))
    collected: Collected[int, dict[str, LogDir]] = Collected({node: f"broker {node}" for node in requested})
    topics = None
    if partitions is not None:
        by_name = by_topic({to_topic_partition(partition): None for partition in partitions})
        topics = [{"topic": name, "partitions": list(indexes)} for name, indexes in by_name.items()]

    async def ask(node: int) -> None:
        try:
            response = await cluster.ask_node(node, ApiKey.DESCRIBE_LOG_DIRS, {"topics": topics}, timeout=timeout)
            code = getattr(response, "error_code", ErrorCode.none)
            collected.take_code(node, code, None, {each.log_dir: _log_dir(each) for each in response.results})
        except ClientError as error:
            collected.fail(node, error)

    await asyncio.gather(*[ask(node) for node in requested])
    return collected.outcomes()


def _log_dir(directory: Any) -> LogDir:
    replicas = {
        TopicPartition(topic.name, each.partition_index): Replica(
            each.partition_size, each.offset_lag, each.is_future_key
        )
        for topic in directory.topics
        for each in topic.partitions
    }
    error = None
    if directory.error_code != ErrorCode.none:
        error = error_of(directory.error_code, about=directory.log_dir)
    total, usable = getattr(directory, "total_bytes", -1), getattr(directory, "usable_bytes", -1)
    return LogDir(directory.log_dir, error, total, usable, replicas)

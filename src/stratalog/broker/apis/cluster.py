"""DescribeCluster (key 60) 0-2, DescribeTopicPartitions (key 75) 0.

DescribeCluster describes the brokers that are alive. A broker that is shutting down is fenced: it serves clients, and
must not lead. Like all brokers, it is in every response. A single broker is its own controller.
There is no listener for controllers, so a request for controllers gets MISMATCHED_ENDPOINT_TYPE.

DescribeTopicPartitions describes topics by name, in pages. A page ends after response_partition_limit partitions, or
after max.request.partition.size.limit if that is less; its cursor says where the next page begins. A request without
names is for all topics.

Known gap: there is no authorizer, so every operation is allowed.
"""

from __future__ import annotations

from typing import Any

from stratalog.broker.metadata.membership import BrokersAndPlacements, Placement
from stratalog.broker.metadata.topics import Topic, TopicRegistry
from stratalog.broker.partition import Partition
from stratalog.broker.requests import Handler, Reply, RequestContext
from stratalog.broker.settings import BrokerConfig
from stratalog.errors import StratalogError
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode
from stratalog.storage import names

ALL_CLUSTER_OPERATIONS = 8096  # create, alter, describe, cluster action, describe and alter configs, idempotent write
ALL_TOPIC_OPERATIONS = 3576  # read, write, create, delete, alter, describe, describe and alter configs
_NOT_ASKED = -(2**31)
_BROKERS, _CONTROLLERS = 1, 2


class ClusterApis:
    def __init__(self, topics: TopicRegistry, config: BrokerConfig, membership: BrokersAndPlacements) -> None:
        self._topics = topics
        self._config = config
        self._membership = membership

    def routes(self) -> dict[ApiKey, Handler]:
        return {
            ApiKey.DESCRIBE_CLUSTER: self.describe_cluster,
            ApiKey.DESCRIBE_TOPIC_PARTITIONS: self.describe_topic_partitions,
        }

    def describe_cluster(self, request: Any, context: RequestContext) -> Reply:  # noqa: ARG002 - a handler
        endpoint_type = getattr(request, "endpoint_type", _BROKERS)
        if endpoint_type != _BROKERS:
            return _wrong_endpoint(endpoint_type)
        return {
            "error_code": ErrorCode.none,
            "error_message": None,
            "endpoint_type": _BROKERS,
            "cluster_id": self._membership.cluster_id,
            "controller_id": self._membership.controller,
            "brokers": [
                {
                    "broker_id": broker.node_id,
                    "host": broker.host,
                    "port": broker.port,
                    "rack": broker.rack,
                    "is_fenced": broker.is_fenced,
                }
                for broker in self._membership.brokers()
            ],
            "cluster_authorized_operations": (
                ALL_CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else _NOT_ASKED
            ),
        }

    def describe_topic_partitions(self, request: Any, context: RequestContext) -> Reply:  # noqa: ARG002 - a handler
        cursor = request.cursor
        start, first_partition = ("", 0) if cursor is None else (cursor.topic_name, cursor.partition_index)
        requested = {topic.name for topic in request.topics}
        if cursor is not None and (first_partition < 0 or (requested and start not in requested)):
            return {"topics": [_failed(name, ErrorCode.invalid_request) for name in sorted(requested)]}
        room = max(min(request.response_partition_limit, self._config.max_request_partition_size_limit), 1)
        described: list[Reply] = []
        for name in sorted(requested or {topic.name for topic in self._topics.all()}):
            if name < start:
                continue
            if room == 0:
                return {"topics": described, "next_cursor": {"topic_name": name, "partition_index": 0}}
            topic = self._topics.get(name)
            if topic is None:
                described.append(
                    {**_failed(name, _why_unknown(name)), "topic_authorized_operations": ALL_TOPIC_OPERATIONS}
                )
                continue
            first = first_partition if name == start else 0
            partitions = self._topics.partitions(name)[first : first + room]
            described.append(self._describe(topic, partitions))
            following = first + len(partitions)
            if following < topic.partition_count:
                return {"topics": described, "next_cursor": {"topic_name": name, "partition_index": following}}
            room -= len(partitions)
        return {"topics": described, "next_cursor": None}

    def _describe(self, topic: Topic, partitions: tuple[Partition, ...]) -> Reply:
        return {
            "error_code": ErrorCode.none,
            "name": topic.name,
            "topic_id": topic.id,
            "is_internal": topic.is_internal,
            "topic_authorized_operations": ALL_TOPIC_OPERATIONS,
            "partitions": [
                _described(partition.index, self._membership.placement(partition)) for partition in partitions
            ],
        }


def _described(index: int, placement: Placement) -> Reply:
    return {
        "error_code": ErrorCode.none,  # also without a leader, as in Kafka
        "partition_index": index,
        "leader_id": placement.leader,
        "leader_epoch": placement.leader_epoch,
        "replica_nodes": placement.replicas,
        "isr_nodes": placement.in_sync,
        "eligible_leader_replicas": placement.eligible,
        "last_known_elr": placement.last_known,
        "offline_replicas": placement.offline,
    }


def _wrong_endpoint(endpoint_type: int) -> Reply:
    if endpoint_type == _CONTROLLERS:
        code = ErrorCode.mismatched_endpoint_type
        message = "endpoint type is 2 (controllers); this broker has a listener for brokers (1) only"
    else:
        code = ErrorCode.unsupported_endpoint_type
        message = f"endpoint type is {endpoint_type}; it must be 1 (brokers)"
    return {
        "error_code": code,
        "error_message": message,
        "endpoint_type": _BROKERS,
        "cluster_id": "",
        "controller_id": -1,
        "brokers": (),
    }


def _failed(name: str, code: int) -> Reply:
    return {
        "error_code": code,
        "name": name,
        "topic_id": None,
        "partitions": (),
        "topic_authorized_operations": _NOT_ASKED,
    }


def _why_unknown(name: str) -> int:
    try:
        names.check_topic(name)
    except StratalogError as error:
        return error.code
    return ErrorCode.unknown_topic_or_partition

"""A client's metadata of the cluster: immutable snapshots, which any thread may read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

from stratalog.errors import InvalidTopicError, MalformedResponseError
from stratalog.protocol.error_codes import ErrorCode
from stratalog.topic_partition import TopicPartition as TopicPartition

NO_LEADER = -1


def check_topic_name(name: object) -> None:
    """Raise unless the name can be sent to a broker, which may still refuse it."""
    if not isinstance(name, str):
        raise TypeError(f"topic is {name!r:.100}; it must be a str")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InvalidTopicError(f"topic is {name!r:.100}, which can't be encoded as UTF-8: {error.reason}") from error


def to_topic_partition(value: object) -> TopicPartition:
    """Return a user's partition, a TopicPartition or a pair of topic and number, as a TopicPartition."""
    if isinstance(value, tuple | list) and len(value) == 2:
        topic, partition = value
        if isinstance(topic, str) and isinstance(partition, int) and not isinstance(partition, bool):
            return TopicPartition(topic, partition)
    raise TypeError(f"partition is {value!r}; it must be a TopicPartition, such as TopicPartition('orders', 0)")


class Node(NamedTuple):
    """A broker. `is_fenced`: it is alive, and may not lead partitions now, because it is shutting down."""

    id: int
    host: str
    port: int
    rack: str | None = None
    is_fenced: bool = False

    def __str__(self) -> str:
        return f"{self.host}:{self.port} (node {self.id})"


class PartitionInfo(NamedTuple):
    topic: str
    partition: int
    leader: int = NO_LEADER
    leader_epoch: int = -1
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    offline: tuple[int, ...] = ()
    error_code: int = 0


@dataclass(frozen=True, slots=True)
class TopicInfo:
    name: str
    id: UUID | None = None  # None from brokers without topic ids
    error_code: int = 0
    is_internal: bool = False
    partitions: tuple[PartitionInfo, ...] = ()  # by number


@dataclass(frozen=True)
class MetadataSnapshot:
    cluster_id: str | None = None
    controller_id: int = -1
    nodes: Mapping[int, Node] = field(default_factory=lambda: MappingProxyType({}))
    topics: Mapping[str, TopicInfo] = field(default_factory=lambda: MappingProxyType({}))
    updated_at: float = float("-inf")  # in the event loop's time

    def leader_of(self, topic: str, partition: int) -> PartitionInfo | None:
        """Return the partition, or None if it does not exist or has no leader."""
        info = self.topics.get(topic)
        if info is None or not 0 <= partition < len(info.partitions):
            return None
        partition_info = info.partitions[partition]
        return partition_info if partition_info.leader != NO_LEADER else None

    def name_of(self, topic_id: UUID) -> str | None:
        return self._names.get(topic_id)

    @cached_property
    def _names(self) -> dict[UUID, str]:
        return {info.id: name for name, info in self.topics.items() if info.id is not None}


def read_metadata(response: Any, before: MetadataSnapshot, now: float) -> MetadataSnapshot:
    """Return a snapshot from a Metadata response. Keeps a partition of `before` that has a newer leader epoch: brokers
    learn of elections one after the other, and the responding broker may be late."""
    nodes = {broker.node_id: Node(broker.node_id, broker.host, broker.port, broker.rack) for broker in response.brokers}
    topics = {}
    for topic in response.topics:
        if topic.name is not None:
            topics[topic.name] = _topic(topic, before.topics.get(topic.name))
    return MetadataSnapshot(
        cluster_id=getattr(response, "cluster_id", None),
        controller_id=getattr(response, "controller_id", -1),
        nodes=MappingProxyType(nodes),
        topics=MappingProxyType(topics),
        updated_at=now,
    )


def _topic(topic: Any, before: TopicInfo | None) -> TopicInfo:
    topic_id = getattr(topic, "topic_id", None)
    partitions = tuple(
        sorted((_partition(topic.name, each) for each in topic.partitions), key=lambda each: each.partition)
    )
    numbers = [each.partition for each in partitions]
    if numbers != list(range(len(numbers))):
        raise MalformedResponseError(
            f"the broker's metadata of topic {topic.name!r} has partitions {str(numbers[:10])[1:-1]}, which are not 0 "
            f"to {len(numbers) - 1}"
        )
    if before is not None and before.id == topic_id:
        partitions = tuple(
            before.partitions[each.partition]
            if each.partition < len(before.partitions)
            and before.partitions[each.partition].leader_epoch > each.leader_epoch >= 0
            else each
            for each in partitions
        )
    # A topic without partitions counts as unavailable, so that no caller has to handle an empty list.
    code = topic.error_code if partitions or topic.error_code else ErrorCode.leader_not_available
    return TopicInfo(topic.name, topic_id, int(code), topic.is_internal, partitions)


def _partition(topic: str, partition: Any) -> PartitionInfo:
    has_no_leader = partition.error_code in (ErrorCode.leader_not_available, ErrorCode.listener_not_found)
    return PartitionInfo(
        topic,
        partition.partition_index,
        NO_LEADER if has_no_leader else int(partition.leader_id),
        getattr(partition, "leader_epoch", -1),
        tuple(map(int, partition.replica_nodes)),
        tuple(map(int, partition.isr_nodes)),
        tuple(map(int, getattr(partition, "offline_replicas", ()))),
        int(partition.error_code),
    )

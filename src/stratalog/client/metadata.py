"""What a client knows of the cluster: snapshots that never change, so that any thread may read one."""

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
    """Raise unless it can be sent to a broker, which may still refuse it."""
    if not isinstance(name, str):
        raise TypeError(f"topic is {name!r:.100}; a name is wanted, a str")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InvalidTopicError(f"topic is {name!r:.100}, which is no text: {error.reason}") from error


def place_of(given: object) -> TopicPartition:
    """What a user names a partition by: a TopicPartition, or a pair like one."""
    if isinstance(given, tuple | list) and len(given) == 2:
        topic, partition = given
        if isinstance(topic, str) and isinstance(partition, int) and not isinstance(partition, bool):
            return TopicPartition(topic, partition)
    raise TypeError(f"partition is {given!r}; one is wanted as TopicPartition('orders', 0)")


class Node(NamedTuple):
    id: int
    host: str
    port: int
    rack: str | None = None

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
    id: UUID | None = None  # None from brokers that know no ids
    error_code: int = 0
    is_internal: bool = False
    partitions: tuple[PartitionInfo, ...] = ()  # by number


@dataclass(frozen=True)
class Metadata:
    cluster_id: str | None = None
    controller_id: int = -1
    nodes: Mapping[int, Node] = field(default_factory=lambda: MappingProxyType({}))
    topics: Mapping[str, TopicInfo] = field(default_factory=lambda: MappingProxyType({}))
    updated_at: float = float("-inf")  # in the loop's time

    def leader_of(self, topic: str, partition: int) -> PartitionInfo | None:
        """The partition, if it exists and has a leader."""
        info = self.topics.get(topic)
        if info is None or not 0 <= partition < len(info.partitions):
            return None
        found = info.partitions[partition]
        return found if found.leader != NO_LEADER else None

    def name_of(self, topic_id: UUID) -> str | None:
        return self._names.get(topic_id)

    @cached_property
    def _names(self) -> dict[UUID, str]:
        return {info.id: name for name, info in self.topics.items() if info.id is not None}


def read_metadata(response: Any, before: Metadata, now: float) -> Metadata:
    """A snapshot from a Metadata response. A leader that a broker has not heard of yet is kept: brokers learn of
    elections one after the other, and the one that was asked may be behind."""
    nodes = {one.node_id: Node(one.node_id, one.host, one.port, one.rack) for one in response.brokers}
    topics = {}
    for one in response.topics:
        if one.name is not None:
            topics[one.name] = _topic(one, before.topics.get(one.name))
    return Metadata(
        cluster_id=getattr(response, "cluster_id", None),
        controller_id=getattr(response, "controller_id", -1),
        nodes=MappingProxyType(nodes),
        topics=MappingProxyType(topics),
        updated_at=now,
    )


def _topic(one: Any, before: TopicInfo | None) -> TopicInfo:
    topic_id = getattr(one, "topic_id", None)
    partitions = tuple(sorted((_partition(one.name, each) for each in one.partitions), key=lambda each: each.partition))
    numbers = [each.partition for each in partitions]
    if numbers != list(range(len(numbers))):
        raise MalformedResponseError(
            f"the broker's metadata of topic {one.name!r} has partitions {str(numbers[:10])[1:-1]}, which are not 0 to "
            f"{len(numbers) - 1}"
        )
    if before is not None and before.id == topic_id:
        partitions = tuple(
            before.partitions[each.partition]
            if each.partition < len(before.partitions)
            and before.partitions[each.partition].leader_epoch > each.leader_epoch >= 0
            else each
            for each in partitions
        )
    # A topic without a partition is none that records could go to, and nobody has to be ready for it.
    code = one.error_code if partitions or one.error_code else ErrorCode.leader_not_available
    return TopicInfo(one.name, topic_id, int(code), one.is_internal, partitions)


def _partition(topic: str, one: Any) -> PartitionInfo:
    failed = one.error_code in (ErrorCode.leader_not_available, ErrorCode.listener_not_found)
    return PartitionInfo(
        topic,
        one.partition_index,
        NO_LEADER if failed else int(one.leader_id),
        getattr(one, "leader_epoch", -1),
        tuple(map(int, one.replica_nodes)),
        tuple(map(int, one.isr_nodes)),
        tuple(map(int, getattr(one, "offline_replicas", ()))),
        int(one.error_code),
    )

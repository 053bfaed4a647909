"""The brokers of a cluster and where each partition is, for the APIs that describe a cluster to clients.

A single broker is a cluster of one: it is its own controller, and the only replica of every partition.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from stratalog.broker.metadata.partition_state import NO_LEADER
from stratalog.broker.partition import Partition
from stratalog.broker.settings import Address
from stratalog.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from stratalog.broker.metadata.cluster_metadata import ClusterMetadata


class BrokerNode(NamedTuple):
    """A broker as clients see it. `is_fenced`: it is shutting down, so it must not lead."""

    node_id: int
    host: str
    port: int
    rack: str | None = None
    is_fenced: bool = False


class Placement(NamedTuple):
    """Where a partition is. `error` is LEADER_NOT_AVAILABLE while no broker leads it."""

    error: ErrorCode
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    offline: tuple[int, ...]
    eligible: tuple[int, ...] = ()
    last_known: tuple[int, ...] = ()


class BrokersAndPlacements(ABC):
    cluster_id: str
    node_id: int

    @property
    @abstractmethod
    def controller(self) -> int:
        """The node id of the controller, or -1."""

    @abstractmethod
    def brokers(self) -> list[BrokerNode]:
        """Return the brokers that are alive."""

    @abstractmethod
    def placement(self, partition: Partition) -> Placement: ...


class OnlyBroker(BrokersAndPlacements):
    def __init__(self, cluster_id: str, node_id: int, address: Callable[[], Address]) -> None:
        self.cluster_id = cluster_id
        self.node_id = node_id
        self._address = address

    @property
    def controller(self) -> int:
        return self.node_id

    def brokers(self) -> list[BrokerNode]:
        return [BrokerNode(self.node_id, *self._address())]

    def placement(self, partition: Partition) -> Placement:
        node, epoch = (self.node_id,), partition.leader_epoch
        if partition.is_offline:
            return Placement(ErrorCode.leader_not_available, NO_LEADER, epoch, node, (), node)
        return Placement(ErrorCode.none, self.node_id, epoch, node, node, ())


class ClusterMembership(BrokersAndPlacements):
    def __init__(self, metadata: ClusterMetadata, node_id: int) -> None:
        self._metadata = metadata
        self.cluster_id = metadata.view.cluster_id
        self.node_id = node_id

    @property
    def controller(self) -> int:
        return self._metadata.view.controller

    def brokers(self) -> list[BrokerNode]:
        brokers = self._metadata.view.brokers.values()
        return [
            BrokerNode(broker.node_id, broker.host, broker.port, broker.rack, broker.is_leaving) for broker in brokers
        ]

    def placement(self, partition: Partition) -> Placement:
        view = self._metadata.view
        state = view.state(partition.topic, partition.index)
        if state is None:  # the topic was deleted a moment ago
            return Placement(ErrorCode.leader_not_available, NO_LEADER, 0, (), (), ())
        offline = tuple(replica for replica in state.replicas if replica not in view.brokers)
        leader = state.leader if state.leader in view.brokers else NO_LEADER
        return Placement(
            ErrorCode.leader_not_available if leader == NO_LEADER else ErrorCode.none,
            leader,
            state.leader_epoch,
            state.replicas,
            state.isr,
            offline,
            state.elr,
            () if state.last_known_leader == NO_LEADER else (state.last_known_leader,),
        )

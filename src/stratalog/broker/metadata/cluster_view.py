"""The metadata of a cluster as one broker sees it: brokers, topics, and the state of each partition. Pure.

A view is immutable and replaced as a whole, so that a reader never sees half of a change. It may be older than what
ZooKeeper has; everything that must not be decided from an old view is checked by ZooKeeper when it is written.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from stratalog.broker.metadata.partition_state import PartitionState

NO_BROKER = -1


class PartitionId(NamedTuple):
    """A partition of a topic id. A topic that is deleted and created again has another topic id."""

    topic_id: uuid.UUID
    partition: int


@dataclass(frozen=True, slots=True)
class RegisteredBroker:
    """A broker that is registered. `epoch` is its broker epoch: each registration has a higher one.

    `lost_tail`: the machine went down before this registration, and the ends of the broker's logs may be lost.
    `is_leaving`: the broker is shutting down; it must not lead, nor join an ISR."""

    node_id: int
    host: str
    port: int
    epoch: int
    rack: str | None = None
    lost_tail: bool = False
    is_leaving: bool = False


@dataclass(frozen=True, slots=True)
class ClusterTopic:
    """A topic of the cluster. `settings` are its own settings, as text."""

    name: str
    id: uuid.UUID
    partition_count: int
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClusterView:
    cluster_id: str
    brokers: Mapping[int, RegisteredBroker] = field(default_factory=dict)
    topics: Mapping[str, ClusterTopic] = field(default_factory=dict)
    states: Mapping[PartitionId, PartitionState] = field(default_factory=dict)
    controller: int = NO_BROKER
    broker_settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Settings that were changed while the brokers ran, by node id as text; "" stands for all brokers."""

    def live_epochs(self) -> dict[int, int]:
        """Return the brokers that may lead, with their broker epochs."""
        return {broker.node_id: broker.epoch for broker in self.brokers.values() if not broker.is_leaving}

    def state(self, topic: str, partition: int) -> PartitionState | None:
        known = self.topics.get(topic)
        return None if known is None else self.states.get(PartitionId(known.id, partition))

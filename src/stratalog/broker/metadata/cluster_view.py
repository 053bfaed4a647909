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

    `lost_tail`: the ends of the broker's logs may be lost, and the controller has not yet taken it out of the ISRs that
    it was in before; until then it must not join one. `is_leaving`: the broker is shutting down; it must not lead, nor
    join an ISR. `fence`: changes with the registration and with both of these; a write that relies on them checks that
    it is still the same."""

    node_id: int
    host: str
    port: int
    epoch: int
    rack: str | None = None
    lost_tail: bool = False
    is_leaving: bool = False
    fence: int = 0


@dataclass(frozen=True, slots=True)
class ClusterTopic:
    """A topic of the cluster. `settings` are its own settings, as text. `min_insync` is the min.insync.replicas that
    counts for it. `version`: each change of the topic, not of its partitions' states, raises it."""

    name: str
    id: uuid.UUID
    partition_count: int
    settings: Mapping[str, str] = field(default_factory=dict)
    min_insync: int = 1
    version: int = 0


@dataclass(frozen=True, slots=True)
class ClusterView:
    cluster_id: str
    brokers: Mapping[int, RegisteredBroker] = field(default_factory=dict)
    topics: Mapping[str, ClusterTopic] = field(default_factory=dict)
    states: Mapping[PartitionId, PartitionState] = field(default_factory=dict)
    controller: int = NO_BROKER
    broker_settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Settings that were changed while the brokers ran, by node id as text; "" stands for all brokers."""
    unreadable_topics: frozenset[str] = frozenset()
    """The topics that exist, and whose znodes can't be read now. A broker must not take them for deleted ones."""

    def live_epochs(self) -> dict[int, int]:
        """Return the brokers that may lead, with their broker epochs."""
        return {broker.node_id: broker.epoch for broker in self.brokers.values() if not broker.is_leaving}

    def joinable_epoch(self, node_id: int) -> int | None:
        """Return the broker epoch under which a broker may join ISRs now; None if it may not."""
        broker = self.brokers.get(node_id)
        return None if broker is None or broker.lost_tail or broker.is_leaving else broker.epoch

    def state(self, topic: str, partition: int) -> PartitionState | None:
        known = self.topics.get(topic)
        return None if known is None else self.states.get(PartitionId(known.id, partition))

"""One replica of a partition, with a real log and a clock that the test moves."""

from __future__ import annotations

import uuid
from pathlib import Path
from types import TracebackType
from typing import Self

from stratalog.broker.fetch_sessions import CachedPartition
from stratalog.broker.metadata.cluster_view import PartitionId
from stratalog.broker.metadata.partition_state import PartitionState
from stratalog.broker.replication.partition import ReplicaContext, ReplicatedPartition
from stratalog.clock import ManualClock
from stratalog.records.builder import build_batch
from stratalog.storage.config import LogConfig
from stratalog.storage.log_directory import LogDirectory
from tests.broker.metadata.registry_lab import QuickDisk

NODE = 1
LAG_MS = 1000
TOPIC_ID = uuid.UUID(int=5)


def state(
    leader: int = NODE,
    epoch: int = 0,
    isr: tuple[int, ...] = (1, 2, 3),
    *,
    replicas: tuple[int, ...] = (1, 2, 3),
    min_insync: int = 2,
    partition_epoch: int = 0,
) -> PartitionState:
    return PartitionState(
        replicas, leader, epoch, isr, leader_broker_epoch=10, min_insync=min_insync, partition_epoch=partition_epoch
    )


class PartitionLab:
    """The replica of broker 1; brokers 2 and 3 have broker epochs 2 and 3."""

    def __init__(self, data: Path) -> None:
        self.clock = ManualClock()
        self.has_lease = True
        self.caught_up: list[int] = []
        self.directory = LogDirectory.open(data, disk=QuickDisk(), clock=self.clock, background=False, in_cluster=True)
        log = self.directory.log("topic", 0, LogConfig(segment_index_bytes=1024), topic_id=TOPIC_ID)
        self.registered = {1: 1, 2: 2, 3: 3, 7: 7}
        self.context = ReplicaContext(
            NODE, self.clock, lambda: self.has_lease, lambda: LAG_MS, lambda node_id: self.registered.get(node_id)
        )
        self.context.on_follower_caught_up = lambda _, replica: self.caught_up.append(replica)
        self.partition = ReplicatedPartition("topic", 0, PartitionId(TOPIC_ID, 0), log, self.context)

    def lead(self, new: PartitionState | None = None) -> ReplicatedPartition:
        new = new or state()
        self.partition.log.begin_epoch(new.leader_epoch)
        self.partition.lead(new)
        return self.partition

    def append(self, *values: bytes) -> int:
        """Append a batch, and return the offset after it."""
        data = memoryview(build_batch([(None, value) for value in values]))
        return self.partition.append(data).last_offset + 1

    def fetch(self, replica: int, offset: int, *, broker_epoch: int | None = None) -> bool:
        return self.partition.follower_fetched(replica, broker_epoch or replica, offset, 0)

    def is_idle(
        self,
        replica: int,
        offset: int,
        *,
        start: int = 0,
        epoch: int = 0,
        high_watermark: int | None = None,
        broker_epoch: int | None = None,
    ) -> bool:
        """Return whether a fetch in a session counts as that of an idle follower."""
        cached = CachedPartition("topic", 0, (0, epoch, offset, -1, 1000, start))
        cached.high_watermark = self.partition.high_watermark if high_watermark is None else high_watermark
        cached.log_start_offset = self.partition.log.log_start_offset
        return self.partition.follower_is_idle(replica, broker_epoch or replica, cached)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.directory.close()

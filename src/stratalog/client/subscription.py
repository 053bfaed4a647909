"""A consumer's topics or pattern, its assigned partitions, and the state of each. Pure.

The polling thread changes the set of partitions, on a call of the user or when it carries out a rebalance. The I/O
thread, which fetches, changes the state of a partition, except its `progress`: taking records moves that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from stratalog.client._fetched_batches import Progress
from stratalog.client.metadata import TopicPartition
from stratalog.client.offset_reset import OffsetReset
from stratalog.errors import ClientError


class RebalanceListener:
    """Base class of rebalance listeners. Its methods are called in the polling thread, within poll, iteration and
    close."""

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        """Handle newly assigned partitions. Call `seek` here to begin at another offset than the committed one."""

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        """Handle partitions that other members get afterwards. Commit finished work here."""

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        """Handle partitions that belong to other members already; their offsets can't be committed any more."""
        self.on_partitions_revoked(partitions)


class AssignedPartition:
    """The state of an assigned partition. The application takes records at `progress`; prefetching is at
    `fetch_offset`."""

    __slots__ = (
        "fetch_offset",
        "high_watermark",
        "is_paused",
        "is_stopped",
        "last_epoch",
        "last_stable_offset",
        "log_start_offset",
        "nearby_replica",
        "nearby_until",
        "needs_committed",
        "partition",
        "progress",
        "reset",
        "retry_at",
    )

    def __init__(self, partition: TopicPartition, *, needs_committed: bool, reset: OffsetReset | None) -> None:
        self.partition = partition
        self.progress = Progress()
        self.fetch_offset = -1
        self.last_epoch = -1  # of the record before fetch_offset: the broker checks that its log has this record
        self.needs_committed = needs_committed  # the committed offset is still to be fetched
        self.reset = reset  # the position is still to be looked up this way
        self.is_paused = False
        self.is_stopped = False  # the fetched records end in an error that the user has not seen yet
        self.retry_at = 0.0
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1
        self.nearby_replica = -1
        self.nearby_until = 0.0

    @property
    def has_position(self) -> bool:
        return self.progress.offset >= 0

    @property
    def position(self) -> int | None:
        offset = self.progress.offset
        return offset if offset >= 0 else None

    def seek(self, offset: int, leader_epoch: int = -1) -> None:
        """Set the position. Records that were fetched for the old progress are dropped when they are next looked at."""
        self.progress = Progress(offset, leader_epoch)
        self.fetch_offset = offset
        self.last_epoch = leader_epoch
        self.needs_committed = False
        self.reset = None
        self.is_stopped = False
        self.retry_at = 0.0

    def reset_to(self, reset: OffsetReset) -> None:
        self.seek(-1)
        self.reset = reset


class Subscription:
    def __init__(self, reset: OffsetReset, *, has_group: bool) -> None:
        self.reset = reset
        self._has_group = has_group
        self.topics: frozenset[str] = frozenset()  # the subscribed topics; with a pattern, the matching topics
        self.pattern: re.Pattern[str] | None = None
        self.listener: RebalanceListener | None = None
        self.is_manual = False
        self.partitions: dict[TopicPartition, AssignedPartition] = {}

    @property
    def is_group(self) -> bool:
        """Return whether the group assigns the partitions."""
        return not self.is_manual and (bool(self.topics) or self.pattern is not None)

    def subscribe(
        self, topics: Iterable[str], pattern: re.Pattern[str] | None, listener: RebalanceListener | None
    ) -> None:
        if self.is_manual:
            raise ClientError("partitions are assigned by assign(); call unsubscribe() before subscribe()")
        self.topics = frozenset(topics)
        self.pattern = pattern
        self.listener = listener

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Assign partitions without the group. Partitions that stay assigned keep their position."""
        if self.is_group:
            raise ClientError("the consumer is subscribed to topics; call unsubscribe() before assign()")
        self.is_manual = True
        self.set_partitions(partitions)

    def unsubscribe(self) -> None:
        self.is_manual = False
        self.topics = frozenset()
        self.pattern = None
        self.listener = None
        self.partitions = {}

    def set_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        """Replace the partitions by a new dict, because the other thread may be iterating over the old one."""
        before = self.partitions
        self.partitions = {partition: before.get(partition) or self._new(partition) for partition in partitions}

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        self.set_partitions([*self.partitions, *partitions])

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        gone = set(partitions)
        self.set_partitions([partition for partition in self.partitions if partition not in gone])

    def matches(self, topic: str) -> bool:
        return self.pattern is not None and self.pattern.fullmatch(topic) is not None

    def state(self, partition: TopicPartition) -> AssignedPartition:
        state = self.partitions.get(partition)
        if state is None:
            raise ClientError(
                f"{partition.topic}-{partition.partition} is not assigned to this consumer; assignment() returns the "
                f"assigned partitions"
            )
        return state

    def _new(self, partition: TopicPartition) -> AssignedPartition:
        return AssignedPartition(
            partition, needs_committed=self._has_group, reset=None if self._has_group else self.reset
        )

"""What a consumer reads: its topics or pattern, the partitions it has, and where it is in each. Pure.

Which partitions there are is changed in the polling thread, when the user or a rebalance that it carries out says so.
Where a partition stands is changed in the I/O thread, which fetches; but for its `progress`, which moves with the
records taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from stratalog.client._fetched_batches import Progress
from stratalog.client.metadata import TopicPartition
from stratalog.client.offset_reset import OffsetReset
from stratalog.errors import ClientError


class RebalanceListener:
    """To be derived from. Called in the polling thread, from within poll and its like."""

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        """These came to what the consumer has; `seek` here to begin elsewhere than at what was committed."""

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        """These go to others afterwards: commit what is done here."""

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        """These belong to others already; nothing can be committed for them any more."""
        self.on_partitions_revoked(partitions)


class PartitionState:
    """One partition that is read. Records are taken at `progress`, and fetched ahead of that, at `fetch_offset`."""

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
        "place",
        "progress",
        "reset",
        "retry_at",
    )

    def __init__(self, place: TopicPartition, *, needs_committed: bool, reset: OffsetReset | None) -> None:
        self.place = place
        self.progress = Progress()
        self.fetch_offset = -1
        self.last_epoch = -1  # of the record before fetch_offset: the broker tells whether its log has it too
        self.needs_committed = needs_committed  # where to begin is what the group committed, if it did
        self.reset = reset  # where to begin is to be looked up
        self.is_paused = False
        self.is_stopped = False  # what was fetched ends in an error that the user has not seen yet
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
        """What was fetched for the old progress is dropped where it is found."""
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
        self.topics: frozenset[str] = frozenset()  # subscribed to; with a pattern, those that match
        self.pattern: re.Pattern[str] | None = None
        self.listener: RebalanceListener | None = None
        self.is_manual = False
        self.partitions: dict[TopicPartition, PartitionState] = {}

    @property
    def is_group(self) -> bool:
        """Whether partitions are given by the group."""
        return not self.is_manual and (bool(self.topics) or self.pattern is not None)

    def subscribe(
        self, topics: Iterable[str], pattern: re.Pattern[str] | None, listener: RebalanceListener | None
    ) -> None:
        if self.is_manual:
            raise ClientError("partitions were assigned by hand; unsubscribe() before subscribe()")
        self.topics = frozenset(topics)
        self.pattern = pattern
        self.listener = listener

    def assign(self, places: Iterable[TopicPartition]) -> None:
        """By hand. Partitions that stay keep their position."""
        if self.is_group:
            raise ClientError("the consumer subscribes to topics; unsubscribe() before assign()")
        self.is_manual = True
        self.set_partitions(places)

    def unsubscribe(self) -> None:
        self.is_manual = False
        self.topics = frozenset()
        self.pattern = None
        self.listener = None
        self.partitions = {}

    def set_partitions(self, places: Iterable[TopicPartition]) -> None:
        """A new dict each time: others may be walking over the old one."""
        before = self.partitions
        self.partitions = {place: before.get(place) or self._new(place) for place in places}

    def add(self, places: Iterable[TopicPartition]) -> None:
        self.set_partitions([*self.partitions, *places])

    def remove(self, places: Iterable[TopicPartition]) -> None:
        gone = set(places)
        self.set_partitions([place for place in self.partitions if place not in gone])

    def matches(self, topic: str) -> bool:
        return self.pattern is not None and self.pattern.fullmatch(topic) is not None

    def state(self, place: TopicPartition) -> PartitionState:
        found = self.partitions.get(place)
        if found is None:
            raise ClientError(
                f"{place.topic}-{place.partition} is not assigned to this consumer; assignment() lists what is"
            )
        return found

    def _new(self, place: TopicPartition) -> PartitionState:
        return PartitionState(place, needs_committed=self._has_group, reset=None if self._has_group else self.reset)

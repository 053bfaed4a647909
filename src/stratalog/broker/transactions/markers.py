"""Markers: the control batches, COMMIT or ABORT, that end a transaction in a partition, after its last record.

Offsets that were committed in a transaction are in `__consumer_offsets`. When a marker is written to one of its
partitions, the groups apply the pending offsets (COMMIT) or drop them (ABORT).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from stratalog.broker.background import RunInBackground
from stratalog.broker.groups import offsets_topic
from stratalog.broker.partition import Partition
from stratalog.clock import Clock
from stratalog.errors import StorageError, StratalogError
from stratalog.protocol.error_codes import ErrorCode
from stratalog.records.builder import build_control_batch
from stratalog.records.format import ControlType
from stratalog.storage.appending import WouldWaitError
from stratalog.storage.log import Log
from stratalog.storage.names import TopicPartition

BUSY = ErrorCode.not_leader_or_follower  # the log is held by another thread; clients and the coordinator retry


class Marker(NamedTuple):
    producer_id: int
    epoch: int
    commit: bool
    coordinator_epoch: int


class PartitionTable(Protocol):
    """The part of TopicRegistry that markers need."""

    def partition(self, name: str, index: int) -> Partition | None: ...


class Groups(Protocol):
    """The part of GroupCoordinator that markers need."""

    def can_end_transactions(self, partition: int) -> ErrorCode:
        """Return NONE if this partition of __consumer_offsets has been read, else COORDINATOR_LOAD_IN_PROGRESS."""

    def end_transaction(self, partition: int, producer_id: int, *, commit: bool) -> None: ...


class MarkerWriter:
    def __init__(
        self, topics: PartitionTable, groups: Groups, clock: Clock, run_in_background: RunInBackground
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._clock = clock
        self._run_in_background = run_in_background

    def write(self, topic_partition: TopicPartition, marker: Marker, *, may_wait: bool = False) -> ErrorCode:
        """Append a marker, and apply it to the groups. Return NONE, or an error if nothing was written.

        Without `may_wait` the append never waits for the disk, and the caller must call `flush` next. The errors:

        - UNKNOWN_TOPIC_OR_PARTITION, INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED, KAFKA_STORAGE_ERROR as in
          Kafka.
        - COORDINATOR_LOAD_IN_PROGRESS: the groups of this partition of __consumer_offsets are not loaded yet.
        - BUSY, only without `may_wait`: another thread holds the log, perhaps because it waits for the disk.
        """
        partition = self._topics.partition(*topic_partition)
        if partition is None:
            return ErrorCode.unknown_topic_or_partition
        has_offsets = topic_partition.topic == offsets_topic.NAME
        if has_offsets:
            error = self._groups.can_end_transactions(topic_partition.partition)
            if error is not ErrorCode.none:
                return error
        known = partition.log.producers.get(marker.producer_id)
        if known is not None and known.coordinator_epoch > marker.coordinator_epoch:
            return ErrorCode.transaction_coordinator_fenced
        batch = build_control_batch(
            ControlType.COMMIT if marker.commit else ControlType.ABORT,
            marker.producer_id,
            marker.epoch,
            marker.coordinator_epoch,
            self._clock.now_ms(),
        )
        try:
            partition.append_for_coordinator(batch, may_wait=may_wait)
        except WouldWaitError:
            return BUSY
        except StorageError:
            return ErrorCode.kafka_storage_error
        except StratalogError as error:
            return ErrorCode(error.code)
        if has_offsets:
            self._groups.end_transaction(topic_partition.partition, marker.producer_id, commit=marker.commit)
        return ErrorCode.none

    def must_flush(self, partitions: Iterable[TopicPartition]) -> bool:
        """Return whether flush.messages requires a flush before the markers in these partitions count."""
        return bool(self._unflushed(partitions))

    async def flush(self, partitions: Iterable[TopicPartition]) -> None:
        """Make markers durable where flush.messages requires it. Raises StratalogError."""
        for log in self._unflushed(partitions):
            await self._run_in_background(log.flush)

    def _unflushed(self, topic_partitions: Iterable[TopicPartition]) -> list[Log]:
        partitions = (self._topics.partition(*topic_partition) for topic_partition in topic_partitions)
        return [partition.log for partition in partitions if partition is not None and partition.log.flush_is_due()]

"""The marker that ends a transaction in a partition: a control batch, COMMIT or ABORT, behind the last of its records.

Offsets that were committed in the transaction lie in `__consumer_offsets`, so groups are told when a marker is in one
of its partitions: what was pending counts from then on, or is gone.
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

BUSY = ErrorCode.not_leader_or_follower  # whoever asks for a marker tries again after it


class Marker(NamedTuple):
    producer_id: int
    epoch: int
    commit: bool
    coordinator_epoch: int


class PartitionTable(Protocol):
    """What of the TopicRegistry is used here."""

    def partition(self, name: str, index: int) -> Partition | None: ...


class Groups(Protocol):
    """What of the GroupCoordinator is used here."""

    def can_end_transactions(self, partition: int) -> ErrorCode:
        """Whether what a partition of __consumer_offsets holds is known by now."""

    def end_transaction(self, partition: int, producer_id: int, *, commit: bool) -> None: ...


class MarkerWriter:
    def __init__(
        self, topics: PartitionTable, groups: Groups, clock: Clock, run_in_background: RunInBackground
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._clock = clock
        self._run_in_background = run_in_background

    def write(self, where: TopicPartition, marker: Marker, *, may_wait: bool = False) -> ErrorCode:
        """Kafka's errors: UNKNOWN_TOPIC_OR_PARTITION, INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED,
        KAFKA_STORAGE_ERROR; COORDINATOR_LOAD_IN_PROGRESS where groups are not ready; BUSY, unless it `may_wait`, where
        another thread holds the log, perhaps because it waits for the disk. Nothing was written then.

        Unless it `may_wait`, flush() comes next."""
        partition = self._topics.partition(*where)
        if partition is None:
            return ErrorCode.unknown_topic_or_partition
        holds_offsets = where.topic == offsets_topic.NAME
        if holds_offsets and (error := self._groups.can_end_transactions(where.partition)) is not ErrorCode.none:
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
        if holds_offsets:
            self._groups.end_transaction(where.partition, marker.producer_id, commit=marker.commit)
        return ErrorCode.none

    def must_flush(self, places: Iterable[TopicPartition]) -> bool:
        """Whether flush.messages asks for a flush before the markers in these partitions count."""
        return bool(self._unflushed(places))

    async def flush(self, places: Iterable[TopicPartition]) -> None:
        """Make markers durable where flush.messages asks for it. Raises StratalogError."""
        for log in self._unflushed(places):
            await self._run_in_background(log.flush)

    def _unflushed(self, places: Iterable[TopicPartition]) -> list[Log]:
        partitions = (self._topics.partition(*place) for place in places)
        return [one.log for one in partitions if one is not None and one.log.flush_is_due()]

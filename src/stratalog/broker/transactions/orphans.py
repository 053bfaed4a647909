"""Orphans: transactions that are open in a partition after a power cut, and that the coordinator will not end there.

Logs are flushed one by one, so a power cut can take the last records of `__transaction_state` and leave those of a
partition. Such a transaction would hold back readers of committed records permanently. So the first start after an
unclean stop ends every orphan:

- If the coordinator knows that the transaction was committed or aborted, the partition gets the same marker.
- Otherwise it is aborted, and its producer is fenced.
- If the coordinator knows the transaction as open, but a partition shows a newer producer epoch, or the transaction is
  open in a partition that the coordinator does not list, it is aborted in all of its partitions.

kill -9 leaves no orphans: it loses nothing that was appended.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from stratalog.broker.partition import Partition
from stratalog.broker.transactions import state
from stratalog.broker.transactions.markers import Marker
from stratalog.broker.transactions.state import HIGHEST_EPOCH, NO_EPOCH, Transaction, TransactionState, TransactionStep
from stratalog.protocol.error_codes import ErrorCode
from stratalog.storage.names import TopicPartition

log = logging.getLogger(__name__)


class Orphan(NamedTuple):
    """A producer's transaction in one partition, and the marker that ends it there."""

    topic_partition: TopicPartition
    marker: Marker


class Coordinator(Protocol):
    """The part of TransactionCoordinator that orphans need."""

    def all(self) -> Iterable[Transaction]: ...

    def get(self, transactional_id: str) -> Transaction | None: ...

    def take(self, step: TransactionStep) -> ErrorCode: ...


class Orphans:
    """The orphans of all partitions, found when this is created.

    Call `end` before the coordinator completes the transactions that it was ending, and `fence` after that, which
    includes those.
    """

    def __init__(self, transactions: Iterable[Transaction], partitions: Iterable[Partition]) -> None:
        by_producer = {transaction.producer_id: transaction for transaction in transactions}
        self.orphans: list[Orphan] = []
        self._newest_epochs: dict[str, int] = {}  # by id, where a partition shows a newer epoch than the coordinator
        self._missing: dict[str, set[TopicPartition]] = {}  # partitions that an open transaction lacks, by id
        for partition in partitions:
            topic_partition = TopicPartition(partition.topic, partition.index)
            for producer in partition.log.producers:
                known = by_producer.get(producer.producer_id)
                is_open = producer.transaction_first_offset is not None
                commit = outcome(known, topic_partition, producer.epoch) if is_open else None
                if commit is not None:
                    marker = Marker(producer.producer_id, producer.epoch, commit, max(producer.coordinator_epoch, 0))
                    self.orphans.append(Orphan(topic_partition, marker))
                elif is_open and known is not None and topic_partition not in known.partitions:
                    self._missing.setdefault(known.transactional_id, set()).add(topic_partition)
                if known is not None and producer.epoch + (commit is False) > known.epoch:
                    before = self._newest_epochs.get(known.transactional_id, producer.epoch)
                    self._newest_epochs[known.transactional_id] = max(producer.epoch, before)

    def end(self, coordinator: Coordinator, write: Callable[[TopicPartition, Marker], ErrorCode], now_ms: int) -> None:
        """Write the markers of all orphans, and abort the transactions of which a part is lost."""
        for topic_partition, marker in self.orphans:
            error = write(topic_partition, marker)
            log.warning(
                "%s: producer %d has an open transaction that __transaction_state lost in the last stop; %s: %s",
                topic_partition,
                marker.producer_id,
                "committed" if marker.commit else "aborted",
                "done" if error is ErrorCode.none else f"failed with {error.name}",
            )
        for transactional_id in {*self._newest_epochs, *self._missing}:
            known = coordinator.get(transactional_id)
            if known is not None and known.state is TransactionState.ONGOING:
                complete = known._replace(partitions=known.partitions | self._missing.get(transactional_id, set()))
                log.warning("transactional id %r: a part of the open transaction is lost; aborted", transactional_id)
                coordinator.take(TransactionStep(ErrorCode.none, state.fence(complete, now_ms)))
        self.fence(coordinator, now_ms)

    def fence(self, coordinator: Coordinator, now_ms: int) -> None:
        """Raise the epochs of idle ids above the newest epochs that partitions show."""
        for transactional_id, epoch in self._newest_epochs.items():
            known = coordinator.get(transactional_id)
            if known is not None and known.is_idle and known.epoch <= epoch:
                following = min(epoch + 1, HIGHEST_EPOCH)
                raised = known._replace(epoch=following, last_epoch=NO_EPOCH, updated_ms=now_ms)
                coordinator.take(TransactionStep(ErrorCode.none, raised))


def outcome(known: Transaction | None, topic_partition: TopicPartition, epoch: int) -> bool | None:
    """Return how a transaction of this epoch, open in a partition, has to end there: True for a commit, False for an
    abort, None if the coordinator knows the transaction and will end it."""
    if known is None:
        return False
    has_ended = known.is_ending or known.state in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
    has_next_epoch = has_ended and known.client_version >= 2  # the end raises the epoch
    if epoch != (known.epoch - 1 if has_next_epoch else known.epoch):
        return False
    if known.state is TransactionState.ONGOING or (known.is_ending and topic_partition in known.partitions):
        return None
    return known.state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)

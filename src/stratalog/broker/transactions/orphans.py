"""After a power cut: partitions that know more of a transaction than `__transaction_state`, where its last records are
lost.

Logs are flushed each by itself, so one may come back with its end and another without. A transaction that is open in a
partition and that the coordinator will not end there would hold up readers of committed records for ever. So when the
last stop was not in order, each such *orphan* is ended at the start: as it was decided, where that is known, else it is
aborted, and whoever wrote it is fenced. A transaction that the coordinator takes for open, and that partitions know to
be older than what came after it, or larger, is aborted as a whole.

kill -9 leaves no orphans: nothing that was appended is lost by it.
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
    """A producer's transaction in one partition, and how it ends there."""

    place: TopicPartition
    marker: Marker


class Coordinator(Protocol):
    """What of the TransactionCoordinator is used here."""

    def all(self) -> Iterable[Transaction]: ...

    def get(self, transactional_id: str) -> Transaction | None: ...

    def take(self, step: TransactionStep) -> ErrorCode: ...


class Orphans:
    """Found at once. `end` before decided transactions are finished; `fence` after that, for those too."""

    def __init__(self, transactions: Iterable[Transaction], partitions: Iterable[Partition]) -> None:
        by_producer = {one.producer_id: one for one in transactions}
        self.found: list[Orphan] = []
        self._seen: dict[str, int] = {}  # ids that are behind, and the highest epoch that partitions know of theirs
        self._missing: dict[str, set[TopicPartition]] = {}  # places that an open transaction has and does not know of
        for partition in partitions:
            place = TopicPartition(partition.topic, partition.index)
            for producer in partition.log.producers:
                known = by_producer.get(producer.producer_id)
                is_open = producer.transaction_first_offset is not None
                commit = outcome(known, place, producer.epoch) if is_open else None
                if commit is not None:
                    marker = Marker(producer.producer_id, producer.epoch, commit, max(producer.coordinator_epoch, 0))
                    self.found.append(Orphan(place, marker))
                elif is_open and known is not None and place not in known.partitions:
                    self._missing.setdefault(known.transactional_id, set()).add(place)
                if known is not None and producer.epoch + (commit is False) > known.epoch:
                    before = self._seen.get(known.transactional_id, producer.epoch)
                    self._seen[known.transactional_id] = max(producer.epoch, before)

    def end(self, coordinator: Coordinator, write: Callable[[TopicPartition, Marker], ErrorCode], now_ms: int) -> None:
        for place, marker in self.found:
            error = write(place, marker)
            how = "committed" if marker.commit else "aborted"
            log.warning(
                "%s: the transaction of producer %d is in no coordinator's log since the last stop: %s%s",
                place,
                marker.producer_id,
                how,
                "" if error is ErrorCode.none else f", which failed: {error.name}",
            )
        for transactional_id in {*self._seen, *self._missing}:
            known = coordinator.get(transactional_id)
            if known is not None and known.state is TransactionState.ONGOING:
                whole = known._replace(partitions=known.partitions | self._missing.get(transactional_id, set()))
                log.warning("transactional id %r: what was open is aborted, as some of it is lost", transactional_id)
                coordinator.take(TransactionStep(ErrorCode.none, state.fence(whole, now_ms)))
        self.fence(coordinator, now_ms)

    def fence(self, coordinator: Coordinator, now_ms: int) -> None:
        for transactional_id, epoch in self._seen.items():
            known = coordinator.get(transactional_id)
            if known is not None and known.is_at_rest and known.epoch <= epoch:
                following = min(epoch + 1, HIGHEST_EPOCH)
                raised = known._replace(epoch=following, last_epoch=NO_EPOCH, updated_ms=now_ms)
                coordinator.take(TransactionStep(ErrorCode.none, raised))


def outcome(known: Transaction | None, place: TopicPartition, epoch: int) -> bool | None:
    """How a transaction of this epoch, open in a partition, has to end there: True is a commit. None: the coordinator
    knows of it, and ends it when its time comes."""
    if known is None:
        return False
    is_decided = known.is_prepared or known.state in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
    has_moved_on = is_decided and known.client_version >= 2  # the decision takes the epoch away
    if epoch != (known.epoch - 1 if has_moved_on else known.epoch):
        return False
    if known.state is TransactionState.ONGOING or (known.is_prepared and place in known.partitions):
        return None
    return known.state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)

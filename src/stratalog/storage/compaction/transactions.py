"""What compaction has to know of transactions: which records were aborted and go, and which markers nobody needs.

Fed with the batches of a log in order, it follows Kafka's rules: the records of an aborted transaction go at once. A
marker goes when no record of its transaction is left, and then only after delete.retention.ms, so that a reader that is
under way still finds it. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from stratalog.records.batch import Batch
from stratalog.records.format import ControlType
from stratalog.records.reader import read_control
from stratalog.storage.transaction_index import AbortedTransaction


class CleanedTransactions:
    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        """`aborted`: all that have records in what is about to be read."""
        self._coming = deque(sorted(aborted, key=lambda transaction: transaction.first_offset))
        self._aborted: dict[int, AbortedTransaction] = {}  # under way where the reading is, by producer
        self._seen_aborted: set[int] = set()  # producers of those that had records
        self._committed: set[int] = set()  # producers with records of a transaction that was not aborted
        self._kept: list[AbortedTransaction] = []

    def take_kept(self) -> list[AbortedTransaction]:
        """The aborted transactions whose markers were met since the last call, and have to stay in an index."""
        kept, self._kept = self._kept, []
        return kept

    def may_go(self, batch: Batch) -> bool:
        """Whether a batch belongs to an aborted transaction, or is the marker of one that has no records left."""
        header = batch.header
        if header.is_control:
            self._come_up_to(header.last_offset)
            return self._may_marker_go(batch)
        if not header.is_transactional:
            return False
        self._come_up_to(header.last_offset)
        if header.producer_id in self._aborted:
            self._seen_aborted.add(header.producer_id)
            return True
        self._committed.add(header.producer_id)
        return False

    def _may_marker_go(self, batch: Batch) -> bool:
        header = batch.header
        if header.record_count == 0:
            return True  # what an earlier run left of a marker, for its producer's sake
        control, _ = read_control(batch)
        if control is ControlType.ABORT:
            transaction = self._aborted.pop(header.producer_id, None)
            if transaction is not None and header.producer_id in self._seen_aborted:
                self._seen_aborted.discard(header.producer_id)
                self._kept.append(transaction)
                return False
            return True
        if control is ControlType.COMMIT:
            if header.producer_id in self._committed:
                self._committed.discard(header.producer_id)
                return False
            return True
        return False

    def _come_up_to(self, offset: int) -> None:
        while self._coming and self._coming[0].first_offset <= offset:
            transaction = self._coming.popleft()
            self._aborted.setdefault(transaction.producer_id, transaction)

"""Decides which batches compaction may remove because of transactions: aborted records and markers without records.

These are Kafka's rules. The records of an aborted transaction are removed at once. A marker is removed when no record
of its transaction is left, but only after delete.retention.ms, so that a reader in the middle of the transaction still
reads it. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from stratalog.records.batch import Batch
from stratalog.records.format import ControlType
from stratalog.records.reader import read_control
from stratalog.storage.transaction_index import AbortedTransaction


class CleanedTransactions:
    """The transactions of a log that compaction reads from its first segment to its last. may_go() is called for each
    transactional batch and marker, in order."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        """Start before the first batch. `aborted` are all aborted transactions with records in the batches to come."""
        self._coming = deque(sorted(aborted, key=lambda transaction: transaction.first_offset))
        self._aborted: dict[int, AbortedTransaction] = {}  # open at the current batch, by producer id
        self._seen_aborted: set[int] = set()  # the producers of those that had records
        self._committed: set[int] = set()  # producers with records of a transaction that was not aborted
        self._kept: list[AbortedTransaction] = []

    def take_kept(self) -> list[AbortedTransaction]:
        """Return the aborted transactions whose markers were kept since the last call. The transaction index of the new
        segment needs them."""
        kept, self._kept = self._kept, []
        return kept

    def may_go(self, batch: Batch) -> bool:
        """Return True if a batch belongs to an aborted transaction, or is the marker of a transaction that has no
        records left."""
        header = batch.header
        if header.is_control:
            self._advance_to(header.last_offset)
            return self._may_marker_go(batch)
        if not header.is_transactional:
            return False
        self._advance_to(header.last_offset)
        if header.producer_id in self._aborted:
            self._seen_aborted.add(header.producer_id)
            return True
        self._committed.add(header.producer_id)
        return False

    def _may_marker_go(self, batch: Batch) -> bool:
        header = batch.header
        if header.record_count == 0:
            return True  # an earlier run emptied the marker, and kept it as the last batch of its producer
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

    def _advance_to(self, offset: int) -> None:
        while self._coming and self._coming[0].first_offset <= offset:
            transaction = self._coming.popleft()
            self._aborted.setdefault(transaction.producer_id, transaction)

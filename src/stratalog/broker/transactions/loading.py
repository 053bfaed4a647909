"""Reads `__transaction_state` at the start, and reports which transactional ids can be served.

An id is served as soon as its partition of the topic has been read. Until then, requests get
COORDINATOR_LOAD_IN_PROGRESS. The ids of a partition that can't be read get COORDINATOR_NOT_AVAILABLE. The first
InitProducerId creates the topic.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

from stratalog.broker.state_topic import partition_of
from stratalog.broker.transactions.records import parse_key, parse_transaction
from stratalog.broker.transactions.state import Transaction, TransactionState
from stratalog.broker.transactions.transactions_topic import NAME, TransactionsLog
from stratalog.errors import StratalogError
from stratalog.protocol.error_codes import ErrorCode

log = logging.getLogger(__name__)

LONGEST_ID = 2**15 - 1  # bytes; the limit of the key of a record


class Loading:
    """The progress of the loading. Runs on the event loop's thread."""

    def __init__(self, state_log: TransactionsLog) -> None:
        self.is_closed = False
        self._log = state_log
        self._loaded: set[int] = set()
        self._partitions_at_start: int | None = None
        self._ended = False
        self._unreadable_records = 0
        self._creating: asyncio.Task[None] | None = None

    def partition_of(self, transactional_id: str) -> int:
        return partition_of(transactional_id, self._log.partition_count or 1)

    @property
    def is_in_progress(self) -> bool:
        return not self._ended

    @property
    def is_complete(self) -> bool:
        """True if every partition and every record has been read."""
        is_loaded = self._ended and self._partitions_at_start is not None
        return is_loaded and len(self._loaded) == self._partitions_at_start and not self._unreadable_records

    def status(self, transactional_id: str) -> ErrorCode:
        """Return NONE if requests for this id can be served, else the error to respond with."""
        if self.is_closed:
            return ErrorCode.coordinator_not_available
        if not _fits_a_record(transactional_id):
            return ErrorCode.invalid_request
        count = self._partitions_at_start
        if not self._ended and (count is None or self.partition_of(transactional_id) not in self._loaded):
            return ErrorCode.coordinator_load_in_progress
        if self._log.partition_count is None:
            return ErrorCode.none  # no id has been used yet
        if count is not None and self.partition_of(transactional_id) not in self._loaded:
            return ErrorCode.coordinator_not_available
        return ErrorCode.none

    async def prepare(self, transactional_id: str) -> ErrorCode:
        """Create the topic if it is missing, and return the `status` after that."""
        error = self.status(transactional_id)
        if error is not ErrorCode.none or self._log.partition_count is not None:
            return error
        if self._creating is None or self._creating.done():
            self._creating = asyncio.ensure_future(self._log.create())
            self._creating.add_done_callback(_log_failure)
        try:
            await asyncio.shield(self._creating)  # other requests wait for it too, so a cancelled one must not stop it
        except StratalogError:
            if self._log.partition_count is None:
                return ErrorCode.coordinator_not_available
        return self.status(transactional_id)

    async def load(self) -> AsyncIterator[list[Transaction]]:
        """Yield the transactions of each partition. Its ids are served once the caller asks for the next partition."""
        try:
            self._partitions_at_start = self._log.partition_count
            for partition in range(self._partitions_at_start or 0):
                try:
                    records = await self._log.read(partition)
                except StratalogError as error:
                    log.error("%s-%d can't be read; its transactional ids are not served: %s", NAME, partition, error)
                    continue
                yield list(self._parsed(partition, records))
                self._loaded.add(partition)
        finally:
            self._ended = True

    def _parsed(self, partition: int, records: list[tuple[bytes, bytes | None]]) -> list[Transaction]:
        transactions = []
        for key, value in records:
            try:
                transaction = parse_transaction(parse_key(key), value or b"")
            except StratalogError as error:
                log.error("%s-%d: a record is ignored: %s", NAME, partition, error)
                self._unreadable_records += 1
                continue
            if transaction.state is TransactionState.PREPARE_EPOCH_FENCE:  # no known broker writes this state
                transaction = transaction._replace(state=TransactionState.PREPARE_ABORT)
            if transaction.state is not TransactionState.DEAD:
                transactions.append(transaction)
        return transactions


def _log_failure(creating: asyncio.Task[None]) -> None:
    """Log a failure once, also if every request that waited for it was cancelled."""
    if not creating.cancelled() and creating.exception() is not None:
        log.error("%s could not be created: %s", NAME, creating.exception())


def _fits_a_record(text: str) -> bool:
    try:
        return len(text.encode()) <= LONGEST_ID
    except UnicodeEncodeError:
        return False

"""Which transactional ids can be served: those whose partition of `__transaction_state` has been read.

The topic is made on first use. While it is being read, at the start, requests get COORDINATOR_LOAD_IN_PROGRESS; for a
partition that can't be read, COORDINATOR_NOT_AVAILABLE from then on.
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

LONGEST_ID = 2**15 - 1  # bytes; what the key of a record holds


class Loading:
    def __init__(self, state_log: TransactionsLog) -> None:
        self.is_closed = False
        self._log = state_log
        self._loaded: set[int] = set()
        self._found: int | None = None  # partitions there were at the start
        self._ended = False
        self._passed_over = 0  # records that could not be read
        self._creating: asyncio.Task[None] | None = None

    def partition_of(self, transactional_id: str) -> int:
        return partition_of(transactional_id, self._log.partition_count or 1)

    @property
    def is_in_progress(self) -> bool:
        return not self._ended

    @property
    def is_complete(self) -> bool:
        """Whether all that there is was read."""
        is_loaded = self._ended and self._found is not None and len(self._loaded) == self._found
        return is_loaded and not self._passed_over

    def status(self, transactional_id: str) -> ErrorCode:
        if self.is_closed:
            return ErrorCode.coordinator_not_available
        if not _fits_a_record(transactional_id):
            return ErrorCode.invalid_request
        if not self._ended and (self._found is None or self.partition_of(transactional_id) not in self._loaded):
            return ErrorCode.coordinator_load_in_progress
        if self._log.partition_count is None:
            return ErrorCode.none  # nothing is known of any id
        if self._found is not None and self.partition_of(transactional_id) not in self._loaded:
            return ErrorCode.coordinator_not_available
        return ErrorCode.none

    async def prepare(self, transactional_id: str) -> ErrorCode:
        """As `status`, and makes the topic where it is missing."""
        error = self.status(transactional_id)
        if error is not ErrorCode.none or self._log.partition_count is not None:
            return error
        if self._creating is None or self._creating.done():
            self._creating = asyncio.ensure_future(self._log.create())
            self._creating.add_done_callback(_note_failure)
        try:
            await asyncio.shield(self._creating)  # others wait for it too: who hangs up does not stop it
        except StratalogError:
            return ErrorCode.coordinator_not_available
        return self.status(transactional_id)

    async def load(self) -> AsyncIterator[list[Transaction]]:
        """The transactions of each partition. They are served once all who asked have got them."""
        try:
            self._found = self._log.partition_count
            for partition in range(self._found or 0):
                try:
                    records = await self._log.read(partition)
                except StratalogError as error:
                    log.error("%s-%d can't be read, its ids are not served: %s", NAME, partition, error)
                    continue
                yield list(self._parsed(partition, records))
                self._loaded.add(partition)
        finally:
            self._ended = True

    def _parsed(self, partition: int, records: list[tuple[bytes, bytes | None]]) -> list[Transaction]:
        found = []
        for key, value in records:
            try:
                transaction = parse_transaction(parse_key(key), value or b"")
            except StratalogError as error:
                log.error("%s-%d: a record is passed over: %s", NAME, partition, error)
                self._passed_over += 1
                continue
            if transaction.state is TransactionState.PREPARE_EPOCH_FENCE:  # no broker is known to write it
                transaction = transaction._replace(state=TransactionState.PREPARE_ABORT)
            if transaction.state is not TransactionState.DEAD:
                found.append(transaction)
        return found


def _note_failure(creating: asyncio.Task[None]) -> None:
    if not creating.cancelled() and creating.exception() is not None:
        log.error("%s could not be created: %s", NAME, creating.exception())


def _fits_a_record(text: str) -> bool:
    try:
        return len(text.encode()) <= LONGEST_ID
    except UnicodeEncodeError:
        return False

"""Whether a transactional batch may be written to a partition: its producer must have a transaction open there.

A partition whose log has the producer's transaction open already is let through at once, unless that was prepared. Else
the coordinator is asked: for newer clients (transaction.version 2) the partition becomes part of the transaction by
that; for older ones, which have to add it themselves, it must be part of it. So no batch that comes late opens a
transaction that nobody will end.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from stratalog.broker.partition import Partition
from stratalog.broker.transactions.coordinator import TransactionCoordinator
from stratalog.broker.transactions.state import ProducerIdAndEpoch
from stratalog.protocol.error_codes import ErrorCode
from stratalog.storage.names import TopicPartition

_TRANSACTION_VERSION = 2


class TransactionOperation(Enum):
    """What a client of that request's version expects."""

    VERIFY = "verify"
    VERIFY_ABORTABLE = "verify; TRANSACTION_ABORTABLE is known"
    ADD = "add"

    @classmethod
    def of_produce(cls, version: int) -> TransactionOperation:
        return cls.ADD if version > 11 else cls.VERIFY_ABORTABLE if version > 10 else cls.VERIFY

    @classmethod
    def of_offset_commit(cls, version: int) -> TransactionOperation:
        return cls.ADD if version > 4 else cls.VERIFY_ABORTABLE if version > 3 else cls.VERIFY


class Admission:
    def __init__(self, coordinator: TransactionCoordinator, verifies: Callable[[], bool]) -> None:
        self._coordinator = coordinator
        self._verifies = verifies  # transaction.partition.verification.enable, as it is now

    def admit(
        self,
        transactional_id: str | None,
        partition: Partition,
        producer: ProducerIdAndEpoch,
        operation: TransactionOperation,
    ) -> ErrorCode:
        known = partition.log.producers.get(producer.producer_id)
        if known is not None and known.epoch > producer.epoch:
            return ErrorCode.invalid_producer_epoch
        if known is not None and known.transaction_first_offset is not None and known.epoch == producer.epoch:
            return ErrorCode.invalid_txn_state if self._awaits_decision(transactional_id) else ErrorCode.none
        where = TopicPartition(partition.topic, partition.index)
        if operation is TransactionOperation.ADD:
            error = self._coordinator.add(transactional_id, producer, (where,), _TRANSACTION_VERSION)
        elif self._verifies():
            error = self._coordinator.verify(transactional_id, producer, where)
        else:
            return ErrorCode.none
        if error is ErrorCode.producer_fenced:
            return ErrorCode.invalid_producer_epoch
        if error is ErrorCode.transaction_abortable and operation is TransactionOperation.VERIFY:
            return ErrorCode.invalid_txn_state
        return error

    def _awaits_decision(self, transactional_id: str | None) -> bool:
        """What was prepared is whole: whoever decides must not commit what came later."""
        transaction = self._coordinator.get(transactional_id) if transactional_id else None
        return transaction is not None and transaction.awaits_decision

"""Decides whether a transactional batch may be written to a partition: its producer must have a transaction open there.

If the partition's log already has an open transaction of this producer, the batch is admitted at once, unless the
transaction is prepared. Otherwise the coordinator decides. For newer clients (transaction.version 2), the batch adds
the partition to the transaction. Older clients add partitions with requests of their own, so the partition must already
be part of the transaction. For this reason, a delayed batch never opens a transaction that no request will end.
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
    """The check that a client expects, by the version of its request."""

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
    """`is_verifying` returns the current value of transaction.partition.verification.enable."""

    def __init__(self, coordinator: TransactionCoordinator, is_verifying: Callable[[], bool]) -> None:
        self._coordinator = coordinator
        self._is_verifying = is_verifying

    def admit(
        self,
        transactional_id: str | None,
        partition: Partition,
        producer: ProducerIdAndEpoch,
        operation: TransactionOperation,
    ) -> ErrorCode:
        """Return NONE if the producer may append to the partition, else Kafka's error."""
        known = partition.log.producers.get(producer.producer_id)
        if known is not None and known.epoch > producer.epoch:
            return ErrorCode.invalid_producer_epoch
        if known is not None and known.transaction_first_offset is not None and known.epoch == producer.epoch:
            return ErrorCode.invalid_txn_state if self._is_prepared(transactional_id) else ErrorCode.none
        topic_partition = TopicPartition(partition.topic, partition.index)
        if operation is TransactionOperation.ADD:
            error = self._coordinator.add(transactional_id, producer, (topic_partition,), _TRANSACTION_VERSION)
        elif self._is_verifying():
            error = self._coordinator.verify(transactional_id, producer, topic_partition)
        else:
            return ErrorCode.none
        if error is ErrorCode.producer_fenced:
            return ErrorCode.invalid_producer_epoch
        if error is ErrorCode.transaction_abortable and operation is TransactionOperation.VERIFY:
            return ErrorCode.invalid_txn_state
        return error

    def _is_prepared(self, transactional_id: str | None) -> bool:
        """Return whether the id's transaction is prepared. It is complete: a commit must not include later batches."""
        transaction = self._coordinator.get(transactional_id) if transactional_id else None
        return transaction is not None and transaction.awaits_end

"""`__transaction_state`: the topic that stores transactions, so that a restart finds them again.

All records of a transactional id go to one partition, by Kafka's hash of the id. The topic is created on first use and
compacted by key, with Kafka's settings for it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Sequence
from typing import Protocol

from stratalog.broker.background import RunInBackground
from stratalog.broker.due_flushes import DueFlushes
from stratalog.broker.state_topic import StateTopic, StateTopics
from stratalog.broker.transactions.config import TransactionConfig
from stratalog.broker.transactions.records import TransactionRecord
from stratalog.errors import StratalogError

NAME = "__transaction_state"
_LARGEST_BATCH = 16 * 1024**2  # the decision on thousands of transactions is one batch (two_phase.py)
REQUIRED_SETTINGS = {
    "cleanup.policy": "compact",
    "compression.type": "uncompressed",
    "max.message.bytes": str(_LARGEST_BATCH),
}

log = logging.getLogger(__name__)


class TransactionsLog(Protocol):
    """The store of the coordinator's records: a topic in a broker, lists in tests."""

    @property
    def partition_count(self) -> int | None:
        """The number of partitions; None while the topic does not exist."""

    async def create(self) -> None:
        """Create the topic. Raises StratalogError."""

    async def read(self, partition: int) -> list[TransactionRecord]:
        """Return the state in a partition: the last record of each key, without tombstones. Raises StratalogError."""

    def append(self, partition: int, records: Sequence[TransactionRecord], timestamp_ms: int) -> None:
        """Append records as one batch. They survive kill -9. Raises StratalogError if nothing was appended."""

    def pending_flush(self) -> Awaitable[StratalogError | None] | None:
        """Return what to wait for until all appended records are as durable as flush.messages requires; None if they
        are. The awaited result is the error of a flush that failed."""

    def coordinator_epoch(self, partition: int) -> int:
        """Return the leader epoch of the partition, which its markers carry."""


class TransactionsTopic(StateTopic):
    def __init__(
        self,
        topics: StateTopics,
        config: TransactionConfig,
        run_in_background: RunInBackground,
        due_flushes: DueFlushes,
    ) -> None:
        super().__init__(NAME, REQUIRED_SETTINGS, topics, run_in_background, due_flushes)
        self._config = config

    async def create(self) -> None:
        config = self._config
        await self._create(config.transaction_state_log_num_partitions, config.transaction_state_log_segment_bytes)

    async def read(self, partition: int) -> list[TransactionRecord]:
        return await self._run_in_background(lambda: self._read(partition))

    def _read(self, index: int) -> list[TransactionRecord]:
        self._restore_settings()
        latest: dict[bytes, bytes | None] = {}
        for record in self._partition(index).log.records():
            if record.key is None:
                log.error("%s-%d: the record at offset %d has no key and is skipped", NAME, index, record.offset)
                continue
            latest[bytes(record.key)] = None if record.value is None else bytes(record.value)
        return [(key, value) for key, value in latest.items() if value is not None]

    def coordinator_epoch(self, partition: int) -> int:
        return self._partition(partition).leader_epoch

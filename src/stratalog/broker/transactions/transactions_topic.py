"""`__transaction_state`: the log that transactions live in, so that a restart finds them as they were.

The records of a transactional id all go to one partition, by Kafka's hash of the id. The topic is made on first use,
compacted by key, with Kafka's settings for it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from stratalog.broker.background import RunInBackground
from stratalog.broker.state_topic import StateTopic, StateTopics
from stratalog.broker.transactions.config import TransactionConfig
from stratalog.broker.transactions.records import TransactionRecord

NAME = "__transaction_state"
_LARGEST_BATCH = 16 * 1024**2  # the decision on thousands of transactions is one batch (two_phase.py)
KEPT_BY_KEY = {
    "cleanup.policy": "compact",
    "compression.type": "uncompressed",
    "max.message.bytes": str(_LARGEST_BATCH),
}

log = logging.getLogger(__name__)


class TransactionsLog(Protocol):
    """Where the coordinator's records go: a topic in a broker, lists in tests."""

    @property
    def partition_count(self) -> int | None:
        """None while the topic does not exist."""

    async def create(self) -> None:
        """Make the topic. Raises StratalogError."""

    async def read(self, partition: int) -> list[TransactionRecord]:
        """What of a partition still counts: the last record of each key, without tombstones. Raises StratalogError."""

    def append(self, partition: int, records: Sequence[TransactionRecord], timestamp_ms: int) -> None:
        """As one batch; returns when it survives kill -9. Raises StratalogError: nothing was written."""

    def coordinator_epoch(self, partition: int) -> int:
        """The leader epoch of the partition, which markers carry."""


class TransactionsTopic(StateTopic):
    def __init__(self, topics: StateTopics, config: TransactionConfig, run_in_background: RunInBackground) -> None:
        super().__init__(NAME, KEPT_BY_KEY, topics, run_in_background)
        self._config = config

    async def create(self) -> None:
        config = self._config
        await self._create(config.transaction_state_log_num_partitions, config.transaction_state_log_segment_bytes)

    async def read(self, partition: int) -> list[TransactionRecord]:
        return await self._run_in_background(lambda: self._read(partition))

    def _read(self, index: int) -> list[TransactionRecord]:
        self._keep_by_key()
        latest: dict[bytes, bytes | None] = {}
        for record in self._partition(index).log.records():
            if record.key is None:
                log.error("%s-%d: the record at offset %d has no key and is passed over", NAME, index, record.offset)
                continue
            latest[bytes(record.key)] = None if record.value is None else bytes(record.value)
        return [(key, value) for key, value in latest.items() if value is not None]

    def coordinator_epoch(self, partition: int) -> int:
        return self._partition(partition).leader_epoch

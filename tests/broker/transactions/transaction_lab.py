"""Groups and transactions over the topics of a test, with a clock and timers that the test controls."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from stratalog.broker.background import RunInBackground
from stratalog.broker.due_flushes import DueFlushes
from stratalog.broker.groups import consumer_group
from stratalog.broker.groups.coordinator import GroupCoordinator
from stratalog.broker.groups.offsets_topic import OffsetsTopic
from stratalog.broker.metadata.store import MetadataStore
from stratalog.broker.metadata.topics import TopicRegistry
from stratalog.broker.producer_ids import ProducerIdAllocator
from stratalog.broker.settings import BrokerConfig
from stratalog.broker.transactions.admission import Admission
from stratalog.broker.transactions.coordinator import TransactionCoordinator
from stratalog.broker.transactions.markers import MarkerWriter
from stratalog.broker.transactions.transactions_topic import TransactionsTopic
from stratalog.clock import ManualClock
from tests.broker.groups.manual_coordinator import ManualTimers

T = TypeVar("T")


class TransactionLab:
    def __init__(
        self,
        topics: TopicRegistry,
        store: MetadataStore,
        clock: ManualClock,
        config: BrokerConfig,
        run_in_background: RunInBackground,
    ) -> None:
        self._topics = topics
        self.flushes = DueFlushes(run_in_background)
        self.timers = ManualTimers(clock)
        self.groups = GroupCoordinator(
            config.groups,
            clock,
            OffsetsTopic(topics, config.groups, run_in_background, self.flushes),
            self.timers.call_later,
            consumer_group.replay,
        )
        self.ids = ProducerIdAllocator(topics, store, run_in_background)
        self.state_topic = TransactionsTopic(topics, config.transactions, run_in_background, self.flushes)
        self.coordinator = TransactionCoordinator(
            config.transactions,
            clock,
            self.state_topic,
            MarkerWriter(topics, self.groups, clock, run_in_background),
            self.ids,
            self.timers.call_later,
            self.groups.budget,
        )
        self.admission = Admission(
            self.coordinator, lambda: config.transactions.transaction_partition_verification_enable
        )

    def load(self) -> None:
        drive(self.groups.load())
        drive(self.coordinator.load(self._topics.all_partitions()))


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end without an event loop. It may await nothing but `asyncio.sleep(0)`."""
    while True:
        try:
            coroutine.send(None)
        except StopIteration as end:
            result: T = end.value
            return result


async def tasks_done(coordinator: TransactionCoordinator) -> None:
    """Wait until the tasks of the coordinator have ended, those that they start too."""
    while coordinator._tasks:
        await asyncio.gather(*coordinator._tasks)

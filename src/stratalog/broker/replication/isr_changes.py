"""Proposes changes of ISRs to ZooKeeper, for the partitions that this broker leads.

A follower that has caught up is added at once; one that lags is removed by a check that runs periodically. A change
whose outcome is not known stays proposed, and is proposed again: it counts at most once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable

from stratalog.broker.metadata.cluster_metadata import ClusterMetadata
from stratalog.broker.replication.partition import ReplicaContext, ReplicatedPartition
from stratalog.broker.replication.rules import Leadership
from stratalog.errors import StratalogError

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 0.5


class IsrChanges:
    def __init__(
        self, metadata: ClusterMetadata, context: ReplicaContext, led: Callable[[], Iterable[ReplicatedPartition]]
    ) -> None:
        """`led` returns the partitions that this broker leads."""
        self._metadata = metadata
        self._context = context
        self._led = led
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.Task[None] | None = None
        self.shrinks = 0
        self.expands = 0
        context.on_follower_caught_up = self._caught_up

    def start(self) -> None:
        self._timer = asyncio.create_task(self._check_lags(), name="lagging replicas")

    def stop(self) -> None:
        for task in [*self._tasks, *([self._timer] if self._timer is not None else [])]:
            task.cancel()

    def _caught_up(self, partition: ReplicatedPartition, replica: int) -> None:
        leadership = partition.leadership
        if leadership is None or leadership.proposed_isr is not None:
            return
        if leadership.can_join(replica, self._metadata.view.joinable_epoch(replica)):
            self._propose(partition, leadership, add=[replica])

    async def _check_lags(self) -> None:
        while True:
            await asyncio.sleep(max(self._context.lag_max_ms() / 2000, 0.05))
            self.remove_lagging()

    def remove_lagging(self) -> None:
        """Propose the ISRs without the members that have not caught up for too long."""
        now, lag = self._context.now_ms(), self._context.lag_max_ms()
        for partition in list(self._led()):
            leadership = partition.leadership
            if leadership is None or leadership.proposed_isr is not None or not self._context.can_lead():
                continue
            lagging = leadership.lagging(partition.log.log_end_offset, now, lag)
            if lagging:
                isr = leadership.state.isr
                logger.info("%r: replicas %s lag by more than %d ms and leave the ISR %s", partition, lagging, lag, isr)
                self._propose(partition, leadership, remove=lagging)

    def _propose(
        self,
        partition: ReplicatedPartition,
        leadership: Leadership,
        *,
        add: Collection[int] = (),
        remove: Collection[int] = (),
    ) -> None:
        leadership.proposal(add=add, remove=remove)
        task = asyncio.create_task(self._write(partition, leadership), name=f"ISR of {partition!r}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _write(self, partition: ReplicatedPartition, leadership: Leadership) -> None:
        """Write the proposed ISR, until ZooKeeper has an answer or this broker does not lead any more."""
        while partition.leadership is leadership and leadership.proposed_isr is not None:
            base = leadership.state
            proposed = base.with_isr(leadership.proposed_isr)
            try:
                current = await self._metadata.change_state(partition.id, proposed, leadership.joining)
            except StratalogError as error:  # also of a state that can't be read now, or of a topic that is deleted
                logger.debug("%r: the ISR can't be changed now: %s", partition, error)
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            if partition.leadership is not leadership:
                return
            if current.isr == proposed.isr and current.partition_epoch == base.partition_epoch + 1:
                self.expands += len(proposed.isr) > len(base.isr)
                self.shrinks += len(proposed.isr) < len(base.isr)
            if current.leader_epoch == base.leader_epoch and current.leader == base.leader:
                leadership.refused(base.partition_epoch, current)
                partition.learn(leadership.state)
            else:
                return  # the view says soon that another broker leads

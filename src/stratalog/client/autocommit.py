"""enable.auto.commit: commits the positions at an interval, and before partitions are given up. In the polling thread.

A poll commits what the polls before it returned: only records that the application has finished with.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from stratalog.client.metadata import TopicPartition
from stratalog.client.offsets import OffsetAndMetadata
from stratalog.errors import ClientError

if TYPE_CHECKING:
    from stratalog.client.consumer_core import ConsumerCore

logger = logging.getLogger(__name__)


class AutoCommit:
    """Commits a consumer's positions if enable.auto.commit is on and the consumer has a group; else does nothing."""

    def __init__(self, core: ConsumerCore) -> None:
        settings = core.settings
        self._core = core
        self._is_on = settings.enable_auto_commit and settings.group_id is not None
        self._interval = settings.auto_commit_interval_ms / 1000
        self._due = 0.0
        self._committed: dict[TopicPartition, OffsetAndMetadata] = {}
        self._is_ticking = False

    def start(self) -> None:
        """Start the interval. From now on the I/O thread interrupts an iteration when a commit is due."""
        if self._is_on and not self._is_ticking:
            self._is_ticking = True
            self._due = self._core.clock.monotonic() + self._interval
            self._core.io.call_soon(self._tick)

    def stop(self) -> None:
        self._is_ticking = False

    def _tick(self) -> None:
        """Interrupt the iteration, in the I/O thread, so that the polling thread calls `if_due`."""
        if self._is_ticking:
            self._core.buffer.interrupt.is_set = True
            self._core.io.loop.call_later(max(0.1, self._interval), self._tick)

    def if_due(self) -> None:
        """Start a commit if one is due, without waiting for it."""
        if not self._is_on or self._core.clock.monotonic() < self._due:
            return
        self._due = self._core.clock.monotonic() + self._interval
        offsets = self._changed(self._core.subscription.partitions)
        if offsets:
            self._committed |= offsets
            self._core.commit_async(offsets, self._on_committed)

    def now(self, partitions: Iterable[TopicPartition], timeout: float | None = None) -> None:
        """Commit the positions of partitions that are about to be given up, and wait for the commit.

        An error is logged: the next owner of the partitions then reads the uncommitted records again.
        """
        if not self._is_on:
            return
        partitions = list(partitions)
        offsets = self._changed(partitions)
        self.forget(partitions)
        if not offsets:
            return
        settings = self._core.settings
        seconds = min(settings.default_api_timeout_ms, settings.max_poll_interval_ms) / 1000
        try:
            self._core.io.run(self._core.commits.commit(offsets, seconds if timeout is None else min(timeout, seconds)))
        except ClientError as error:
            logger.warning("offsets were not committed: %s", error)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._committed.pop(partition, None)

    def _changed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        positions = self._core.positions_of(partitions)
        return {
            partition: position
            for partition, position in positions.items()
            if self._committed.get(partition) != position
        }

    def _on_committed(self, offsets: dict[TopicPartition, OffsetAndMetadata], error: ClientError | None) -> None:
        if error is not None:
            self.forget(offsets)
            logger.warning("offsets were not committed: %s", error)

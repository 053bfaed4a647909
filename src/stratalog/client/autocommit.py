"""enable.auto.commit: what was taken is committed every so often, and before it is given away. In the polling thread.

Only what the user has come back from: a poll commits what the polls before it returned.
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
    def __init__(self, core: ConsumerCore) -> None:
        settings = core.settings
        self._core = core
        self._is_on = settings.enable_auto_commit and settings.group_id is not None
        self._interval = settings.auto_commit_interval_ms / 1000
        self._due = 0.0
        self._done: dict[TopicPartition, OffsetAndMetadata] = {}
        self._is_ticking = False

    def start(self) -> None:
        """Partitions may come from here on. The I/O thread interrupts an iteration when it is time."""
        if self._is_on and not self._is_ticking:
            self._is_ticking = True
            self._due = self._core.clock.monotonic() + self._interval
            self._core.io.call_soon(self._tick)

    def stop(self) -> None:
        self._is_ticking = False

    def _tick(self) -> None:
        """In the I/O thread."""
        if self._is_ticking:
            self._core.buffer.interrupt.is_set = True
            self._core.io.loop.call_later(max(0.1, self._interval), self._tick)

    def if_due(self) -> None:
        """Starts a commit, where it is time for one, and does not wait for it."""
        if not self._is_on or self._core.clock.monotonic() < self._due:
            return
        self._due = self._core.clock.monotonic() + self._interval
        offsets = self._changed(self._core.subscription.partitions)
        if offsets:
            self._done |= offsets
            self._core.commit_async(offsets, self._look_at)

    def now(self, places: Iterable[TopicPartition], timeout: float | None = None) -> None:
        """Commits the positions of these, and waits for it: they are about to go. What fails is logged: records that
        can't be committed are read again by whoever gets them."""
        if not self._is_on:
            return
        places = list(places)
        offsets = self._changed(places)
        self.forget(places)
        if not offsets:
            return
        settings = self._core.settings
        seconds = min(settings.default_api_timeout_ms, settings.max_poll_interval_ms) / 1000
        try:
            self._core.io.run(self._core.commits.commit(offsets, seconds if timeout is None else min(timeout, seconds)))
        except ClientError as error:
            logger.warning("offsets were not committed: %s", error)

    def forget(self, places: Iterable[TopicPartition]) -> None:
        for place in places:
            self._done.pop(place, None)

    def _changed(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        positions = self._core.positions_of(places)
        return {place: one for place, one in positions.items() if self._done.get(place) != one}

    def _look_at(self, offsets: dict[TopicPartition, OffsetAndMetadata], error: ClientError | None) -> None:
        if error is not None:
            self.forget(offsets)
            logger.warning("offsets were not committed: %s", error)

"""Positions: gives each assigned partition its first position, from the committed offset or by auto.offset.reset.

This runs in the background in the I/O thread and retries temporary errors. `failures` has the partitions that can't get
a position.
"""

from __future__ import annotations

import asyncio
import logging

from stratalog.client.backoff import Backoff
from stratalog.client.commits import Commits
from stratalog.client.consumer_settings import ConsumerSettings
from stratalog.client.errors import NoOffsetError
from stratalog.client.fetch_buffer import FetchBuffer
from stratalog.client.fetcher import Fetcher
from stratalog.client.metadata import TopicPartition
from stratalog.client.offset_lookup import NONE_FOUND, OffsetLookup
from stratalog.client.offset_reset import LATEST
from stratalog.client.subscription import AssignedPartition, Subscription
from stratalog.clock import Clock
from stratalog.errors import ClientError

logger = logging.getLogger(__name__)
_LOOK_UP_SECONDS = 5.0  # for one pass; the next pass includes partitions that were assigned during this one


class Positions:
    def __init__(
        self,
        settings: ConsumerSettings,
        subscription: Subscription,
        commits: Commits,
        lookup: OffsetLookup,
        fetcher: Fetcher,
        buffer: FetchBuffer,
        clock: Clock,
    ) -> None:
        self._subscription = subscription
        self._commits = commits
        self._lookup = lookup
        self._fetcher = fetcher
        self._buffer = buffer
        self._clock = clock
        self._backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        self._task: asyncio.Task[None] | None = None
        self._again = False
        self.failures: dict[TopicPartition, ClientError] = {}  # the polling thread reads it

    def update(self) -> None:
        """Look up positions for all partitions that lack one."""
        self._again = True
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        failures = 0
        try:
            while self._again:
                self._again = False
                try:
                    await self._look_up()
                    failures = 0
                except ClientError as error:
                    logger.debug("positions could not be looked up: %s", error)
                    if error.is_retriable:
                        failures += 1
                        self._again = True
                        await asyncio.sleep(self._backoff.seconds(failures))
                    else:
                        self._give_up(error)
                self._fetcher.go_on()
                self._buffer.announce()
        finally:
            self._task = None

    async def _look_up(self) -> None:
        states = list(self._subscription.partitions.values())
        uncommitted = [state for state in states if state.needs_committed]
        if uncommitted:
            committed = await self._commits.committed([state.partition for state in uncommitted], _LOOK_UP_SECONDS)
            for state in uncommitted:
                if not state.needs_committed:
                    continue  # a seek came first
                offset = committed[state.partition]
                if offset is not None:
                    state.seek(offset.offset, offset.leader_epoch)
                else:
                    state.needs_committed = False
                    state.reset = self._subscription.reset
        self._fetcher.go_on()
        await self._reset([state for state in states if state.reset is not None])

    async def _reset(self, states: list[AssignedPartition]) -> None:
        timestamps: dict[TopicPartition, int] = {}
        before = {state.partition: (state.reset, state.progress) for state in states}
        for state in states:
            assert state.reset is not None
            if state.reset.is_error:
                self._fail(state)
            else:
                timestamps[state.partition] = state.reset.timestamp_at(self._clock.now_ms())
        if not timestamps:
            return
        offsets = await self._lookup.offsets(timestamps, _LOOK_UP_SECONDS)
        without_record = [partition for partition, offset in offsets.items() if offset.offset == NONE_FOUND]
        if without_record:  # no record is as new as the timestamp: begin at the end
            offsets |= await self._lookup.offsets(dict.fromkeys(without_record, LATEST), _LOOK_UP_SECONDS)
        for state in states:
            # A seek or another reset during the lookup makes its result obsolete.
            if state.partition in offsets and before[state.partition] == (state.reset, state.progress):
                state.seek(offsets[state.partition].offset)
                self.failures.pop(state.partition, None)

    def _fail(self, state: AssignedPartition) -> None:
        state.reset = None
        self.failures[state.partition] = NoOffsetError(
            f"{state.partition}: the group has no committed offset for it, and auto.offset.reset=none; seek to an "
            f"offset, or set auto.offset.reset to earliest or latest"
        )

    def _give_up(self, error: ClientError) -> None:
        for state in self._subscription.partitions.values():
            if state.needs_committed or state.reset is not None:
                self.failures[state.partition] = error

"""Where to begin: gives each assigned partition a position, from what the group committed or as auto.offset.reset says.

In the I/O thread, in the background; what passes is retried. A partition that can't be given one is in `failures`.
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
from stratalog.client.subscription import PartitionState, Subscription
from stratalog.clock import Clock
from stratalog.errors import ClientError

logger = logging.getLogger(__name__)
_LOOK_UP_SECONDS = 5.0  # a turn; then whoever has come meanwhile is looked up as well


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
        self.failures: dict[TopicPartition, ClientError] = {}  # the polling thread looks at it

    def update(self) -> None:
        """There may be partitions without a position."""
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
            committed = await self._commits.committed([state.place for state in uncommitted], _LOOK_UP_SECONDS)
            for state in uncommitted:
                found = committed[state.place]
                if not state.needs_committed:
                    continue  # sought meanwhile
                if found is not None:
                    state.seek(found.offset, found.leader_epoch)
                else:
                    state.needs_committed = False
                    state.reset = self._subscription.reset
        self._fetcher.go_on()
        await self._reset([state for state in states if state.reset is not None])

    async def _reset(self, states: list[PartitionState]) -> None:
        wanted: dict[TopicPartition, int] = {}
        asked = {state.place: (state.reset, state.progress) for state in states}
        for state in states:
            assert state.reset is not None
            if state.reset.is_error:
                self._fail(state)
            else:
                wanted[state.place] = state.reset.asked_for(self._clock.now_ms())
        if not wanted:
            return
        found = await self._lookup.offsets(wanted, _LOOK_UP_SECONDS)
        none_found = [place for place, one in found.items() if one.offset == NONE_FOUND]
        if none_found:  # nothing is as new as that: from the end on
            found |= await self._lookup.offsets(dict.fromkeys(none_found, LATEST), _LOOK_UP_SECONDS)
        for state in states:
            # Sought, or to be reset otherwise, meanwhile: then this answer is to a question that is no more.
            if state.place in found and asked[state.place] == (state.reset, state.progress):
                state.seek(found[state.place].offset)
                self.failures.pop(state.place, None)

    def _fail(self, state: PartitionState) -> None:
        state.reset = None
        self.failures[state.place] = NoOffsetError(
            f"{state.place}: nothing is committed for it, and auto.offset.reset is none; seek to where it shall begin, "
            f"or set auto.offset.reset to earliest or latest"
        )

    def _give_up(self, error: ClientError) -> None:
        for state in self._subscription.partitions.values():
            if state.needs_committed or state.reset is not None:
                self.failures[state.place] = error

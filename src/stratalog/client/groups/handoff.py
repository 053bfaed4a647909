"""Between the I/O thread, where a membership lives, and the polling thread, where the user hears of it.

A rebalance takes nothing away from under a user's loop: partitions go when the polling thread is inside a call, after
their offsets were committed and the listener was called. The membership waits for that, and its heartbeats go on
meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from enum import Enum

from stratalog.client.fetch_buffer import FetchBuffer
from stratalog.client.metadata import TopicPartition
from stratalog.clock import Clock
from stratalog.errors import ClientError


class Change(Enum):
    REVOKED = "revoked"
    ASSIGNED = "assigned"
    LOST = "lost"


class Step:
    """One change of the assignment, for the polling thread to carry out and then to `finish` in the loop's thread."""

    def __init__(self, change: Change, partitions: list[TopicPartition]) -> None:
        self.change = change
        self.partitions = partitions
        self.is_done = asyncio.get_running_loop().create_future()

    def finish(self) -> None:
        if not self.is_done.done():
            self.is_done.set_result(None)


class Handoff:
    def __init__(self, buffer: FetchBuffer, clock: Clock, max_poll_seconds: float) -> None:
        self._buffer = buffer
        self._clock = clock
        self._max_poll_seconds = max_poll_seconds
        self._last_poll = clock.monotonic()
        self._taken = 0
        self.is_polling = False  # written by the polling thread, as `_last_poll`
        self.steps: deque[Step] = deque()
        self.errors: deque[ClientError] = deque()  # for the next poll to raise

    # The I/O thread

    async def carry_out(self, change: Change, places: Iterable[TopicPartition]) -> None:
        step = Step(change, sorted(places))
        self.steps.append(step)
        self._buffer.announce()
        try:
            await step.is_done
        finally:
            if step in self.steps:  # nobody waits for it any more
                self.steps.remove(step)

    def abandon(self) -> None:
        """What waits for the polling thread is void: the membership it was for is over."""
        while self.steps:
            self.steps.popleft().finish()

    def fail(self, error: ClientError) -> None:
        self.errors.append(error)
        self._buffer.announce()

    def is_late(self) -> bool:
        """Whether the user has not asked for records for max.poll.interval.ms. Who iterates, asks with each record."""
        now = self._clock.monotonic()
        taken = self._buffer.interrupt.taken
        if self.is_polling or taken != self._taken:
            self._taken = taken
            self._last_poll = now
        return now - self._last_poll > self._max_poll_seconds

    # The polling thread

    def begin_poll(self) -> None:
        self.is_polling = True

    def end_poll(self) -> None:
        self._last_poll = self._clock.monotonic()
        self.is_polling = False

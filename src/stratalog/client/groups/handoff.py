"""Passes changes of the assignment from the membership on the I/O thread to the application's polling thread.

A rebalance never takes partitions away while the application processes records. The polling thread gives them up inside
a call to the consumer, after it has committed their offsets and called the listener. The membership waits for that, and
its heartbeats continue meanwhile.
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


class HandoffStep:
    """A change of the assignment. The polling thread carries it out, then the event loop's thread calls `finish`."""

    def __init__(self, change: Change, partitions: list[TopicPartition]) -> None:
        self.change = change
        self.partitions = partitions
        self.done = asyncio.get_running_loop().create_future()

    def finish(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


class Handoff:
    def __init__(self, buffer: FetchBuffer, clock: Clock, max_poll_seconds: float) -> None:
        self._buffer = buffer
        self._clock = clock
        self._max_poll_seconds = max_poll_seconds
        self._last_poll = clock.monotonic()
        self._taken = 0
        self.is_polling = False  # like `_last_poll`, written by the polling thread
        self.steps: deque[HandoffStep] = deque()
        self.errors: deque[ClientError] = deque()  # the next poll raises them

    # The I/O thread

    async def carry_out(self, change: Change, partitions: Iterable[TopicPartition]) -> None:
        """Have the polling thread carry out a change, and wait until it has done so."""
        step = HandoffStep(change, sorted(partitions))
        self.steps.append(step)
        self._buffer.announce()
        try:
            await step.done
        finally:
            if step in self.steps:  # cancelled: no caller waits for the step
                self.steps.remove(step)

    def abandon(self) -> None:
        """Drop the steps that wait for the polling thread, because their membership has ended."""
        while self.steps:
            self.steps.popleft().finish()

    def fail(self, error: ClientError) -> None:
        self.errors.append(error)
        self._buffer.announce()

    def is_late(self) -> bool:
        """Return True if the application has not polled for max.poll.interval.ms. Each iterated record is a poll."""
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

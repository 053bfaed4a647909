"""Fetched records that the application has not taken yet, in the order in which they came. The I/O thread fills the
buffer, the polling thread empties it.

It needs no lock: each counter is written by one thread, and appending to and popping from a deque are atomic.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from stratalog.client._consumer_records import FetchedRecords, Interrupt
from stratalog.client._fetched_batches import Progress
from stratalog.client.metadata import TopicPartition
from stratalog.client.subscription import Subscription


class FetchFailure:
    """A failure of a partition, queued after the records that were fetched before it."""

    __slots__ = ("handle", "partition", "progress", "size")

    def __init__(self, partition: TopicPartition, progress: Progress, handle: Callable[[], None]) -> None:
        self.partition = partition
        self.progress = progress
        self.handle = handle  # called in the polling thread; raises what the application has to know
        self.size = 0


Fetched = FetchedRecords | FetchFailure


class FetchBuffer:
    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._queue: deque[Fetched] = deque()
        self._held: list[Fetched] = []  # of paused partitions; used by the polling thread only
        self._held_bytes = 0
        self._put_bytes = 0
        self._done_bytes = 0
        self._current: Fetched | None = None
        self.interrupt = Interrupt()
        self._has_changed = threading.Event()
        self.is_waited_for = False  # the I/O thread found no room and stopped fetching

    @property
    def bytes(self) -> int:
        """The bytes that count against the limit for prefetching. Records of paused partitions don't count: they could
        stay permanently."""
        return self._put_bytes - self._done_bytes - self._held_bytes

    # The I/O thread

    def put(self, fetched: Fetched) -> None:
        self._put_bytes += fetched.size
        self._queue.append(fetched)
        self._has_changed.set()

    def announce(self) -> None:
        """Wake the polling thread for something other than records."""
        self.interrupt.is_set = True
        self._has_changed.set()

    # The polling thread

    def wait(self, seconds: float | None) -> None:
        """Wait until something has been put or announced since the last call of `look`."""
        self._has_changed.wait(seconds)

    def look(self) -> None:
        """Call before checking the buffer: anything that comes from now on ends the next wait."""
        self._has_changed.clear()

    def current(self) -> Fetched | None:
        """Return the records or the failure to take next, or None. Skips those of older assignments and seeks."""
        while True:
            fetched = self._current
            if fetched is None:
                if not self._queue:
                    return None
                fetched = self._current = self._queue.popleft()
            state = self._subscription.partitions.get(fetched.partition)
            if state is None or state.progress is not fetched.progress:
                self.done(fetched)
            elif state.is_paused:
                self._held.append(fetched)
                self._held_bytes += fetched.size
                self._current = None
            else:
                return fetched

    def done(self, fetched: Fetched) -> None:
        """Remove what was taken completely or is no longer needed. A second call for it has no effect."""
        if self._current is fetched:
            self._done_bytes += fetched.size
            self._current = None

    def release(self) -> None:
        """Queue the held records again, before all later ones. Call after a pause, a resume or a seek; an iteration
        also checks again what comes next."""
        self.interrupt.is_set = True
        self._queue.extendleft(reversed(self._held))
        self._held = []
        self._held_bytes = 0
        if self._current is not None:
            # Check it again too: its partition may be paused by now, or its position may have changed.
            self._queue.appendleft(self._current)
            self._current = None

"""What was fetched and not taken yet, in the order in which it came: filled by the I/O thread, emptied by the polling
one.

Each counter has one thread that writes it, and appends and pops of a deque are atomic: there is no lock.
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
    """What happened to a partition behind the records before it: raised, or handled, when those are taken."""

    __slots__ = ("handle", "partition", "progress", "size")

    def __init__(self, partition: TopicPartition, progress: Progress, handle: Callable[[], None]) -> None:
        self.partition = partition
        self.progress = progress
        self.handle = handle  # in the polling thread; raises what the user has to know
        self.size = 0


Fetched = FetchedRecords | FetchFailure


class FetchBuffer:
    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._queue: deque[Fetched] = deque()
        self._held: list[Fetched] = []  # of paused partitions; the polling thread's
        self._held_bytes = 0
        self._put_bytes = 0
        self._done_bytes = 0
        self._current: Fetched | None = None
        self.interrupt = Interrupt()
        self._news = threading.Event()
        self.is_waited_for = False  # by the I/O thread: there was no room

    @property
    def bytes(self) -> int:
        """That stand in the way of fetching more. What is held for paused partitions does not: it could stay for
        ever."""
        return self._put_bytes - self._done_bytes - self._held_bytes

    # The I/O thread

    def put(self, fetched: Fetched) -> None:
        self._put_bytes += fetched.size
        self._queue.append(fetched)
        self._news.set()

    def announce(self) -> None:
        """Something else than records waits for the polling thread."""
        self.interrupt.is_set = True
        self._news.set()

    # The polling thread

    def wait(self, seconds: float | None) -> None:
        """Until something was put or announced since the last call of `look`."""
        self._news.wait(seconds)

    def look(self) -> None:
        """Before looking for what there is: what comes from here on ends the next wait."""
        self._news.clear()

    def current(self) -> Fetched | None:
        """What to take from next; None: there is nothing. Leaves out what belongs to older assignments and seeks."""
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
        """All of it was taken, or nobody wants it. Said twice, it counts once."""
        if self._current is fetched:
            self._done_bytes += fetched.size
            self._current = None

    def release(self) -> None:
        """After a pause or a seek: what was held is looked at again, before all that came later; an iteration too looks
        what comes next."""
        self.interrupt.is_set = True
        self._queue.extendleft(reversed(self._held))
        self._held = []
        self._held_bytes = 0
        if self._current is not None:
            # It is looked at again as well: its partition may be paused, or elsewhere, by now.
            self._queue.appendleft(self._current)
            self._current = None

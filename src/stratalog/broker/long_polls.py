"""A limit for the memory of waiting fetches (long polls), so that clients with many connections can't fill the broker's
memory with them.

A waiting fetch is registered with each of its partitions. Without a session, it also holds its request for each
partition and the names of topics; sessions are counted and limited by fetch_sessions. A fetch that would exceed the
limit is answered at once with what there is, as if its max_wait were over, so no client fails. Small fetches always
wait: the number of connections limits them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from stratalog.broker.fetch_sessions import CachedPartition
from stratalog.broker.partition import Partition
from stratalog.broker.state_budget import text_bytes

if TYPE_CHECKING:
    from stratalog.broker.fetch_sessions import TopicKey

SHARE = 4  # waiting fetches may take the fourth part of queued.max.request.bytes
ALWAYS_ADMITTED = 16 * 1024
_REGISTERED_BYTES = 100  # a list entry and a set entry
_REQUESTED_BYTES = 500  # a CachedPartition and a tuple of numbers
_NO_LIMIT = 1 << 62


def long_poll_bytes(waits_for: Collection[Partition], requested: Iterable[CachedPartition]) -> int:
    """Return the memory of a fetch that waits for these partitions. `requested` is empty for a fetch of a session."""
    size = len(waits_for) * _REGISTERED_BYTES
    topics: set[TopicKey] = set()
    for cached in requested:
        size += _REQUESTED_BYTES
        topics.add(cached.topic)
    return size + sum(text_bytes(topic) if isinstance(topic, str) else len(topic) for topic in topics)


class LongPolls:
    def __init__(self, held_bytes_limit: int) -> None:
        """Create a limit, given queued.max.request.bytes; -1: no limit."""
        self._limit = held_bytes_limit // SHARE if held_bytes_limit >= 0 else _NO_LIMIT
        self.held = 0
        self.refusals = 0

    def admit(self, size: int) -> bool:
        """Count a waiting fetch, until release(). Return False, without counting it, if it must not wait."""
        if size > ALWAYS_ADMITTED and self.held + size > self._limit:
            self.refusals += 1
            return False
        self.held += size
        return True

    def release(self, size: int) -> None:
        self.held -= size

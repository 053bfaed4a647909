"""Incremental fetch sessions (KIP-227): the broker remembers what a consumer fetches, so that its requests list changes
only.

A session has an id and an epoch, and each request of the session raises the epoch by one. The number of sessions is
limited (max.incremental.fetch.session.cache.slots), and so are the partitions and the bytes of topic names in all
sessions. These two limits are constants, 75 MB together, because nothing is refused beyond them: a client that gets no
session sends full requests, which is slower and just as correct. A new session may replace one that was not used for
two minutes.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stratalog.broker.state_budget import text_bytes
from stratalog.clock import Clock
from stratalog.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from stratalog.protocol._wire import FetchPartition

FINAL_EPOCH = -1
INITIAL_EPOCH = 0
_HIGHEST_EPOCH = 2**31 - 1
_HIGHEST_ID = 2**31 - 1
_EVICTABLE_AFTER_SECONDS = 120
MOST_CACHED_PARTITIONS = 100_000  # half a kilobyte each
MOST_NAME_BYTES = (
    250 * MOST_CACHED_PARTITIONS
)  # names of topics have up to 249 characters, names in requests any number

TopicKey = str | bytes  # a name, or from version 13 on the bytes of an id


class CachedPartition:
    """A partition of a session: the consumer's last request for it, and what the last response reported about it."""

    __slots__ = ("high_watermark", "log_start_offset", "partition", "requested", "topic")

    def __init__(self, topic: TopicKey, partition: int, request: FetchPartition) -> None:
        self.topic = topic
        self.partition = partition
        self.requested = request
        self.high_watermark = -1  # -1: no response has reported it yet
        self.log_start_offset = -1


class CachedSession:
    def __init__(self, session_id: int, by_topic_id: bool, now: float) -> None:
        self.id = session_id
        self.epoch = 1
        self.by_topic_id = by_topic_id
        self.last_used = now
        self.partitions: OrderedDict[tuple[TopicKey, int], CachedPartition] = OrderedDict()
        self.name_bytes = 0

    def update(
        self,
        topics: Sequence[tuple[TopicKey, list[FetchPartition]]],
        forgotten: Sequence[tuple[TopicKey, list[int]]] = (),
    ) -> None:
        for topic, indexes in forgotten:
            for index in indexes:
                if self.partitions.pop((topic, index), None) is not None:
                    self.name_bytes -= _name_bytes(topic)
        for topic, partitions in topics:
            for request in partitions:
                cached = self.partitions.get((topic, request[0]))
                if cached is None:
                    self.partitions[topic, request[0]] = CachedPartition(topic, request[0], request)
                    self.name_bytes += _name_bytes(topic)
                else:
                    cached.requested = request

    def move_to_end(self, cached: CachedPartition) -> None:
        """Put a partition behind all others, because a response had records of it: the next response has to begin with
        the others."""
        self.partitions.move_to_end((cached.topic, cached.partition))


class FetchSessions:
    def __init__(self, slots: int, clock: Clock) -> None:
        self._slots = slots
        self._clock = clock
        self._sessions: OrderedDict[int, CachedSession] = OrderedDict()  # least recently used first
        self._random = random.Random()
        self.evicted = 0
        self.cached_partitions = 0
        self.name_bytes = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def close(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self.cached_partitions -= len(session.partitions)
            self.name_bytes -= session.name_bytes

    def remember(
        self,
        session: CachedSession,
        topics: Sequence[tuple[TopicKey, list[FetchPartition]]],
        forgotten: Sequence[tuple[TopicKey, list[int]]] = (),
    ) -> bool:
        """Store what a request changes in its session. Return False if there is no room: the session is closed then."""
        partitions, name_bytes = len(session.partitions), session.name_bytes
        session.update(topics, forgotten)
        self.cached_partitions += len(session.partitions) - partitions
        self.name_bytes += session.name_bytes - name_bytes
        if self.cached_partitions <= MOST_CACHED_PARTITIONS and self.name_bytes <= MOST_NAME_BYTES:
            return True
        if topics:
            self.close(session.id)
        return not topics

    def open(
        self, topics: Sequence[tuple[TopicKey, list[FetchPartition]]], *, by_topic_id: bool
    ) -> CachedSession | None:
        """Return a new session for these partitions, or None if there is no room. remember() stores the partitions."""
        partition_count = sum(len(partitions) for _, partitions in topics)
        name_bytes = sum(_name_bytes(topic) * len(partitions) for topic, partitions in topics)
        if not self._make_room(partition_count, name_bytes):
            return None
        session_id = self._new_id()
        session = self._sessions[session_id] = CachedSession(session_id, by_topic_id, self._clock.monotonic())
        return session

    def resume(self, session_id: int, epoch: int, *, by_topic_id: bool) -> CachedSession | ErrorCode:
        """Return the session for its next request, or the error code for the client."""
        session = self._sessions.get(session_id)
        if session is None:
            return ErrorCode.fetch_session_id_not_found
        if session.epoch != epoch:
            return ErrorCode.invalid_fetch_session_epoch
        if session.by_topic_id != by_topic_id:
            return ErrorCode.fetch_session_topic_id_error
        session.epoch = 1 if epoch == _HIGHEST_EPOCH else epoch + 1
        session.last_used = self._clock.monotonic()
        self._sessions.move_to_end(session_id)
        return session

    def _make_room(self, partition_count: int, name_bytes: int) -> bool:
        if self._slots == 0 or partition_count > MOST_CACHED_PARTITIONS or name_bytes > MOST_NAME_BYTES:
            return False
        while (
            len(self._sessions) >= self._slots
            or self.cached_partitions + partition_count > MOST_CACHED_PARTITIONS
            or self.name_bytes + name_bytes > MOST_NAME_BYTES
        ):
            oldest = next(iter(self._sessions.values()))
            if self._clock.monotonic() - oldest.last_used < _EVICTABLE_AFTER_SECONDS:
                return False
            self.close(oldest.id)
            self.evicted += 1
        return True

    def _new_id(self) -> int:
        """Return an unused random id: counting up must not lead a client to another client's session."""
        while True:
            session_id = self._random.randint(1, _HIGHEST_ID)
            if session_id not in self._sessions:
                return session_id


def _name_bytes(topic: TopicKey) -> int:
    return text_bytes(topic) if isinstance(topic, str) else len(topic)

"""The client's side of an incremental fetch session (KIP-227) with one broker: a request names only what has changed.

Pure. `next_request` returns what to send so that the broker fetches the given positions; pass the response's error code
and session id to `answered`. After a request that failed, or a session that the broker has forgotten, the next request
is a full one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from stratalog.protocol.fetch import Topic, WantedPartition

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
NO_SESSION = 0
_HIGHEST_EPOCH = 2**31 - 1

Key = tuple[Topic, int]


class SessionRequest(NamedTuple):
    session_id: int
    epoch: int
    topics: dict[Topic, list[tuple[int, WantedPartition]]]
    forgotten: dict[Topic, list[int]]


class FetchSession:
    def __init__(self) -> None:
        self._id = NO_SESSION
        self._epoch = INITIAL_EPOCH
        self._known: dict[Key, WantedPartition] = {}

    def next_request(self, positions: Mapping[Key, WantedPartition]) -> SessionRequest:
        forgotten: dict[Topic, list[int]] = {}
        if self._epoch == INITIAL_EPOCH:
            changed = dict(positions)
        else:
            changed = {key: position for key, position in positions.items() if self._known.get(key) != position}
            for topic, partition in self._known.keys() - positions.keys():
                forgotten.setdefault(topic, []).append(partition)
        self._known = dict(positions)
        return SessionRequest(self._id, self._epoch, by_topic(changed), forgotten)

    def answered(self, session_id: int, error_code: int) -> None:
        """Record a response. `error_code` is that of the whole response, not of a partition."""
        if error_code:
            # The next request still has the id, so the broker closes that session if it exists.
            self._epoch = INITIAL_EPOCH
            return
        if session_id == NO_SESSION:
            self._id, self._epoch = NO_SESSION, INITIAL_EPOCH
        elif self._epoch == INITIAL_EPOCH:
            self._id, self._epoch = session_id, 1
        else:
            self._epoch = 1 if self._epoch == _HIGHEST_EPOCH else self._epoch + 1

    def failed(self) -> None:
        """Record that no response came: the broker may or may not have seen the request."""
        self._epoch = INITIAL_EPOCH


def by_topic(positions: Mapping[Key, WantedPartition]) -> dict[Topic, list[tuple[int, WantedPartition]]]:
    topics: dict[Topic, list[tuple[int, WantedPartition]]] = {}
    for (topic, partition), position in positions.items():
        topics.setdefault(topic, []).append((partition, position))
    return topics

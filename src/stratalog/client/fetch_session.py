"""The consumer's side of an incremental fetch session (KIP-227) with one broker: what it knows already is not said
again.

Pure. `next_request` gives what to send so that the broker fetches `wanted`; the answer's error and session id go into
`answered`. A session that the broker has forgotten, or a request that failed, makes the next request a full one.
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

    def next_request(self, wanted: Mapping[Key, WantedPartition]) -> SessionRequest:
        forgotten: dict[Topic, list[int]] = {}
        if self._epoch == INITIAL_EPOCH:
            changed = dict(wanted)
        else:
            changed = {key: one for key, one in wanted.items() if self._known.get(key) != one}
            for topic, partition in self._known.keys() - wanted.keys():
                forgotten.setdefault(topic, []).append(partition)
        self._known = dict(wanted)
        topics: dict[Topic, list[tuple[int, WantedPartition]]] = {}
        for (topic, partition), one in changed.items():
            topics.setdefault(topic, []).append((partition, one))
        return SessionRequest(self._id, self._epoch, topics, forgotten)

    def answered(self, session_id: int, error_code: int) -> None:
        """`error_code` is the answer's own, not a partition's."""
        if error_code:
            # The id goes along with the next request, which then closes that session, if there is one.
            self._epoch = INITIAL_EPOCH
            return
        if session_id == NO_SESSION:
            self.reset()
        elif self._epoch == INITIAL_EPOCH:
            self._id, self._epoch = session_id, 1
        else:
            self._epoch = 1 if self._epoch == _HIGHEST_EPOCH else self._epoch + 1

    def failed(self) -> None:
        """No answer: whether the broker saw the request is not known."""
        self._epoch = INITIAL_EPOCH

    def reset(self) -> None:
        self._id, self._epoch = NO_SESSION, INITIAL_EPOCH

    def closing_request(self) -> SessionRequest | None:
        """Tells the broker that the session is over; None where there is none."""
        if self._id == NO_SESSION:
            return None
        return SessionRequest(self._id, FINAL_EPOCH, {}, {})

"""One Fetch request with its response, and the table of what each error code of a partition calls for. Does no I/O.

The consumer's fetcher and Spark's scan over the wire send the request that an exchange encodes, and pass the response
back to it. An exchange chooses the version, names topics by id where the version does so, and keeps the fetch session
up to date.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from stratalog.client.errors import REFRESHES_METADATA, error_of
from stratalog.client.metadata import TopicPartition
from stratalog.protocol._fetch_response import parse_fetch_response
from stratalog.protocol.error_codes import ErrorCode
from stratalog.protocol.fetch import FIRST_BY_ID, HIGHEST, LOWEST, WantedPartition, encode_fetch_request
from stratalog.protocol.fetch_session import FINAL_EPOCH, NO_SESSION, FetchSession, Key, SessionRequest, by_topic

if TYPE_CHECKING:
    from stratalog.protocol._fetch_response import FetchResponsePartition
    from stratalog.protocol.fetch import Topic

logger = logging.getLogger(__name__)

_SESSION_LOST = (ErrorCode.fetch_session_id_not_found, ErrorCode.invalid_fetch_session_epoch)


class FetchErrorAction(Enum):
    """The reaction to a partition's error code in a Fetch response."""

    CHECK_OFFSET = auto()
    """The offset is out of range: choose another one, or report lost records."""
    CHECK_TOPIC = auto()
    """The broker does not know the partition: refresh the metadata and retry. If that persists, the topic is gone."""
    REFRESH_METADATA = auto()
    """The metadata is out of date: refresh it and retry."""
    RETRY = auto()
    """The same broker may succeed soon."""
    FAIL = auto()
    """Report the error to the caller."""


_ACTIONS: dict[int, FetchErrorAction] = {
    **dict.fromkeys(REFRESHES_METADATA, FetchErrorAction.REFRESH_METADATA),
    ErrorCode.unknown_topic_or_partition: FetchErrorAction.CHECK_TOPIC,
    ErrorCode.unknown_topic_id: FetchErrorAction.CHECK_TOPIC,
    ErrorCode.offset_out_of_range: FetchErrorAction.CHECK_OFFSET,
    ErrorCode.offset_not_available: FetchErrorAction.RETRY,
    ErrorCode.unknown_server_error: FetchErrorAction.RETRY,
    ErrorCode.request_timed_out: FetchErrorAction.RETRY,
}


def action_for(error_code: int) -> FetchErrorAction:
    return _ACTIONS.get(error_code, FetchErrorAction.FAIL)


class FetchParameters(NamedTuple):
    """The fields of a Fetch request that are the same in all requests of one reader."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    read_committed: bool
    rack_id: str


class PartitionResponse(NamedTuple):
    """One partition of a Fetch response: the fields of FetchResponsePartition, in that order.

    The batches are the bytes from `start` to `end` of the response. `nearby_replica` is the node from which the broker
    wants the client to fetch, or -1. `diverging` is the epoch and end offset up to which the logs agree, if they do not
    agree up to the requested offset.
    """

    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: list[tuple[int, int]] | None
    start: int
    end: int
    nearby_replica: int
    diverging: tuple[int, int] | None


class FetchExchange:
    """One request for `positions`, and its response. With a `session`, the request names only what has changed.

    `topic_ids` has the ids of the topics, as far as they are known; topics are named by id if all are known.
    """

    def __init__(
        self,
        parameters: FetchParameters,
        positions: Mapping[TopicPartition, WantedPartition],
        topic_ids: Mapping[str, UUID | None],
        session: FetchSession | None = None,
    ) -> None:
        self._parameters = parameters
        self._positions = positions
        self._session = session
        ids = {topic: topic_ids.get(topic) for topic, _ in positions}
        self._ids = {topic: topic_id.bytes for topic, topic_id in ids.items() if topic_id is not None}
        self._can_use_ids = len(self._ids) == len(ids)
        self._partitions: dict[Key, TopicPartition] = {}
        self._version = LOWEST

    @property
    def versions(self) -> tuple[int, int]:
        """The lowest and the highest version that `request` can encode."""
        return LOWEST, HIGHEST if self._can_use_ids else FIRST_BY_ID - 1

    def request(self, version: int) -> bytearray:
        """Encode the request's body."""
        self._version = version
        if version >= FIRST_BY_ID:
            self._partitions = {(self._ids[each.topic], each.partition): each for each in self._positions}
        else:
            self._partitions = {(each.topic, each.partition): each for each in self._positions}
        request = self._session_request({key: self._positions[each] for key, each in self._partitions.items()})
        return encode_fetch_request(
            version,
            max_wait_ms=self._parameters.max_wait_ms,
            min_bytes=self._parameters.min_bytes,
            max_bytes=self._parameters.max_bytes,
            read_committed=self._parameters.read_committed,
            session_id=request.session_id,
            session_epoch=request.epoch,
            topics=request.topics,
            forgotten=request.forgotten,
            rack_id=self._parameters.rack_id,
        )

    def _session_request(self, positions: Mapping[Key, WantedPartition]) -> SessionRequest:
        if self._session is not None:
            return self._session.next_request(positions)
        return SessionRequest(NO_SESSION, FINAL_EPOCH, by_topic(positions), {})

    def response(self, body: memoryview, *, about: str) -> Iterator[tuple[TopicPartition, PartitionResponse]]:
        """Parse the response to `request`, and return its partitions; those that were not requested are left out.

        A response that reports a lost session has no partitions: the next request starts a new session. Raises
        MalformedResponseError, and the BrokerError of an error code of the whole response; `about` names the request in
        its message. After an error, call the session's `failed`.
        """
        _, error_code, session_id, topics = parse_fetch_response(body, self._version)
        if self._session is not None:
            self._session.answered(session_id, error_code)
        if error_code:
            error = error_of(error_code, about=about)
            if self._session is None or error_code not in _SESSION_LOST:
                raise error
            logger.debug("the fetch session is lost: %s", error)
        return self._requested(topics)

    def _requested(
        self, topics: list[tuple[Topic, list[FetchResponsePartition]]]
    ) -> Iterator[tuple[TopicPartition, PartitionResponse]]:
        for topic, partitions in topics:
            for fields in partitions:
                requested = self._partitions.get((topic, fields[0]))
                if requested is not None:
                    yield requested, PartitionResponse._make(fields)

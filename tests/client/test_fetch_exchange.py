"""One Fetch request and its response: version, topic ids, sessions, and the table of error codes. No sockets."""

from __future__ import annotations

import uuid

import pytest

from stratalog.client.errors import REFRESHES_METADATA, BrokerError
from stratalog.client.fetch_exchange import FetchErrorAction, FetchExchange, FetchParameters, action_for
from stratalog.client.metadata import TopicPartition
from stratalog.protocol._wire import parse_fetch
from stratalog.protocol.error_codes import ErrorCode
from stratalog.protocol.fetch import HIGHEST, LOWEST, FetchedPartition, Topic, WantedPartition, encode_fetch_response
from stratalog.protocol.fetch_session import FetchSession

ORDERS, CAFE = TopicPartition("orders", 3), TopicPartition("cafe", 0)
ORDERS_ID, CAFE_ID = uuid.UUID(int=7), uuid.UUID(int=8)
PARAMETERS = FetchParameters(500, 1, 1000, True, "rack")
POSITIONS = {ORDERS: WantedPartition(2**40, 5, 100), CAFE: WantedPartition(0, -1, 100)}


def exchange(ids: dict[str, uuid.UUID | None], session: FetchSession | None = None) -> FetchExchange:
    return FetchExchange(PARAMETERS, POSITIONS, ids, session)


def response(version: int, topic: Topic, *partitions: FetchedPartition, error: int = 0, session: int = 0) -> memoryview:
    pieces, _ = encode_fetch_response(version, error, session, [(topic, list(partitions))])
    return memoryview(b"".join(bytes(piece) for piece in pieces))  # type: ignore[arg-type]


def test_topics_are_named_by_id_if_all_ids_are_known() -> None:
    by_id = exchange({"orders": ORDERS_ID, "cafe": CAFE_ID})
    assert by_id.versions == (LOWEST, HIGHEST)
    topics = parse_fetch(by_id.request(HIGHEST), 0, HIGHEST)[7]
    assert [topic for topic, _ in topics] == [ORDERS_ID.bytes, CAFE_ID.bytes]
    assert [topic for topic, _ in parse_fetch(by_id.request(12), 0, 12)[7]] == ["orders", "cafe"]


@pytest.mark.parametrize("ids", [{}, {"orders": ORDERS_ID}, {"orders": ORDERS_ID, "cafe": None}])
def test_a_topic_without_an_id_is_never_requested_by_id(ids: dict[str, uuid.UUID | None]) -> None:
    assert exchange(ids).versions == (LOWEST, 12)


def test_a_request_without_a_session_does_not_start_one() -> None:
    replica, wait, least, most, isolation, session, epoch, _, forgotten, _ = parse_fetch(
        exchange({}).request(12), 0, 12
    )
    assert (replica, wait, least, most, isolation) == (None, 500, 1, 1000, 1)
    assert (session, epoch, forgotten) == (0, -1, [])


@pytest.mark.parametrize("version", [LOWEST, 12, HIGHEST])
def test_partitions_that_were_not_requested_are_left_out(version: int) -> None:
    made = exchange({"orders": ORDERS_ID, "cafe": CAFE_ID})
    made.request(version)
    topic = ORDERS_ID.bytes if version >= 13 else "orders"
    body = response(version, topic, FetchedPartition(2), FetchedPartition(3, 0, 10, 9, 2, None, b"batches"))
    [(partition, fetched)] = made.response(body, about="fetch")
    assert partition == ORDERS
    assert (fetched.error_code, fetched.high_watermark, fetched.last_stable_offset) == (0, 10, 9)
    assert bytes(body[fetched.start : fetched.end]) == b"batches"


def test_only_changes_are_sent_in_a_session() -> None:
    session = FetchSession()
    first = exchange({}, session)
    first.request(12)
    assert list(first.response(response(12, "orders", session=77), about="fetch")) == []
    assert parse_fetch(exchange({}, session).request(12), 0, 12)[5:8] == (77, 1, [])


@pytest.mark.parametrize("code", [ErrorCode.fetch_session_id_not_found, ErrorCode.invalid_fetch_session_epoch])
def test_a_lost_session_is_replaced_without_an_error(code: ErrorCode) -> None:
    session = FetchSession()
    made = exchange({}, session)
    made.request(12)
    list(made.response(response(12, "orders", session=77), about="fetch"))
    assert list(made.response(response(12, "orders", error=int(code)), about="fetch")) == []
    assert len(parse_fetch(exchange({}, session).request(12), 0, 12)[7]) == 2


def test_an_error_of_the_whole_response_names_the_request() -> None:
    for code, session in (
        (ErrorCode.fetch_session_topic_id_error, FetchSession()),
        (ErrorCode.fetch_session_id_not_found, None),
    ):
        made = exchange({}, session)
        made.request(12)
        with pytest.raises(BrokerError, match=r"fetch from b:1: FETCH_SESSION_"):
            made.response(response(12, "orders", error=int(code)), about="fetch from b:1")


def test_each_error_code_has_one_reaction() -> None:
    assert action_for(ErrorCode.offset_out_of_range) is FetchErrorAction.CHECK_OFFSET
    assert action_for(ErrorCode.unknown_topic_or_partition) is FetchErrorAction.CHECK_TOPIC
    assert action_for(ErrorCode.unknown_topic_id) is FetchErrorAction.CHECK_TOPIC
    assert action_for(ErrorCode.not_leader_or_follower) is FetchErrorAction.REFRESH_METADATA
    assert action_for(ErrorCode.unknown_leader_epoch) is FetchErrorAction.REFRESH_METADATA
    assert action_for(ErrorCode.offset_not_available) is FetchErrorAction.RETRY
    assert action_for(ErrorCode.unknown_server_error) is FetchErrorAction.RETRY
    assert action_for(ErrorCode.topic_authorization_failed) is FetchErrorAction.FAIL
    assert action_for(ErrorCode.corrupt_message) is FetchErrorAction.FAIL
    assert action_for(12345) is FetchErrorAction.FAIL
    for code in REFRESHES_METADATA:
        assert action_for(code) in (FetchErrorAction.REFRESH_METADATA, FetchErrorAction.CHECK_TOPIC)

"""A fetch session sends only changes, and everything again if the broker may not have it."""

from __future__ import annotations

from stratalog.protocol.fetch import WantedPartition
from stratalog.protocol.fetch_session import FetchSession

A, B = ("topic", 0), ("topic", 1)


def want(offset: int) -> WantedPartition:
    return WantedPartition(offset, 0, 1000)


def test_only_changes_are_sent_after_the_first_request() -> None:
    session = FetchSession()
    first = session.next_request({A: want(0), B: want(0)})
    assert (first.session_id, first.epoch) == (0, 0)
    assert first.topics == {"topic": [(0, want(0)), (1, want(0))]}
    session.answered(77, 0)
    second = session.next_request({A: want(5), B: want(0)})
    assert (second.session_id, second.epoch, second.topics, second.forgotten) == (77, 1, {"topic": [(0, want(5))]}, {})
    session.answered(77, 0)
    third = session.next_request({B: want(0)})
    assert (third.epoch, third.topics, third.forgotten) == (2, {}, {"topic": [0]})


def test_a_broker_without_room_for_a_session_gets_full_requests() -> None:
    session = FetchSession()
    for _ in range(3):
        request = session.next_request({A: want(0)})
        assert (request.session_id, request.epoch, len(request.topics)) == (0, 0, 1)
        session.answered(0, 0)


def test_an_unknown_session_or_a_lost_response_causes_a_full_request() -> None:
    for happens in (lambda session: session.answered(0, 70), FetchSession.failed):
        session = FetchSession()
        session.next_request({A: want(0)})
        session.answered(77, 0)
        session.next_request({A: want(1)})
        happens(session)
        again = session.next_request({A: want(1)})
        assert (again.session_id, again.epoch, again.topics) == (77, 0, {"topic": [(0, want(1))]})  # closes 77, too

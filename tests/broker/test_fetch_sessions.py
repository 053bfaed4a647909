"""Fetch sessions (KIP-227): ids and epochs, cached partitions, and which sessions are evicted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stratalog.broker import fetch_sessions
from stratalog.broker.fetch_sessions import CachedSession, FetchSessions, TopicKey
from stratalog.clock import ManualClock
from stratalog.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from stratalog.protocol._wire import FetchPartition


def wanted(index: int, offset: int = 0) -> tuple[int, int, int, int, int, int]:
    return index, -1, offset, -1, 1000, -1


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(0)


@pytest.fixture
def sessions(clock: ManualClock) -> FetchSessions:
    return FetchSessions(3, clock)


def opened(sessions: FetchSessions, partitions: int = 1, *, by_topic_id: bool = False) -> CachedSession:
    session = sessions.open(of_topic(partitions), by_topic_id=by_topic_id)
    assert session is not None
    assert sessions.remember(session, of_topic(partitions))
    return session


def of_topic(partitions: int, name: TopicKey = "topic") -> list[tuple[TopicKey, list[FetchPartition]]]:
    return [(name, [wanted(index) for index in range(partitions)])]


def test_each_request_raises_the_epoch(sessions: FetchSessions) -> None:
    session = opened(sessions)
    for epoch in (1, 2, 3):
        assert sessions.resume(session.id, epoch, by_topic_id=False) is session
    for epoch in (3, 5, 0, -1, 2**31 - 1):
        assert sessions.resume(session.id, epoch, by_topic_id=False) is ErrorCode.invalid_fetch_session_epoch
    assert sessions.resume(session.id, 4, by_topic_id=False) is session


def test_the_epoch_after_the_last_is_the_first(sessions: FetchSessions) -> None:
    session = opened(sessions)
    session.epoch = 2**31 - 1
    assert sessions.resume(session.id, 2**31 - 1, by_topic_id=False) is session
    assert sessions.resume(session.id, 1, by_topic_id=False) is session


def test_a_closed_or_unknown_session_is_not_found(sessions: FetchSessions) -> None:
    session = opened(sessions)
    sessions.close(session.id)
    sessions.close(session.id)
    for session_id in (session.id, 0, -1, 12345):
        assert sessions.resume(session_id, 1, by_topic_id=False) is ErrorCode.fetch_session_id_not_found


def test_a_session_that_began_with_names_does_not_continue_with_topic_ids(sessions: FetchSessions) -> None:
    session = opened(sessions)
    assert sessions.resume(session.id, 1, by_topic_id=True) is ErrorCode.fetch_session_topic_id_error
    assert sessions.resume(session.id, 1, by_topic_id=False) is session


def test_ids_are_positive_and_differ(clock: ManualClock) -> None:
    sessions = FetchSessions(500, clock)
    found = [opened(sessions).id for _ in range(500)]
    assert len(set(found)) == 500
    assert min(found) > 0
    assert max(found) < 2**31
    assert sorted(found) != found  # no client can guess the next id


def test_partitions_are_added_changed_and_forgotten(sessions: FetchSessions) -> None:
    session = opened(sessions, 2)
    changed = [("topic", [wanted(1, offset=7), wanted(2)]), ("other", [wanted(0)])]
    assert sessions.remember(session, changed, [("topic", [0, 99])])
    assert {key: each.requested for key, each in session.partitions.items()} == {
        ("topic", 1): wanted(1, offset=7),
        ("topic", 2): wanted(2),
        ("other", 0): wanted(0),
    }
    assert sessions.cached_partitions == 3


def test_a_repeated_partition_keeps_what_was_reported_about_it(sessions: FetchSessions) -> None:
    session = opened(sessions, 1)
    cached = session.partitions["topic", 0]
    cached.high_watermark = 77
    session.update([("topic", [wanted(0, offset=70)])])
    assert session.partitions["topic", 0] is cached
    assert (cached.high_watermark, cached.requested) == (77, wanted(0, offset=70))


def test_a_served_partition_moves_to_the_end(sessions: FetchSessions) -> None:
    session = opened(sessions, 3)
    session.move_to_end(session.partitions["topic", 0])
    assert [index for _, index in session.partitions] == [1, 2, 0]


def test_no_session_is_added_when_all_slots_were_used_in_the_last_two_minutes(
    sessions: FetchSessions, clock: ManualClock
) -> None:
    first, second, third = (opened(sessions) for _ in range(3))
    clock.advance(60_000)
    sessions.resume(first.id, 1, by_topic_id=False)
    clock.advance(59_999)
    assert sessions.open(of_topic(1), by_topic_id=False) is None
    clock.advance(2)
    assert sessions.open(of_topic(1), by_topic_id=False) is not None
    assert sessions.evicted == 1
    assert sessions.resume(second.id, 1, by_topic_id=False) is ErrorCode.fetch_session_id_not_found
    assert sessions.resume(first.id, 2, by_topic_id=False) is first
    assert sessions.resume(third.id, 1, by_topic_id=False) is third


def test_no_sessions_without_slots(clock: ManualClock) -> None:
    sessions = FetchSessions(0, clock)
    assert sessions.open(of_topic(1), by_topic_id=False) is None


def test_partitions_are_limited_over_all_sessions(
    sessions: FetchSessions, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_sessions, "MOST_CACHED_PARTITIONS", 10)
    assert sessions.open(of_topic(11), by_topic_id=False) is None
    opened(sessions, 7)
    assert sessions.open(of_topic(4), by_topic_id=False) is None
    opened(sessions, 3)
    clock.advance(200_000)
    opened(sessions, 9)
    assert len(sessions) == 1
    assert sessions.evicted == 2


def test_long_names_of_topics_that_do_not_exist_are_limited_over_all_sessions(
    sessions: FetchSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_sessions, "MOST_NAME_BYTES", 1_000)
    kept, greedy = opened(sessions), opened(sessions)
    assert sessions.remember(kept, [("n" * 400, [wanted(0), wanted(1)])])
    assert not sessions.remember(greedy, [("n" * 200, [wanted(0)])])
    assert sessions.resume(greedy.id, 1, by_topic_id=False) is ErrorCode.fetch_session_id_not_found
    assert sessions.resume(kept.id, 1, by_topic_id=False) is kept


def test_an_idle_session_with_long_names_makes_room_for_others(
    sessions: FetchSessions, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_sessions, "MOST_NAME_BYTES", 1_000)
    greedy = sessions.open(of_topic(1, "n" * 990), by_topic_id=False)
    assert greedy is not None
    assert sessions.remember(greedy, of_topic(1, "n" * 990))
    assert sessions.open(of_topic(1, "n" * 20), by_topic_id=False) is None
    clock.advance(200_000)
    assert sessions.open(of_topic(1, "n" * 1001), by_topic_id=False) is None
    assert sessions.open(of_topic(1, "n" * 20), by_topic_id=False) is not None
    assert (len(sessions), sessions.evicted) == (1, 1)


def test_forgotten_partitions_and_closed_sessions_make_room(sessions: FetchSessions) -> None:
    one, other = opened(sessions, 5), opened(sessions, 3)
    sessions.remember(one, [("more", [wanted(0), wanted(1)])], [("topic", [0, 1]), ("never asked for", [7])])
    live = [one, other]
    assert sessions.cached_partitions == sum(len(each.partitions) for each in live) == 8
    assert sessions.name_bytes == sum(len(topic) for each in live for topic, _ in each.partitions)
    sessions.close(one.id)
    sessions.close(one.id)
    sessions.close(other.id)
    assert (sessions.cached_partitions, sessions.name_bytes) == (0, 0)

"""The client's side of Fetch: the broker's parser and kio read its requests, and it reads responses of all versions."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema
from kio.serial import entity_reader

from stratalog.errors import MalformedResponseError
from stratalog.protocol._fetch_response import parse_fetch_response
from stratalog.protocol._wire import parse_fetch
from stratalog.protocol.fetch import (
    HIGHEST,
    LOWEST,
    FetchedPartition,
    Topic,
    WantedPartition,
    encode_fetch_request,
    encode_fetch_response,
)

VERSIONS = range(LOWEST, HIGHEST + 1)
ID = uuid.UUID(int=7).bytes


def topic_of(version: int) -> Topic:
    return ID if version >= 13 else "topic"


def request(version: int) -> bytearray:
    return encode_fetch_request(
        version,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1000,
        read_committed=True,
        session_id=9,
        session_epoch=3,
        topics={topic_of(version): [(2, WantedPartition(2**40, 5, 100, 4))]},
        forgotten={topic_of(version): [1, 3]},
        rack_id="rack",
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_requests_are_parsed_with_the_same_values(version: int) -> None:
    replica, wait, least, most, isolation, session, epoch, topics, forgotten, rack = parse_fetch(
        request(version), 0, version
    )
    assert rack == ("rack" if version >= 11 else "")
    assert (replica, wait, least, most, isolation) == (None, 500, 1, 1000, 1)
    assert (session, epoch) == ((9, 3) if version >= 7 else (0, -1))
    expected = (2, 5 if version >= 9 else -1, 2**40, 4 if version >= 12 else -1, 100, -1)
    assert topics == [(topic_of(version), [expected])]
    assert forgotten == ([(topic_of(version), [1, 3])] if version >= 7 else [])
    entity_reader(load_request_schema(1, version))(memoryview(bytes(request(version))), 0)


@pytest.mark.parametrize("version", VERSIONS)
def test_responses_are_parsed_with_the_same_values(version: int) -> None:
    partitions = [
        FetchedPartition(0, 0, 10, 9, 2, [(5, 3), (6, 4)], b"records"),
        FetchedPartition(1, 1),
        FetchedPartition(2, 0, 10, 9, 2, None, None, (3, 8)),
    ]
    pieces, _ = encode_fetch_response(version, 0, 77, [(topic_of(version), partitions)])
    body = b"".join(bytes(piece) for piece in pieces)  # type: ignore[arg-type]
    throttle, error, session, topics = parse_fetch_response(body, version)
    assert (throttle, error, session) == (0, 0, 77 if version >= 7 else 0)
    [(topic, [first, second, third])] = topics
    assert topic == topic_of(version)
    assert first[:6] == (0, 0, 10, 9, 2 if version >= 5 else -1, [(5, 3), (6, 4)])
    assert body[first[6] : first[7]] == b"records"
    assert second[:3] == (1, 1, -1)
    assert third[6] == third[7]
    assert third[9] == ((3, 8) if version >= 12 else None)


@pytest.mark.parametrize("version", [4, 11, 12, 16])
@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_damaged_responses_are_errors(version: int, data: st.DataObject) -> None:
    pieces, _ = encode_fetch_response(version, 0, 1, [(topic_of(version), [FetchedPartition(0, records=b"x" * 9)])])
    body = bytearray(b"".join(bytes(piece) for piece in pieces))  # type: ignore[arg-type]
    for at, byte in data.draw(st.lists(st.tuples(st.integers(0, len(body) - 1), st.integers(0, 255)), max_size=4)):
        body[at] = byte
    del body[data.draw(st.integers(0, len(body))) :]
    try:
        _, _, _, topics = parse_fetch_response(body, version)
    except MalformedResponseError:
        return
    for _, partitions in topics:
        for partition in partitions:
            assert 0 <= partition[6] <= partition[7] <= len(body)


def test_arrays_longer_than_the_response_are_refused_before_anything_is_created() -> None:
    with pytest.raises(MalformedResponseError, match="elements"):
        parse_fetch_response(bytes(10) + (2**31 - 1).to_bytes(4, "big"), 11)


def test_a_follower_names_itself_and_its_broker_epoch() -> None:
    wanted: dict[Topic, list[tuple[int, WantedPartition]]] = {
        bytes(16): [(2, WantedPartition(5, 3, 100, 2, log_start_offset=4))]
    }
    body = encode_fetch_request(
        HIGHEST,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1000,
        read_committed=False,
        session_id=0,
        session_epoch=-1,
        topics=wanted,
        forgotten={},
        replica=(7, 2**40),
    )
    replica, *_, topics, _, _ = parse_fetch(body, 0, HIGHEST)
    assert replica == (7, 2**40)
    assert topics == [(bytes(16), [(2, 3, 5, 2, 100, 4)])]
    entity_reader(load_request_schema(1, HIGHEST))(memoryview(bytes(body)), 0)

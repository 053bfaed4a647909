"""The parsers of the hot requests against kio, in every version, and with hostile bytes."""

from __future__ import annotations

import tracemalloc
import uuid
from collections.abc import Callable
from struct import Struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.errors import MalformedRequestError
from stratalog.protocol._wire import parse_fetch, parse_produce, parse_request_header
from stratalog.protocol.api_keys import VERSIONS, ApiKey
from stratalog.protocol.fields import MOST_ELEMENTS, write_varint
from tests.protocol.kio_messages import request_body, request_header

PRODUCE_VERSIONS = range(3, 14)
FETCH_VERSIONS = range(4, 19)
_SETTINGS = settings(max_examples=20, deadline=None, derandomize=True)

int8 = st.integers(-(2**7), 2**7 - 1)
int16 = st.integers(-(2**15), 2**15 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
names = st.text(st.characters(codec="utf-8"), max_size=20)
ids = st.binary(min_size=16, max_size=16).filter(any)
partitions_to_produce = st.fixed_dictionaries({"index": int32, "records": st.none() | st.binary(max_size=200)})
partitions_to_fetch = st.fixed_dictionaries(
    {
        "partition": int32,
        "current_leader_epoch": int32,
        "fetch_offset": int64,
        "last_fetched_epoch": int32,
        "log_start_offset": int64,
        "partition_max_bytes": int32,
        "high_watermark": int64,
        "replica_directory_id": st.just(uuid.UUID(int=5)),
    }
)


def topics_of(partitions: st.SearchStrategy[Any]) -> st.SearchStrategy[list[dict[str, Any]]]:
    topic = st.tuples(names, ids, st.lists(partitions, max_size=3))
    return st.lists(
        topic.map(
            lambda each: (
                {"name": each[0], "topic": each[0], "topic_id": uuid.UUID(bytes=each[1]), "of_id": each[1]}
                | {"partition_data": each[2], "partitions": each[2]}
            )
        ),
        max_size=3,
    )


produce_requests = st.fixed_dictionaries(
    {
        "transactional_id": st.none() | names,
        "acks": int16,
        "timeout": st.integers(0, 2**31 - 1),
        "topic_data": topics_of(partitions_to_produce),
    }
)
fetch_requests = st.fixed_dictionaries(
    {
        "replica_id": int32,
        "replica_state": st.fixed_dictionaries({"replica_id": int32, "replica_epoch": int64}),
        "cluster_id": st.none() | names,
        "max_wait": st.integers(0, 2**31 - 1),
        "min_bytes": int32,
        "max_bytes": int32,
        "isolation_level": int8,
        "session_id": int32,
        "session_epoch": int32,
        "topics": topics_of(partitions_to_fetch),
        "forgotten_topics_data": topics_of(int32),
        "rack_id": names,
    }
)


def key_of(topic: dict[str, Any], version: int) -> str | bytes:
    return topic["of_id"] if version >= 13 else topic["name"]  # type: ignore[no-any-return]


def varint(value: int) -> bytes:
    out = bytearray()
    write_varint(out, value)
    return bytes(out)


def assert_any_cut_or_extra_is_refused(parse: Callable[[bytes], object], body: bytes) -> None:
    for cut in range(len(body)):
        with pytest.raises(MalformedRequestError):
            parse(body[:cut])
    with pytest.raises(MalformedRequestError, match="1 bytes come after"):
        parse(body + b"\0")


@given(int16, int16, int32, st.none() | names)
@_SETTINGS
def test_header_is_parsed_as_it_was_written(key: int, version: int, correlation_id: int, client_id: str | None) -> None:
    header = request_header(key, version, correlation_id=correlation_id, client_id=client_id)
    *values, position = parse_request_header(header)
    assert values == [key, version, correlation_id, client_id]
    known = VERSIONS.get(key)  # type: ignore[call-overload]
    assert position == len(header) - (known is not None and version > max(known.highest, known.first_flexible - 1))
    for cut in range(position):
        with pytest.raises(MalformedRequestError):
            parse_request_header(header[:cut])


def test_tagged_fields_of_a_header_are_skipped() -> None:
    start = request_header(ApiKey.METADATA, 9)[:-1]
    fields = b"\x02\x00\x03abc\x80\x01\x01z"
    assert parse_request_header(start + fields + b"body")[-1] == len(start + fields)
    for cut in range(len(fields)):
        with pytest.raises(MalformedRequestError):
            parse_request_header(start + fields[:cut])


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@given(produce_requests)
@_SETTINGS
def test_produce_request_of_kio_is_parsed_with_the_same_values(version: int, values: dict[str, Any]) -> None:
    body = request_body(ApiKey.PRODUCE, version, values)
    frame = b"header" + body
    transactional_id, acks, timeout, topics = parse_produce(frame, 6, version)
    assert (transactional_id, acks, timeout) == (values["transactional_id"], values["acks"], values["timeout"])
    assert [
        (name, [(index, None if start < 0 else frame[start:end]) for index, start, end in partitions])
        for name, partitions in topics
    ] == [
        (key_of(topic, version), [(each["index"], each["records"]) for each in topic["partitions"]])
        for topic in values["topic_data"]
    ]
    assert_any_cut_or_extra_is_refused(lambda cut: parse_produce(cut, 0, version), body)


@pytest.mark.parametrize("version", FETCH_VERSIONS)
@given(fetch_requests)
@_SETTINGS
def test_fetch_request_of_kio_is_parsed_with_the_same_values(version: int, values: dict[str, Any]) -> None:
    body = request_body(ApiKey.FETCH, version, values)
    replica, *numbers, topics, forgotten, rack = parse_fetch(b"header" + body, 6, version)
    state = values["replica_state"]
    node_id, epoch = (values["replica_id"], -1) if version < 15 else (state["replica_id"], state["replica_epoch"])
    assert replica == ((node_id, epoch) if node_id >= 0 else None)
    assert rack == (values["rack_id"] if version >= 11 else "")
    session = [values["session_id"], values["session_epoch"]] if version >= 7 else [0, -1]
    assert numbers == [
        *(values[name] for name in ("max_wait", "min_bytes", "max_bytes", "isolation_level")),
        *session,
    ]
    assert topics == [
        (
            key_of(topic, version),
            [
                (
                    each["partition"],
                    each["current_leader_epoch"] if version >= 9 else -1,
                    each["fetch_offset"],
                    each["last_fetched_epoch"] if version >= 12 else -1,
                    each["partition_max_bytes"],
                    each["log_start_offset"] if version >= 5 else -1,
                )
                for each in topic["partitions"]
            ],
        )
        for topic in values["topics"]
    ]
    assert forgotten == (
        [(key_of(topic, version), topic["partitions"]) for topic in values["forgotten_topics_data"]]
        if version >= 7
        else []
    )
    assert_any_cut_or_extra_is_refused(lambda cut: parse_fetch(cut, 0, version), body)


# Counts and lengths that are not valid

_FETCH_START = Struct(">iiiibii").pack(-1, 0, 0, 0, 0, 0, 0)
_INT32 = Struct(">i")
_HOSTILE = {
    "the largest count": varint(2**31),
    "a count of 32 bits": varint(2**32 - 1),
    "a count of 35 bits": b"\xff\xff\xff\xff\x7f",
    "a varint of six bytes": b"\x80\x80\x80\x80\x80\x01",
    "a varint that does not end": b"\xff" * 10,
    "null that is not allowed": b"\0",
}


@pytest.mark.parametrize("count", _HOSTILE.values(), ids=_HOSTILE)
def test_hostile_counts_are_refused_before_they_are_used(count: bytes) -> None:
    one_topic = b"\x02\x02a"
    attacks: list[Callable[[], object]] = [
        lambda: parse_produce(b"\0\0\1\0\0\0\0" + count, 0, 9),
        lambda: parse_produce(b"\0\0\1\0\0\0\0" + one_topic + count, 0, 9),
        lambda: parse_fetch(_FETCH_START + count, 0, 12),
        lambda: parse_fetch(_FETCH_START + one_topic + count, 0, 12),
        lambda: parse_fetch(_FETCH_START + b"\x01" + count, 0, 12),
        lambda: parse_fetch(_FETCH_START + b"\x01" + one_topic + count, 0, 12),
    ]
    assert peak_of_refusals(attacks) < 100_000


@pytest.mark.parametrize("length", [v for k, v in _HOSTILE.items() if k != "null that is not allowed"])
def test_hostile_lengths_are_refused_before_they_are_used(length: bytes) -> None:
    attacks: list[Callable[[], object]] = [
        lambda: parse_produce(length, 0, 9),  # the transactional id
        lambda: parse_produce(b"\0\0\1\0\0\0\0\x02" + length, 0, 9),  # a topic's name
        lambda: parse_produce(b"\0\0\1\0\0\0\0\x02\x02a\x02\0\0\0\0" + length, 0, 9),  # records
        lambda: parse_produce(b"\0\0\1\0\0\0\0\x01" + length, 0, 9),  # tagged fields
        lambda: parse_produce(b"\0\0\1\0\0\0\0\x01\x01\x00" + length, 0, 9),  # a tagged field
        lambda: parse_fetch(_FETCH_START + b"\x01\x01" + length, 0, 12),  # the rack
        lambda: parse_fetch(_FETCH_START + b"\x01\x01\x01" + length, 0, 12),  # tagged fields
        lambda: parse_request_header(request_header(ApiKey.METADATA, 9)[:-1] + length),  # tagged fields of the header
    ]
    assert peak_of_refusals(attacks) < 100_000


@pytest.mark.parametrize("count", [2**31 - 1, -1, -2, -(2**31)])
def test_hostile_counts_of_old_versions_are_refused(count: int) -> None:
    written = _INT32.pack(count)
    one_topic = b"\0\0\0\1\0\1a"
    attacks: list[Callable[[], object]] = [
        lambda: parse_produce(b"\xff\xff\0\1\0\0\0\0" + written, 0, 3),
        lambda: parse_produce(b"\xff\xff\0\1\0\0\0\0" + one_topic + written, 0, 3),
        lambda: parse_fetch(_FETCH_START + written, 0, 7),
        lambda: parse_fetch(_FETCH_START + one_topic + written, 0, 7),
        lambda: parse_fetch(_FETCH_START + b"\0\0\0\0" + written, 0, 7),
    ]
    if count != -1:  # null records get an error as response
        attacks.append(
            lambda: parse_produce(b"\xff\xff\0\1\0\0\0\0" + one_topic + b"\0\0\0\1" + b"\0" * 4 + written, 0, 3)
        )
    assert peak_of_refusals(attacks) < 100_000


def test_topic_without_a_name_is_refused() -> None:
    for parse in (
        lambda: parse_produce(b"\0\0\1\0\0\0\0\x02\x00\x01\x00\x00", 0, 9),
        lambda: parse_fetch(_FETCH_START + b"\x02\x00\x01\x00\x01\x01\x00", 0, 12),
        lambda: parse_fetch(_FETCH_START + b"\x01\x02\x00\x01\x00\x01\x00", 0, 12),
    ):
        with pytest.raises(MalformedRequestError, match="no name"):
            parse()


def test_name_that_is_not_utf_8_is_refused() -> None:
    with pytest.raises(MalformedRequestError, match="UTF-8"):
        parse_produce(b"\0\0\1\0\0\0\0\x02\x02\xff\x01\x00\x00", 0, 9)


@pytest.mark.parametrize("state", [b"\x00\x00", b"\x00\x00\x00\x01", b"\x00\x00\x00\x01" + bytes(7)])
def test_incomplete_replica_state_is_refused(state: bytes) -> None:
    with pytest.raises(MalformedRequestError):
        parse_fetch(_FETCH_START[4:] + b"\x01\x01\x01" + bytes([1, 1, len(state)]) + state, 0, 15)


def peak_of_refusals(attacks: list[Callable[[], object]]) -> int:
    tracemalloc.start()
    try:
        for attack in attacks:
            with pytest.raises(MalformedRequestError):
                attack()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# The number of elements

_EMPTY_TOPIC = b"\x01\x01\x00"


def test_memory_for_the_allowed_number_of_elements_is_limited() -> None:
    count = MOST_ELEMENTS - 1
    partition = Struct(">iiqiqib").pack(70_000, 70_000, 2**40, 70_000, 2**40, 70_000, 0)
    requests: list[Callable[[], object]] = [
        lambda: parse_fetch(_FETCH_START + varint(count + 1) + _EMPTY_TOPIC * count + b"\1\1\0", 0, 12),
        lambda: parse_fetch(_FETCH_START + b"\2\2a" + varint(count + 1) + partition * count + b"\0\1\1\0", 0, 12),
        lambda: parse_produce(b"\0\0\1\0\0\0\0" + varint(count + 1) + _EMPTY_TOPIC * count + b"\0", 0, 9),
    ]
    for request in requests:
        tracemalloc.start()
        try:
            request()
            assert tracemalloc.get_traced_memory()[1] < 60 * 1024**2
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("count", [MOST_ELEMENTS + 1, 1_300_000])
def test_too_many_topics_are_refused_at_once(count: int) -> None:
    topics = varint(count + 1) + _EMPTY_TOPIC * count
    attacks = [_FETCH_START + topics + b"\1\1\0", _FETCH_START + b"\1" + topics + b"\1\0"]
    for body in attacks:
        with pytest.raises(MalformedRequestError, match="more than 100000 elements"):
            parse_fetch(body, 0, 12)
    with pytest.raises(MalformedRequestError, match="more than 100000 elements"):
        parse_produce(b"\0\0\1\0\0\0\0" + topics + b"\0", 0, 9)


def test_too_many_tagged_fields_are_refused() -> None:
    fields = varint(MOST_ELEMENTS + 1) + b"\1\0" * (MOST_ELEMENTS + 1)
    with pytest.raises(MalformedRequestError, match="more than 100000 elements"):
        parse_produce(b"\0\0\1\0\0\0\0\1" + fields, 0, 9)
    with pytest.raises(MalformedRequestError, match="more than 100000 elements"):
        parse_fetch(_FETCH_START + b"\1\1\1" + fields, 0, 12)

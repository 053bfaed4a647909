"""The client's side of Produce, in all of its versions. The broker's parser reads its requests; the broker's kernel and
kio write the responses."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.errors import MalformedResponseError
from stratalog.protocol._wire import parse_produce
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.messages import encode_reply
from stratalog.protocol.produce import (
    HIGHEST,
    LOWEST,
    ProducedPartition,
    decode_produce_response,
    encode_produce_request,
    encode_produce_response,
)

VERSIONS = range(LOWEST, HIGHEST + 1)
_SETTINGS = settings(max_examples=25, deadline=None, derandomize=True)

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
partitions = st.lists(st.tuples(st.integers(0, 2**31 - 1), st.binary(max_size=5000).map(bytearray)), max_size=4)
answers = st.dictionaries(
    names,
    st.dictionaries(
        st.integers(0, 1000),
        st.tuples(st.integers(0, 100), st.integers(-1, 2**60), st.integers(-1, 2**60), st.none() | names),
        max_size=4,
    ),
    max_size=3,
)


@pytest.mark.parametrize("version", VERSIONS)
@given(st.integers(-1, 1), st.integers(0, 2**31 - 1), st.dictionaries(names, partitions, max_size=4))
@_SETTINGS
def test_request_is_parsed_by_the_broker(
    version: int, acks: int, timeout: int, topics: dict[str, list[tuple[int, bytearray]]]
) -> None:
    body = b"".join(encode_produce_request(version, acks, timeout, topics))
    transactional_id, read_acks, read_timeout, read_topics = parse_produce(body, 0, version)
    assert (transactional_id, read_acks, read_timeout) == (None, acks, timeout)
    parsed = {name: [(number, body[start:end]) for number, start, end in each] for name, each in read_topics}
    assert parsed == {name: [(number, bytes(batch)) for number, batch in each] for name, each in topics.items()}


@pytest.mark.parametrize("version", VERSIONS)
@given(answers)
@_SETTINGS
def test_response_is_parsed(version: int, reported: dict[str, dict[int, tuple[int, int, int, str | None]]]) -> None:
    topics = [
        (
            name,
            [
                ProducedPartition(number, result[0], result[1], result[2], 7, result[3])
                for number, result in each.items()
            ],
        )
        for name, each in reported.items()
    ]
    throttle, parsed = decode_produce_response(version, encode_produce_response(version, topics))
    expected = {
        (name, number): result if version >= 8 else (*result[:3], None)
        for name, each in reported.items()
        for number, result in each.items()
    }
    assert throttle == 0
    assert parsed == expected


@pytest.mark.parametrize("version", range(8, HIGHEST + 1))
def test_throttling_and_record_errors_are_parsed(version: int) -> None:
    partition: dict[str, Any] = {
        "index": 3,
        "error_code": 87,
        "base_offset": -1,
        "log_append_time_ms": -1,
        "log_start_offset": -1,
        "record_errors": [
            {"batch_index": 5, "batch_index_error_message": "no key"},
            {"batch_index": 6, "batch_index_error_message": None},
        ],
        "error_message": "not valid",
    }
    reply = {"responses": [{"name": "t", "partition_responses": [partition]}], "throttle_time": 250}
    throttle, parsed = decode_produce_response(version, encode_reply(ApiKey.PRODUCE, version, reply))
    assert throttle == 250
    assert parsed["t", 3] == (87, -1, -1, "not valid (record 5 of the batch: no key)")


@pytest.mark.parametrize("version", VERSIONS)
def test_incomplete_response_is_malformed(version: int) -> None:
    whole = encode_produce_response(version, [("topic", [ProducedPartition(0, 87, 1, 2, 3, "message")])])
    for end in range(len(whole)):
        with pytest.raises(MalformedResponseError, match="Produce"):
            decode_produce_response(version, whole[:end])


@pytest.mark.parametrize("version", VERSIONS)
@given(st.binary(max_size=200))
@_SETTINGS
def test_no_bytes_do_harm(version: int, body: bytes) -> None:
    try:
        decode_produce_response(version, body)
    except MalformedResponseError:
        pass

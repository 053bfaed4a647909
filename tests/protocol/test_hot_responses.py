"""The kernel's responses to Produce and Fetch, decoded by kio, in every version."""

from __future__ import annotations

import uuid
from struct import Struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.protocol.api_keys import VERSIONS, ApiKey
from stratalog.protocol.current_leader import CurrentLeader
from stratalog.protocol.fetch import FetchedPartition, encode_fetch_response
from stratalog.protocol.frames import response_start
from stratalog.protocol.produce import ProducedPartition, encode_produce_response
from tests.protocol.kio_messages import build, read_response
from tests.protocol.test_wire import FETCH_VERSIONS, PRODUCE_VERSIONS, ids, int32, int64, names

_SETTINGS = settings(max_examples=20, deadline=None, derandomize=True)
_INT32 = Struct(">i")

leaders = st.none() | st.builds(
    CurrentLeader, st.integers(0, 3), int32, st.just("broker.example"), st.integers(1, 2**16 - 1), st.none() | names
)
produced = st.builds(
    ProducedPartition,
    int32,
    st.integers(0, 50),
    int64,
    st.integers(-1, 2**40),
    int64,
    st.none() | names,
    st.lists(st.tuples(int32, names), max_size=3).map(tuple),
    leaders,
)
fetched = st.builds(
    FetchedPartition,
    int32,
    st.integers(0, 50),
    int64,
    int64,
    int64,
    st.none() | st.lists(st.tuples(int64, int64), max_size=3),
    st.none() | st.binary(max_size=300),
    st.none() | st.tuples(int32, int64),
    leaders,
    int32,
)


def answered(partition: st.SearchStrategy[Any]) -> st.SearchStrategy[list[tuple[str, bytes, list[Any]]]]:
    return st.lists(st.tuples(names, ids, st.lists(partition, max_size=3)), max_size=3)


def response_of(key: ApiKey, version: int, body: bytes) -> Any:
    flexible = version >= VERSIONS[key].first_flexible
    start = response_start(77, len(body), flexible=flexible)
    assert _INT32.unpack_from(start)[0] == len(start) - 4 + len(body)
    correlation_id, response = read_response(key, version, start[4:] + body)
    assert correlation_id == 77
    return response


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@given(answered(produced))
@_SETTINGS
def test_produce_response_is_decoded_by_kio(
    version: int, topics: list[tuple[str, bytes, list[ProducedPartition]]]
) -> None:
    body = encode_produce_response(
        version, [(of_id if version >= 13 else name, partitions) for name, of_id, partitions in topics]
    )
    response = response_of(ApiKey.PRODUCE, version, bytes(body))
    expected = {
        "responses": [
            {
                "name": name,
                "topic_id": uuid.UUID(bytes=of_id),
                "partition_responses": [
                    {
                        "index": partition.partition,
                        "error_code": partition.error_code,
                        "base_offset": partition.base_offset,
                        "log_append_time": None if partition.log_append_time < 0 else partition.log_append_time,
                        "log_start_offset": partition.log_start_offset,
                        "error_message": partition.error_message,
                        "record_errors": [
                            {"batch_index": index, "batch_index_error_message": message}
                            for index, message in partition.record_errors
                        ],
                        **current_leader(partition),
                    }
                    for partition in partitions
                ],
            }
            for name, of_id, partitions in topics
        ],
        "node_endpoints": endpoints(topics),
    }
    assert response == build(type(response), expected)


@pytest.mark.parametrize("version", range(3))
def test_old_produce_response_has_the_fields_of_its_version(version: int) -> None:
    body = bytes(encode_produce_response(version, [("t", [ProducedPartition(1, 35, -1)])]))
    of_partition = b"\0\0\0\1" + b"\0\x23" + b"\xff" * (16 if version >= 2 else 8)
    assert body == b"\0\0\0\1\0\1t\0\0\0\1" + of_partition + (b"\0\0\0\0" if version else b"")


@pytest.mark.parametrize("version", FETCH_VERSIONS)
@given(answered(fetched), st.integers(0, 50), int32)
@_SETTINGS
def test_fetch_response_is_decoded_by_kio(
    version: int, topics: list[tuple[str, bytes, list[FetchedPartition]]], error_code: int, session_id: int
) -> None:
    pieces, size = encode_fetch_response(
        version,
        error_code,
        session_id,
        [(of_id if version >= 13 else name, partitions) for name, of_id, partitions in topics],
    )
    body = b"".join(pieces)  # type: ignore[arg-type]
    assert len(body) == size
    response = response_of(ApiKey.FETCH, version, body)
    expected = {
        "error_code": error_code,
        "session_id": session_id,
        "responses": [
            {
                "topic": name,
                "topic_id": uuid.UUID(bytes=of_id),
                "partitions": [expected_partition(partition, version) for partition in partitions],
            }
            for name, of_id, partitions in topics
        ],
        "node_endpoints": endpoints(topics),
    }
    assert response == build(type(response), expected)


def expected_partition(partition: FetchedPartition, version: int) -> dict[str, Any]:
    values = {
        "partition_index": partition.partition,
        "error_code": partition.error_code,
        "high_watermark": partition.high_watermark,
        "last_stable_offset": partition.last_stable_offset,
        "log_start_offset": partition.log_start_offset,
        "preferred_read_replica": partition.preferred_replica,
        "records": partition.records or b"",
        "aborted_transactions": None
        if partition.aborted is None
        else [{"producer_id": producer_id, "first_offset": offset} for producer_id, offset in partition.aborted],
    }
    if partition.diverging_epoch is not None:
        values["diverging_epoch"] = dict(zip(("epoch", "end_offset"), partition.diverging_epoch, strict=True))
    return values | (current_leader(partition) if version >= 16 else {})


def current_leader(partition: ProducedPartition | FetchedPartition) -> dict[str, Any]:
    leader = partition.current_leader
    if leader is None:
        return {}
    return {"current_leader": {"leader_id": leader.node_id, "leader_epoch": leader.leader_epoch}}


def endpoints(topics: list[tuple[str, bytes, list[Any]]]) -> list[dict[str, Any]]:
    """Return each leader once, with the address that it had last."""
    named = [each.current_leader for _, _, partitions in topics for each in partitions if each.current_leader]
    by_id = {leader.node_id: leader for leader in named}
    return [
        {"node_id": leader.node_id, "host": leader.host, "port": leader.port, "rack": leader.rack}
        for leader in by_id.values()
    ]

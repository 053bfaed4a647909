"""Invalid names, and numbers that are too large, too small, or belong to another client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import Any

import pytest

from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode
from stratalog.records.builder import build_batch
from stratalog.storage.names import is_doomed_directory
from tests.broker.bad_input.client import RawClient
from tests.broker.bad_input.conftest import Attacked
from tests.broker.bad_input.healthy import TOPIC as HEALTHY
from tests.broker.bad_input.healthy import topic
from tests.broker.bad_input.memory import MB, PeakMemory
from tests.protocol.kio_messages import framed, request_frame, request_header

ILLEGAL = {
    "nothing": "",
    "a dot": ".",
    "two dots": "..",
    "a slash": "a/b",
    "a way out": "../../etc/passwd",
    "NUL": "a\0b",
    "250 characters": "x" * 250,
    "32 KiB": "x" * 32_000,
    "a space": "a b",
    "a new line": "a\nb",
    "no ASCII": "ünïcode",
    "a surrogate's neighbour": "\ufffd",
    "a colon": "a:b",
}
INT32 = Struct(">i")
MOST = 2**31 - 1
LEAST = -(2**31)


@pytest.fixture(scope="module")
def settings() -> dict[str, object]:
    return {"stratalog.max.partitions": 100}


@pytest.fixture
def topics_stay(attacked: Attacked, client: RawClient) -> Iterator[None]:
    def names() -> list[str]:
        return [each.name for each in client.request(ApiKey.METADATA, {"topics": None}, version=9).topics]

    before, files = names(), _names_in(attacked.process.data_dir)
    yield
    assert names() == before
    assert _names_in(attacked.process.data_dir) == files


def _names_in(directory: Path) -> set[str]:
    """Return the directories, except those of deleted topics, which are removed in the background."""
    return {each.name for each in directory.iterdir() if each.is_dir() and not is_doomed_directory(each.name)}


# Names


@pytest.mark.parametrize("name", ILLEGAL.values(), ids=ILLEGAL)
@pytest.mark.parametrize("version", [1, 4, 9, 12])
def test_an_invalid_name_is_not_created_by_metadata(
    client: RawClient, topics_stay: None, name: str, version: int
) -> None:
    asked = {"topics": [{"name": name}], "allow_auto_topic_creation": True}
    answer = client.request(ApiKey.METADATA, asked, version)
    assert [(each.error_code, each.name) for each in answer.topics] == [(ErrorCode.invalid_topic_exception, name)]


@pytest.mark.parametrize("name", ILLEGAL.values(), ids=ILLEGAL)
def test_an_invalid_name_is_not_created(client: RawClient, topics_stay: None, name: str) -> None:
    for version in (2, 5, 7):
        answer = client.request(ApiKey.CREATE_TOPICS, {"topics": [topic(name, 1)], "timeout": 5000}, version)
        assert [(each.error_code, each.name) for each in answer.topics] == [(ErrorCode.invalid_topic_exception, name)]


@pytest.mark.parametrize("name", ILLEGAL.values(), ids=ILLEGAL)
def test_an_invalid_name_is_not_created_by_any_other_request(client: RawClient, topics_stay: None, name: str) -> None:
    wrong = (ErrorCode.unknown_topic_or_partition, ErrorCode.invalid_topic_exception)
    records = bytes(build_batch([(None, b"value")]))
    data = {"name": name, "partition_data": [{"index": 0, "records": records}]}
    produced = client.request(ApiKey.PRODUCE, {"acks": -1, "timeout": 5000, "topic_data": [data]}, version=9)
    assert produced.responses[0].partition_responses[0].error_code in wrong
    fetch = {"topics": [{"topic": name, "partitions": [{"partition": 0, "partition_max_bytes": 100}]}]}
    assert client.request(ApiKey.FETCH, fetch, version=12).responses[0].partitions[0].error_code in wrong
    asked = {"name": name, "partitions": [{"partition_index": 0, "timestamp": -1}]}
    assert client.request(ApiKey.LIST_OFFSETS, {"topics": [asked]}).topics[0].partitions[0].error_code in wrong
    deleted = client.request(ApiKey.DELETE_TOPICS, {"topic_names": [name], "timeout": 5000}, version=5)
    assert deleted.responses[0].error_code in wrong
    grown = client.request(ApiKey.CREATE_PARTITIONS, {"topics": [{"name": name, "count": 3}], "timeout": 5000})
    assert grown.results[0].error_code in wrong
    committing: dict[str, Any] = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": ""}
    commit = {"name": name, "partitions": [{"partition_index": 0, "committed_offset": 1}]}
    committed = client.request(ApiKey.OFFSET_COMMIT, committing | {"topics": [commit]}, version=9)
    assert committed.topics[0].partitions[0].error_code in wrong
    resources = [{"resource_type": 2, "resource_name": name, "configuration_keys": None}]
    described = client.request(ApiKey.DESCRIBE_CONFIGS, {"resources": resources}).results[0]
    assert described.error_code in (*wrong, ErrorCode.invalid_request)


# Numbers


@pytest.mark.parametrize("count", [MOST, MOST - 1, 10**6, 101, 0, -2, LEAST])
def test_an_invalid_number_of_partitions_is_refused(
    attacked: Attacked, peak_memory: PeakMemory, client: RawClient, topics_stay: None, count: int
) -> None:
    peak_memory.reset()
    for version in (2, 7):
        answer = client.request(ApiKey.CREATE_TOPICS, {"topics": [topic("many", count)], "timeout": 5000}, version)
        assert answer.topics[0].error_code == ErrorCode.invalid_partitions
    grown = client.request(ApiKey.CREATE_PARTITIONS, {"topics": [{"name": HEALTHY, "count": count}], "timeout": 5000})
    assert grown.results[0].error_code == ErrorCode.invalid_partitions
    peak_memory.check(100 * MB)


def test_topics_beyond_the_limit_of_partitions_are_refused(client: RawClient) -> None:
    wanted = [topic(f"one-of-many-{number}", 1) for number in range(120)]
    answer = client.request(ApiKey.CREATE_TOPICS, {"topics": wanted, "timeout": 60_000})
    created = [each.name for each in answer.topics if each.error_code == ErrorCode.none]
    refused = [each for each in answer.topics if each.error_code == ErrorCode.invalid_partitions]
    assert 20 < len(created) < 100
    assert len(created) + len(refused) == 120
    client.request(ApiKey.DELETE_TOPICS, {"topics": [{"name": name} for name in created], "timeout": 60_000})


@pytest.mark.parametrize("factor", [0, 2, 3, -2, 2**15 - 1, -(2**15)])
def test_more_replicas_than_brokers_are_refused(client: RawClient, topics_stay: None, factor: int) -> None:
    wanted = {"name": "replicated", "num_partitions": 1, "replication_factor": factor}
    answer = client.request(ApiKey.CREATE_TOPICS, {"topics": [wanted], "timeout": 5000})
    assert answer.topics[0].error_code == ErrorCode.invalid_replication_factor


@pytest.mark.parametrize("offset", [2**63 - 1, 2**62, 10**6, -1, -2, -(2**63)])
def test_offsets_outside_the_log_are_out_of_range(client: RawClient, offset: int) -> None:
    partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1000}
    fetched = client.request(ApiKey.FETCH, {"topics": [{"topic": HEALTHY, "partitions": [partition]}]}, version=12)
    assert fetched.responses[0].partitions[0].error_code == ErrorCode.offset_out_of_range
    if offset != -1:  # for DeleteRecords, this is the high watermark
        wanted = {"name": HEALTHY, "partitions": [{"partition_index": 0, "offset": offset}]}
        deleted = client.request(ApiKey.DELETE_RECORDS, {"topics": [wanted], "timeout": 5000})
        assert deleted.topics[0].partitions[0].error_code == ErrorCode.offset_out_of_range


@pytest.mark.parametrize(
    "sizes",
    [
        {"min_bytes": -1, "max_bytes": -1, "partition_max_bytes": -1},
        {"min_bytes": LEAST, "max_bytes": LEAST, "partition_max_bytes": LEAST},
        {"min_bytes": 0, "max_bytes": 0, "partition_max_bytes": 0},
        {"min_bytes": 1, "max_bytes": MOST, "partition_max_bytes": MOST},
    ],
)
def test_strange_sizes_of_a_fetch_return_a_batch_and_at_most_the_brokers_limit(
    client: RawClient, sizes: dict[str, int]
) -> None:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": sizes["partition_max_bytes"]}
    request = sizes | {"max_wait": -1, "topics": [{"topic": HEALTHY, "partitions": [partition]}]}
    fetched = client.request(ApiKey.FETCH, request, version=12).responses[0].partitions[0]
    assert fetched.error_code == ErrorCode.none
    assert fetched.records


def test_a_wait_of_weeks_ends_when_the_client_disconnects(attacked: Attacked) -> None:
    clients = [attacked.client() for _ in range(50)]
    for client in clients:
        partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
        topics = [{"topic": HEALTHY, "partitions": [partition]}]
        client.send(request_frame(ApiKey.FETCH, 12, {"min_bytes": MOST, "max_wait": MOST, "topics": topics}))
    attacked.healthy.check()
    for client in clients:
        client.close()


@pytest.mark.parametrize(("session_id", "epoch"), [(1, 1), (MOST, 5), (-5, 7), (LEAST, MOST), (0, 1)])
def test_a_forged_session_is_not_found(client: RawClient, session_id: int, epoch: int) -> None:
    answer = client.request(ApiKey.FETCH, {"session_id": session_id, "session_epoch": epoch, "topics": []})
    assert answer.error_code == ErrorCode.fetch_session_id_not_found
    assert answer.responses == ()


def test_a_session_is_not_continued_with_the_wrong_epoch(attacked: Attacked, client: RawClient) -> None:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    opening = {"session_epoch": 0, "topics": [{"topic": HEALTHY, "partitions": [partition]}]}
    session_id = client.request(ApiKey.FETCH, opening, version=12).session_id
    assert session_id > 0
    with attacked.client() as thief:
        for epoch in (2, MOST, LEAST, -7):
            stolen = thief.request(ApiKey.FETCH, {"session_id": session_id, "session_epoch": epoch}, version=12)
            assert stolen.error_code == ErrorCode.invalid_fetch_session_epoch
        by_id = thief.request(ApiKey.FETCH, {"session_id": session_id, "session_epoch": 1}, version=13)
        assert by_id.error_code == ErrorCode.fetch_session_topic_id_error
    goes_on = client.request(ApiKey.FETCH, {"session_id": session_id, "session_epoch": 1}, version=12)
    assert goes_on.error_code == ErrorCode.none


def test_fetches_beyond_the_limit_of_sessions_are_served_without_one(client: RawClient) -> None:
    partition = Struct(">iiqiqib").pack(0, -1, 0, -1, -1, 100, 0)
    partitions = b"".join(INT32.pack(index) + partition[4:] for index in range(40_000))
    start = Struct(">iiiibii").pack(-1, 0, 0, 1000, 0, 0, 0) + b"\x02\x03no"
    body = start + b"\xc1\xb8\x02" + partitions + b"\0\1\1\0"  # the count is a varint
    sessions = []
    for _ in range(5):
        client.send(framed(request_header(ApiKey.FETCH, 12) + body))
        sessions.append(INT32.unpack_from(client.receive(), 4 + 1 + 4 + 2)[0])
    assert [bool(each) for each in sessions] == [True, True, False, False, False]
    for session_id in sessions[:2]:
        client.request(ApiKey.FETCH, {"session_id": session_id, "session_epoch": -1}, version=12)


# Numbers of other clients


@pytest.mark.parametrize("replica_id", [0, 1, 2, MOST])
def test_a_forged_replica_gets_no_records(client: RawClient, replica_id: int) -> None:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    topics = [{"topic": HEALTHY, "partitions": [partition]}]
    for version in (4, 12):
        fetched = client.request(ApiKey.FETCH, {"replica_id": replica_id, "topics": topics}, version)
        assert fetched.responses[0].partitions[0].error_code == ErrorCode.not_leader_or_follower
        assert not fetched.responses[0].partitions[0].records


def test_a_replica_id_in_the_tagged_field_is_respected(client: RawClient) -> None:
    described = client.request(ApiKey.METADATA, {"topics": [{"name": HEALTHY}]}, version=12)
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    topics = [{"topic_id": described.topics[0].topic_id, "partitions": [partition]}]
    state = {"replica_id": 2, "replica_epoch": 1}
    for version in (15, 18):
        fetched = client.request(ApiKey.FETCH, {"replica_state": state, "topics": topics}, version)
        assert fetched.responses[0].partitions[0].error_code == ErrorCode.not_leader_or_follower


@pytest.mark.parametrize("replica_id", [0, 2, MOST, -3, LEAST])
def test_a_forged_replica_gets_the_offsets_of_a_consumer(client: RawClient, replica_id: int) -> None:
    def asked(of_replica: int) -> tuple[Any, Any]:
        wanted = {"name": HEALTHY, "partitions": [{"partition_index": 0, "timestamp": -1}]}
        listed = client.request(ApiKey.LIST_OFFSETS, {"replica_id": of_replica, "topics": [wanted]})
        epochs = {"topic": HEALTHY, "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]}
        found = client.request(
            ApiKey.OFFSET_FOR_LEADER_EPOCH, {"replica_id": of_replica, "topics": [epochs]}, version=3
        )
        return listed.topics, found.topics

    assert asked(replica_id) == asked(-1)


@pytest.mark.parametrize("epoch", [1, MOST, -2, LEAST])
def test_an_invalid_leader_epoch_is_an_error(client: RawClient, epoch: int) -> None:
    partition = {"partition": 0, "partition_max_bytes": 1000, "current_leader_epoch": epoch}
    fetched = client.request(ApiKey.FETCH, {"topics": [{"topic": HEALTHY, "partitions": [partition]}]}, version=12)
    expected = (ErrorCode.unknown_leader_epoch, ErrorCode.fenced_leader_epoch)
    assert fetched.responses[0].partitions[0].error_code in expected
    wanted = {"partition_index": 0, "timestamp": -1, "current_leader_epoch": epoch}
    listed = client.request(ApiKey.LIST_OFFSETS, {"topics": [{"name": HEALTHY, "partitions": [wanted]}]})
    assert listed.topics[0].partitions[0].error_code in expected

"""Frames that no Kafka client sends: of any size, with absurd counts, or for unknown APIs and versions."""

from __future__ import annotations

from struct import Struct

import pytest

from stratalog.protocol.api_keys import VERSIONS, ApiKey
from stratalog.protocol.error_codes import ErrorCode
from tests.broker.bad_input.client import ClosedByBrokerError, RawClient
from tests.broker.bad_input.conftest import Attacked
from tests.broker.bad_input.memory import MB, PeakMemory
from tests.protocol.kio_messages import SIZE, filled, framed, request_body, request_frame, request_header

INT32 = Struct(">i")
LARGEST_CONTROL = 4 * MB
MOST = b"\x7f\xff\xff\xff"


@pytest.mark.parametrize(
    "start",
    [
        SIZE.pack(100 * MB + 1),
        SIZE.pack(2**31 - 1),
        SIZE.pack(-1),
        SIZE.pack(0),
        SIZE.pack(7) + b"\0\x12\0\0\0\0\0",
        SIZE.pack(LARGEST_CONTROL + 1) + request_header(ApiKey.METADATA, 9),
        b"GET /metrics HTTP/1.1\r\nHost: broker\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 100,
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"*1\r\n$4\r\nPING\r\n",
    ],
)
def test_bytes_that_are_not_a_frame_close_the_connection(client: RawClient, start: bytes) -> None:
    assert client.is_refused(start)


def test_a_huge_frame_that_is_not_sent_takes_no_memory(attacked: Attacked, peak_memory: PeakMemory) -> None:
    peak_memory.reset()
    clients = [attacked.client() for _ in range(50)]
    for client in clients:
        client.send(SIZE.pack(100 * MB) + request_header(ApiKey.PRODUCE, 9) + b"\0" * 20_000)
    attacked.healthy.check()
    peak_memory.check(50 * MB)
    for client in clients:
        client.close()


def test_an_array_of_two_billion_elements_closes_the_connection(client: RawClient) -> None:
    body = b"\xff\xff\xff\xff\x0f" + b"\0" * 10
    assert client.is_refused(framed(request_header(ApiKey.METADATA, 12) + body))


@pytest.mark.parametrize("key", ApiKey)
def test_the_largest_counts_anywhere_in_a_request_are_answered_or_refused(
    attacked: Attacked, peak_memory: PeakMemory, key: ApiKey
) -> None:
    version = VERSIONS[key].highest
    body = filled(key, version)
    peak_memory.reset()
    for position in range(0, len(body), 3):
        for hostile in (MOST, b"\xff\xff\xff\xff\x07"):
            hurt = body[:position] + hostile + body[position + len(hostile) :]
            with attacked.client() as client:
                client.is_refused(
                    framed(request_header(key, version) + hurt) + request_frame(ApiKey.API_VERSIONS, 0, {})
                )
    peak_memory.check(60 * MB)


@pytest.mark.parametrize("size", [MB, LARGEST_CONTROL - 100])
def test_a_request_full_of_tiny_elements_is_refused_without_taking_memory(
    attacked: Attacked, peak_memory: PeakMemory, size: int
) -> None:
    peak_memory.reset()
    for key, version, start, element in (
        (ApiKey.METADATA, 9, b"", b"\1\0"),
        (ApiKey.FETCH, 12, Struct(">iiiibii").pack(-1, 0, 0, 0, 0, 0, -1), b"\1\1\0"),
        (ApiKey.DESCRIBE_CONFIGS, 4, b"", b"\2\1\1\0"),
        (ApiKey.OFFSET_FETCH, 8, b"", b"\1\1\0"),
        (ApiKey.LIST_OFFSETS, 6, b"\xff\xff\xff\xff\0", b"\1\1\0"),
    ):
        count = size // len(element) - 20
        body = start + _varint(count + 1) + element * count + b"\1\1\1\0"
        with attacked.client() as client:
            assert client.is_refused(framed(request_header(key, version) + body))
    peak_memory.check(60 * MB)


@pytest.mark.parametrize("key", [-1, 4, 5, 6, 7, 17, 24, 36, 52, 71, 72, 92, 1000, 2**15 - 1, -(2**15)])
def test_an_unknown_key_closes_the_connection(client: RawClient, key: int) -> None:
    assert client.is_refused(framed(request_header(key, 0) + b"\0" * 10))


@pytest.mark.parametrize("key", [key for key in ApiKey if key is not ApiKey.API_VERSIONS])
def test_an_unknown_version_closes_the_connection(attacked: Attacked, key: ApiKey) -> None:
    lowest, highest, _ = VERSIONS[key]
    for version in {-1, lowest - 1, highest + 1, 99, 2**15 - 1}:
        with attacked.client() as client:
            assert client.is_refused(framed(request_header(key, version) + b"\0" * 10))


@pytest.mark.parametrize("version", [5, 99, 2**15 - 1, -1])
def test_an_unknown_version_of_api_versions_is_answered_in_version_0(client: RawClient, version: int) -> None:
    header = request_header(ApiKey.API_VERSIONS, version, correlation_id=99)
    client.send(framed(header + b"whatever there may be in that version"))
    payload = client.receive()
    keys = Struct(">ihi hhh")
    assert len(payload) == keys.size
    correlation_id, error, count, key, lowest, highest = keys.unpack(payload)
    assert (correlation_id, error, count) == (99, 35, 1)
    assert (key, lowest, highest) == (ApiKey.API_VERSIONS, 0, VERSIONS[ApiKey.API_VERSIONS].highest)
    assert client.request(ApiKey.API_VERSIONS, {"client_software_name": "a", "client_software_version": "1"}).api_keys


@pytest.mark.parametrize("name", ["", " ", "a b", "-a", "a" * 100_000, "${jndi:ldap://x}"])
def test_a_strange_name_of_a_clients_software_is_an_error(client: RawClient, name: str) -> None:
    strange = {"client_software_name": name, "client_software_version": "1"}
    answer = client.request(ApiKey.API_VERSIONS, strange, version=3)
    expected = ErrorCode.none if set(name) == {"a"} else ErrorCode.invalid_request
    assert answer.error_code == expected


@pytest.mark.parametrize(
    "client_id", [None, "", "x" * (2**15 - 1), "ü" * 16_000, "a\nERROR forged: a line of the log\n"]
)
def test_any_client_id_is_accepted(attacked: Attacked, client_id: str | None) -> None:
    with attacked.client() as client:
        body = request_body(ApiKey.FIND_COORDINATOR, 3, {"key": "group"})
        assert client.request_with(ApiKey.FIND_COORDINATOR, 3, body, client_id).error_code == ErrorCode.none
        joining = {"group_id": "named", "session_timeout": 10_000, "protocol_type": "consumer"}
        protocols = {"protocols": [{"name": "range", "metadata": b""}]}
        body = request_body(ApiKey.JOIN_GROUP, 5, joining | protocols)
        assert client.request_with(ApiKey.JOIN_GROUP, 5, body, client_id).error_code == ErrorCode.member_id_required


def test_a_truncated_or_binary_client_id_closes_the_connection(attacked: Attacked) -> None:
    for written in (b"\x7f\xff" + b"short", b"\x00\x02\xff\xfe", b"\xff\xfe"):
        with attacked.client() as client:
            assert client.is_refused(framed(b"\0\x12\0\0" + INT32.pack(1) + written))


def test_requests_after_a_refused_one_are_not_served(client: RawClient) -> None:
    good = request_frame(ApiKey.API_VERSIONS, 0, {}, correlation_id=7)
    client.send(good + framed(request_header(999, 0)) + good)
    assert SIZE.unpack_from(client.receive())[0] == 7
    with pytest.raises(ClosedByBrokerError):
        client.receive()


def test_extra_bytes_after_a_request_are_ignored_as_in_kafka(client: RawClient) -> None:
    """librdkafka's Metadata requests have extra bytes."""
    body = request_body(ApiKey.METADATA, 9, {"topics": []}) + b"\0\0\0"
    assert client.request_with(ApiKey.METADATA, 9, body).topics == ()


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)

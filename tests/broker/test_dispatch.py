"""From frames to handlers: which requests are served, which close the connection, and how large a frame may be."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from struct import Struct
from typing import Any

import pytest

from stratalog.broker.broker import Broker
from stratalog.broker.dispatch import LARGEST_CONTROL_REQUEST
from stratalog.broker.requests import Reply, RequestContext
from stratalog.broker.settings import BrokerConfig
from stratalog.errors import MalformedRequestError
from stratalog.net.connection import RefusedConnectionError
from stratalog.protocol.api_keys import VERSIONS, ApiKey
from tests.broker.data_lab import HOST, DataLab, joined
from tests.protocol.kio_messages import framed, request_frame, request_header


def test_a_request_reaches_its_handler_with_the_fields_of_its_header(data_lab: DataLab) -> None:
    seen: list[tuple[Any, RequestContext]] = []

    def handler(request: Any, context: RequestContext) -> Reply:
        seen.append((request, context))
        return {"topics": []}

    data_lab.routes[ApiKey.LIST_OFFSETS] = handler
    for client_id in ("a client", "", None):
        data_lab.serve(request_frame(ApiKey.LIST_OFFSETS, 6, {"replica_id": -7}, client_id=client_id))
        request, context = seen[-1]
        assert request.replica_id == -7
        assert context == RequestContext(ApiKey.LIST_OFFSETS, 6, client_id, HOST)
    assert data_lab.counters.requests[ApiKey.LIST_OFFSETS] == 3


def test_tagged_fields_of_the_header_are_skipped(data_lab: DataLab) -> None:
    data_lab.routes[ApiKey.LIST_OFFSETS] = lambda request, context: {"topics": []}
    frame = request_frame(ApiKey.LIST_OFFSETS, 6, {}, client_id=None)
    tagged = frame[4:14] + b"\x02\x00\x01a\x05\x02bc" + frame[15:]
    assert joined(data_lab.serve(framed(tagged))) == joined(data_lab.serve(frame))


def test_a_handler_that_waits_is_answered_later(data_lab: DataLab) -> None:
    async def handler(request: Any, context: RequestContext) -> Reply:
        await asyncio.sleep(0)
        return {"topics": [{"name": "late", "partitions": []}]}

    data_lab.routes[ApiKey.LIST_OFFSETS] = handler
    assert data_lab.ask(ApiKey.LIST_OFFSETS, {}).topics[0].name == "late"


@pytest.mark.parametrize("waits", [False, True])
def test_a_request_that_a_handler_finds_malformed_closes_the_connection(data_lab: DataLab, waits: bool) -> None:
    def fail(request: Any, context: RequestContext) -> Reply:
        raise MalformedRequestError("too many of something")

    async def fail_later(request: Any, context: RequestContext) -> Reply:
        await asyncio.sleep(0)
        raise MalformedRequestError("too many of something")

    data_lab.routes[ApiKey.LIST_OFFSETS] = fail_later if waits else fail
    with pytest.raises(RefusedConnectionError, match="too many of something"):
        data_lab.ask(ApiKey.LIST_OFFSETS, {})
    assert data_lab.counters.refused_requests == 1


@pytest.mark.parametrize("payload", [b"", b"\0", b"\0\x12", b"\0\x12\0\0\0\0\0", b"\0\x12\0\0\0\0\0\0\0\x05abc"])
def test_a_truncated_header_closes_the_connection(data_lab: DataLab, payload: bytes) -> None:
    with pytest.raises(RefusedConnectionError, match="can't be read"):
        data_lab.serve(framed(payload))


@pytest.mark.parametrize("key", [-1, 4, 17, 71, 2**15 - 1])
def test_an_unknown_key_closes_its_connection(data_lab: DataLab, key: int) -> None:
    with pytest.raises(RefusedConnectionError, match=f"API key {key}, which is not served"):
        data_lab.serve(framed(request_header(key, 0)))
    assert data_lab.counters.refused_requests == 1


def test_an_unknown_version_closes_the_connection_and_the_message_names_the_served_versions(data_lab: DataLab) -> None:
    with pytest.raises(RefusedConnectionError, match="LIST_OFFSETS v12 is not served; 1 to 11 are"):
        data_lab.serve(framed(request_header(ApiKey.LIST_OFFSETS, 12)))


def test_an_unknown_version_of_api_versions_is_answered_without_reading_its_body(data_lab: DataLab) -> None:
    answer = joined(data_lab.serve(framed(request_header(ApiKey.API_VERSIONS, 77, correlation_id=5) + b"\xff" * 9)))
    assert Struct(">iihihhh").unpack(answer) == (16, 5, 35, 1, 18, 0, VERSIONS[ApiKey.API_VERSIONS].highest)


def test_the_header_of_api_versions_has_no_tags_in_any_version(data_lab: DataLab) -> None:
    for version in range(5):
        software = {"client_software_name": "lab", "client_software_version": "1"}
        assert data_lab.ask(ApiKey.API_VERSIONS, software, version).error_code == 0


def test_only_produce_requests_may_have_the_largest_size(tmp_path: Path) -> None:
    with DataLab(tmp_path, socket_request_max_bytes=50_000_000) as lab:
        assert lab.dispatcher.small_frame == LARGEST_CONTROL_REQUEST
        for start, largest in (
            (b"", 50_000_000),
            (b"\0", 50_000_000),  # not known yet
            (b"\0\0", 50_000_000),
            (b"\0\0\0\x09", 50_000_000),
            (b"\0\1", LARGEST_CONTROL_REQUEST),
            (b"\xff\xff", LARGEST_CONTROL_REQUEST),
        ):
            assert lab.dispatcher.largest_frame(memoryview(start)) == largest
    with DataLab(tmp_path, socket_request_max_bytes=1000) as lab:
        assert lab.dispatcher.small_frame == 1000
        assert lab.dispatcher.largest_frame(memoryview(b"\0\3")) == 1000


def test_large_requests_are_heavy_unless_they_have_records(data_lab: DataLab) -> None:
    assert not data_lab.dispatcher.is_heavy(memoryview(request_header(ApiKey.PRODUCE, 9)))
    for key in (ApiKey.FETCH, ApiKey.METADATA, ApiKey.OFFSET_COMMIT):
        assert data_lab.dispatcher.is_heavy(memoryview(request_header(key, 3)))


def test_every_api_that_is_advertised_has_a_handler(tmp_path: Path) -> None:
    async def routed() -> set[ApiKey]:
        broker = await Broker.start(tmp_path, BrokerConfig.parse({}), "127.0.0.1", 0)
        try:
            return set(broker._routes())
        finally:
            await broker.stop(0)

    assert asyncio.run(routed()) | {ApiKey.PRODUCE, ApiKey.FETCH} == set(VERSIONS)


def test_a_reply_that_is_encoded_already_is_sent_as_it_is(data_lab: DataLab) -> None:
    data_lab.routes[ApiKey.LIST_OFFSETS] = lambda request, context: bytearray(b"a body")
    assert joined(data_lab.serve(request_frame(ApiKey.LIST_OFFSETS, 6, {}))).endswith(b"\0a body")

    async def later(request: Any, context: RequestContext) -> bytearray:
        return bytearray(b"another")

    data_lab.routes[ApiKey.LIST_OFFSETS] = later

    async def answered() -> bytes:
        response = data_lab.serve(request_frame(ApiKey.LIST_OFFSETS, 6, {}))
        assert isinstance(response, Awaitable)
        return joined(await response)

    assert asyncio.run(answered()).endswith(b"\0another")

"""Connections that are slow, silent, too many, or never read, to a broker with low limits."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from stratalog.protocol.api_keys import ApiKey
from tests.broker.bad_input.client import ClosedByBrokerError, RawClient
from tests.broker.bad_input.conftest import IS_MEMORY_CHECKED
from tests.broker.bad_input.healthy import HealthyClient, topic
from tests.broker.bad_input.memory import MB, PeakMemory, resident
from tests.broker.process import BrokerProcess
from tests.protocol.kio_messages import SIZE, request_frame, request_header

IDLE_SECONDS = 2.0
MOST_CONNECTIONS = 60


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {
        "connections.max.idle.ms": int(IDLE_SECONDS * 1000),
        "max.connections": MOST_CONNECTIONS,
        "socket.request.max.bytes": 8 * MB,
        "queued.max.request.bytes": 24 * MB,
        "socket.send.buffer.bytes": 50_000,
    }
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", settings) as process:
        yield process
    assert process.errors() == []


@pytest.fixture(params=IS_MEMORY_CHECKED)
def peak_memory(request: pytest.FixtureRequest, broker: BrokerProcess) -> PeakMemory:
    return PeakMemory(broker.pid, resident(broker.pid), is_checked=request.param)


@pytest.fixture(autouse=True)
def healthy_client_is_served(broker: BrokerProcess, peak_memory: PeakMemory) -> Iterator[None]:
    peak_memory.reset()
    yield
    healthy = HealthyClient(broker.port)
    healthy.check()
    healthy.close()
    assert broker.is_running
    assert broker.errors() == []
    peak_memory.check(80 * MB)


def is_closed(client: RawClient) -> bool:
    try:
        client.receive()
    except ClosedByBrokerError:
        return True
    return False


def test_silent_and_half_open_connections_are_closed(broker: BrokerProcess) -> None:
    started = time.monotonic()
    silent, in_the_middle, after_a_request = (RawClient(broker.port) for _ in range(3))
    in_the_middle.send(request_frame(ApiKey.METADATA, 9, {"topics": None})[:-1])
    after_a_request.request(ApiKey.API_VERSIONS, {}, version=0)
    for client in (silent, in_the_middle, after_a_request):
        assert is_closed(client)
        client.close()
    assert time.monotonic() - started > IDLE_SECONDS * 0.9


def test_slow_clients_do_not_affect_others(broker: BrokerProcess) -> None:
    frame = SIZE.pack(8 * MB) + request_header(ApiKey.PRODUCE, 9)
    slow = [RawClient(broker.port) for _ in range(20)]
    healthy = HealthyClient(broker.port)
    for position in range(10):
        for client in slow:
            client.send(frame[position : position + 1])
        healthy.check()
    healthy.close()
    for client in slow:
        client.close()


def test_connections_beyond_the_limit_are_refused_until_others_go(broker: BrokerProcess) -> None:
    healthy = HealthyClient(broker.port)
    many = [RawClient(broker.port) for _ in range(MOST_CONNECTIONS + 20)]
    refused = 0
    for client in many:
        try:
            client.request(ApiKey.API_VERSIONS, {}, version=0)
        except ClosedByBrokerError:
            refused += 1
    healthy.check()
    assert 20 < refused < MOST_CONNECTIONS
    for client in many:
        client.close()
    healthy.close()


def test_large_requests_that_stall_make_room_for_others(broker: BrokerProcess) -> None:
    stalled = [RawClient(broker.port) for _ in range(6)]
    healthy = HealthyClient(broker.port)
    frame = SIZE.pack(8 * MB) + request_header(ApiKey.PRODUCE, 9) + b"\0" * (8 * MB - 100)
    for client in stalled[:3]:  # as much as clients may make the broker hold, and more
        client.send(frame)
    for client in stalled[3:]:
        client.send(frame[: 300 * 1024])
    healthy.check()
    healthy.check()
    healthy.close()
    for client in stalled:
        client.close()


def test_answers_that_are_not_read_do_not_pile_up(broker: BrokerProcess, peak_memory: PeakMemory) -> None:
    with RawClient(broker.port) as admin:
        admin.request(ApiKey.CREATE_TOPICS, {"topics": [topic("wide", 900)], "timeout": 60_000})
    question = request_frame(ApiKey.METADATA, 12, {"topics": [{"name": "wide"}]})
    peak_memory.reset()
    lazy = [RawClient(broker.port, receive_buffer=5000) for _ in range(40)]
    for client in lazy:
        client.send(question * 500)  # responses of about 20 MB each
    healthy = HealthyClient(broker.port)
    healthy.check()
    healthy.close()
    for client in lazy:
        client.close()

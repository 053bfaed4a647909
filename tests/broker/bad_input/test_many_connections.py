"""A thousand connections that request much and never read, with the default settings."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode
from tests.broker.bad_input.client import RawClient
from tests.broker.bad_input.conftest import Attacked
from tests.broker.bad_input.healthy import topic
from tests.broker.bad_input.memory import MB, PeakMemory
from tests.protocol.kio_messages import request_frame

CONNECTIONS = 1000


@pytest.fixture
def many_descriptors() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < CONNECTIONS + 200:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(CONNECTIONS + 200, hard), hard))


def test_a_thousand_clients_that_never_read_take_little_memory(
    attacked: Attacked, peak_memory: PeakMemory, many_descriptors: None
) -> None:
    with attacked.client() as admin:
        admin.request(ApiKey.CREATE_TOPICS, {"topics": [topic("wide", 1000)], "timeout": 60_000})
    peak_memory.reset()
    question = request_frame(ApiKey.METADATA, 12, {"topics": None}) * 20
    lazy = [RawClient(attacked.port, receive_buffer=5000) for _ in range(CONNECTIONS)]
    for client in lazy:
        client.send(question)
    for _ in range(5):
        attacked.healthy.check()
    peak_memory.check(300 * MB)
    for client in lazy:
        client.close()
    attacked.healthy.check()


def test_connections_do_not_take_the_descriptors_that_the_logs_need(attacked: Attacked, many_descriptors: None) -> None:
    pid = attacked.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    used = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 250, before[1]))
    clients = [attacked.client() for _ in range(400)]
    refused = sum(client.is_refused(request_frame(ApiKey.API_VERSIONS, 0, {})) for client in clients)
    assert 150 < refused < 350
    with_room = {"topics": [topic("meanwhile", 20)], "timeout": 30_000}
    accepted = next(client for client in clients if not client.is_refused(request_frame(ApiKey.API_VERSIONS, 0, {})))
    created = accepted.request(ApiKey.CREATE_TOPICS, with_room).topics[0]
    assert created.error_code == ErrorCode.none, created
    for client in clients:
        client.close()
    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)

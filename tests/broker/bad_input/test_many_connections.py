"""A thousand connections that ask for much and never read, with the settings that a broker has by default."""

from __future__ import annotations

import resource

import pytest

from stratalog.protocol.api_keys import ApiKey
from tests.broker.bad_input.client import RawClient
from tests.broker.bad_input.conftest import Attacked
from tests.broker.bad_input.healthy import topic
from tests.broker.bad_input.memory import MB, peak, reset_peak
from tests.protocol.kio_messages import request_frame

CONNECTIONS = 1000


@pytest.fixture
def many_descriptors() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < CONNECTIONS + 200:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(CONNECTIONS + 200, hard), hard))


def test_a_thousand_clients_that_never_read_what_they_asked_for(attacked: Attacked, many_descriptors: None) -> None:
    with attacked.client() as admin:
        admin.request(ApiKey.CREATE_TOPICS, {"topics": [topic("wide", 1000)], "timeout": 60_000})
    reset_peak(attacked.process.pid)
    question = request_frame(ApiKey.METADATA, 12, {"topics": None}) * 20
    lazy = [RawClient(attacked.port, receive_buffer=5000) for _ in range(CONNECTIONS)]
    for client in lazy:
        client.send(question)
    for _ in range(5):
        attacked.healthy.check()
    most = peak(attacked.process.pid) - attacked.resident_before
    for client in lazy:
        client.close()
    attacked.healthy.check()
    assert most < 300 * MB

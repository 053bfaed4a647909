"""One broker in a process of its own for all scenarios in which nothing happens to it, and the clients."""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Callable, Iterator

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python's own
    import kafka  # noqa: F401

from tests.broker.process import BrokerProcess
from tests.clients.aio import AioClient, LoopThread
from tests.clients.confluent import ConfluentClient
from tests.clients.interface import Client, Place
from tests.clients.kafka_python import KafkaPythonClient
from tests.clients.topics import create_topic

CLIENTS = ("confluent-kafka", "kafka-python", "aiokafka")
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.consumer.session.timeout.ms": 6000,
    "group.consumer.heartbeat.interval.ms": 300,
}
_numbers = itertools.count()


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", SETTINGS) as running:
        yield running


@pytest.fixture
def broker(shared_broker: BrokerProcess) -> Iterator[BrokerProcess]:
    """No scenario may make it log an error, let alone end it."""
    before = len(shared_broker.errors())
    yield shared_broker
    assert shared_broker.is_running, shared_broker.log.read_text()[-4000:]
    assert shared_broker.errors()[before:] == []


@pytest.fixture(scope="session")
def loop_thread() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.close()


@pytest.fixture(scope="session")
def clients(loop_thread: LoopThread) -> dict[str, Client]:
    everyone = (ConfluentClient(), KafkaPythonClient(), AioClient(loop_thread))
    return {client.name: client for client in everyone}


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest, clients: dict[str, Client]) -> Client:
    return clients[request.param]


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """For a topic or a group that no other test has."""
    return re.sub(r"[^a-zA-Z0-9]+", "-", request.node.name)[:100] + f"-{next(_numbers)}"


@pytest.fixture
def new_topic(broker: BrokerProcess, name: str) -> Callable[[int], list[Place]]:
    """Makes a topic of so many partitions."""

    def make(partitions: int = 1) -> list[Place]:
        create_topic(broker.address, name, partitions)
        return [Place(name, partition) for partition in range(partitions)]

    return make


def needs(client: Client, feature: str) -> None:
    """Skips, by name, what this client can't do against any broker."""
    if feature in client.lacks:
        pytest.skip(f"{client.name} has no {feature}")

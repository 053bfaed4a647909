"""The broker that scenarios share unless they stop or kill it, and the clients."""

from __future__ import annotations

import gc
import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.broker.process import BrokerProcess
from tests.campaigns import slow
from tests.clients.admin import create_topic
from tests.clients.aio import LoopThread
from tests.clients.everyone import CLIENTS, make_client
from tests.clients.interface import Client, Place

HERE = Path(__file__).parent
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1000,
    "group.consumer.session.timeout.ms": 3000,
    "group.consumer.heartbeat.interval.ms": 300,
}
_numbers = itertools.count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore ResourceWarnings: clients leave sockets to the garbage collector, which is no fault of the broker."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))


@pytest.fixture(autouse=True)
def no_garbage_for_other_tests() -> Iterator[None]:
    yield
    gc.collect()


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", SETTINGS) as running:
        yield running


@pytest.fixture
def broker(shared_broker: BrokerProcess) -> Iterator[BrokerProcess]:
    """Return the shared broker. Fails a scenario that makes it log an error or stop."""
    before = len(shared_broker.errors())
    yield shared_broker
    assert shared_broker.is_running, shared_broker.logs[-4000:]
    assert shared_broker.errors()[before:] == []


@pytest.fixture(scope="session")
def loop_thread() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.close()


@pytest.fixture(scope="session")
def clients(loop_thread: LoopThread) -> dict[str, Client]:
    return {client: make_client(client, loop_thread) for client in CLIENTS}


# `make test` runs only the most used client.
@pytest.fixture(params=[CLIENTS[0], *(slow(client) for client in CLIENTS[1:])])
def client(request: pytest.FixtureRequest, clients: dict[str, Client]) -> Client:
    return clients[request.param]


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Return a name for a topic or a group that no other test uses."""
    return re.sub(r"[^a-zA-Z0-9]+", "-", request.node.name)[:100] + f"-{next(_numbers)}"


@pytest.fixture
def new_topic(broker: BrokerProcess, name: str) -> Callable[[int], list[Place]]:
    """Return a function that creates a topic and returns its name."""

    def make(partitions: int = 1) -> list[Place]:
        create_topic(broker.address, name, partitions)
        return [Place(name, partition) for partition in range(partitions)]

    return make

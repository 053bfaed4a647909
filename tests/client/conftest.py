"""Brokers for the client's tests: Stratalog, or Apache Kafka with `--kafka`. Tests share a broker unless they harm it.

A test marked `any_broker` uses only `bootstrap`, `topic`, `new_topic` and `name`, and must pass with both brokers; with
`--kafka` all other tests are skipped. A test that kills, stops or fills a broker uses `own_broker`.
"""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

import pytest
from confluent_kafka import KafkaException

from tests.broker.process import FOR_TESTS, BrokerProcess
from tests.clients.admin import create_topic
from tests.compat.kafka_server import KafkaServer

HERE = Path(__file__).parent
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "3000",
    "group.consumer.heartbeat.interval.ms": "300",
}
# Kafka, unlike Stratalog, limits these values from below.
KAFKA_SETTINGS = {name: str(value) for name, value in (SETTINGS | FOR_TESTS).items()} | {
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "100",
}
CREATE_SECONDS = 30
_numbers = itertools.count()


class NewTopic(Protocol):
    def __call__(self, partitions: int = 1, config: Mapping[str, str] | None = None) -> str: ...


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--kafka"):
        return
    ours = [item for item in items if HERE in item.path.parents and item.get_closest_marker("any_broker") is None]
    config.hook.pytest_deselected(items=ours)
    items[:] = [item for item in items if item not in ours]


@pytest.fixture(scope="session")
def shared_broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess | KafkaServer]:
    directory = tmp_path_factory.mktemp("broker")
    if request.config.getoption("--kafka"):
        with KafkaServer(directory, KAFKA_SETTINGS) as kafka:
            yield kafka
    else:
        with BrokerProcess(directory / "data", SETTINGS) as ours:
            yield ours


@pytest.fixture
def bootstrap(shared_broker: BrokerProcess | KafkaServer) -> Iterator[str]:
    """Return host:port of the shared broker. Fails a test that makes the broker log an error or stop."""
    if isinstance(shared_broker, KafkaServer):
        yield shared_broker.bootstrap
        return
    before = len(shared_broker.errors())
    yield shared_broker.address
    assert shared_broker.is_running, shared_broker.logs[-4000:]
    assert shared_broker.errors()[before:] == []


@pytest.fixture
def broker(bootstrap: str, shared_broker: BrokerProcess | KafkaServer) -> BrokerProcess:
    """Return the shared broker itself, for its data directory and log. Skipped with Apache Kafka."""
    if isinstance(shared_broker, KafkaServer):
        pytest.skip("looks into a Stratalog broker")
    return shared_broker


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Start a broker that the test may kill, stop and start again. Its port stays the same."""
    with BrokerProcess(tmp_path / "data", SETTINGS) as running:
        yield running


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Return a name for a topic or a group that no other test uses."""
    return f"{re.sub(r'[^a-zA-Z0-9]+', '-', request.node.name)[:100]}-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def new_topic(bootstrap: str, name: str) -> NewTopic:
    """Return a function that creates a topic and returns its name."""
    count = itertools.count()

    def make(partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        number = next(count)
        topic = name if number == 0 else f"{name}-{number}"
        _until_registered(lambda: create_topic(bootstrap, topic, partitions, config))
        return topic

    return make


@pytest.fixture
def topic(new_topic: NewTopic) -> str:
    """Create a topic with one partition and return its name."""
    return new_topic()


def _until_registered(create: Callable[[], None]) -> None:
    """Call `create` again while a Kafka that has just started has no broker registered for the partitions."""
    deadline = time.monotonic() + CREATE_SECONDS
    while True:
        try:
            return create()
        except KafkaException as error:
            if "INVALID_REPLICATION_FACTOR" not in str(error) or time.monotonic() > deadline:
                raise
        time.sleep(0.1)

"""A broker a module, and a healthy client that looks after each attack whether it notices anything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.broker.bad_input.client import RawClient
from tests.broker.bad_input.healthy import HealthyClient
from tests.broker.bad_input.memory import MB, resident
from tests.broker.process import BrokerProcess

GROWTH = 100 * MB  # what attacks of a whole module may leave behind: caches, and arenas that Python keeps


@dataclass
class Attacked:
    """The broker of a module, with some topics."""

    process: BrokerProcess
    healthy: HealthyClient
    resident_before: int

    @property
    def port(self) -> int:
        return self.process.port

    def client(self, **given: float) -> RawClient:
        return RawClient(self.port, **given)  # type: ignore[arg-type]

    def grown(self) -> int:
        return resident(self.process.pid) - self.resident_before


@pytest.fixture(scope="module")
def settings() -> dict[str, object]:
    """A module may have its own."""
    return {}


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory, settings: dict[str, object]) -> Iterator[Attacked]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", settings) as process:
        healthy = HealthyClient(process.port)
        healthy.check()
        yield Attacked(process, healthy, resident(process.pid))
        healthy.close()
    assert process.errors() == []


@pytest.fixture(autouse=True)
def notices_nothing(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test that attacks."""
    yield
    if "attacked" not in request.fixturenames:
        return
    attacked: Attacked = request.getfixturevalue("attacked")
    attacked.healthy.check()
    assert attacked.process.is_running
    assert attacked.process.errors() == []
    assert attacked.grown() < GROWTH


@pytest.fixture
def client(attacked: Attacked) -> Iterator[RawClient]:
    with attacked.client() as client:
        yield client

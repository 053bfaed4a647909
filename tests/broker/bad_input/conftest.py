"""A broker for each module, and a healthy client that looks for side effects after each attack."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.broker.bad_input.client import RawClient
from tests.broker.bad_input.healthy import HealthyClient
from tests.broker.bad_input.memory import MB, PeakMemory, resident
from tests.broker.process import BrokerProcess

GROWTH = 100 * MB  # caches, and arenas that Python keeps, after the attacks of a whole module


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

    def metric(self, name: str) -> int:
        """Return a metric without labels. The broker counts it itself, so it is exact."""
        page = self.process.ready_line.split("metrics on ")[1].strip()
        with urllib.request.urlopen(page, timeout=30) as response:
            match = re.search(rf"^{name} (\S+)$", response.read().decode(), re.MULTILINE)
        assert match is not None
        return int(float(match[1]))

    def coordinator_state(self) -> int:
        """Return the bytes of groups, members, committed offsets and transactional ids."""
        return self.metric("stratalog_coordinator_state_bytes")


@pytest.fixture(scope="module")
def settings() -> dict[str, object]:
    """The broker's settings, which a module may override."""
    return {}


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory, settings: dict[str, object]) -> Iterator[Attacked]:
    data = tmp_path_factory.mktemp("broker") / "data"
    with BrokerProcess(data, settings, arguments=("--metrics", "127.0.0.1:0")) as process:
        healthy = HealthyClient(process.port)
        healthy.check()
        yield Attacked(process, healthy, resident(process.pid))
        healthy.close()
    assert process.errors() == []


IS_MEMORY_CHECKED = [pytest.param(False, id="quick"), pytest.param(True, id="memory", marks=pytest.mark.slow)]
"""A parameter that makes a test check the peak memory in slow runs, and skip the check by default."""


@pytest.fixture(params=IS_MEMORY_CHECKED)
def peak_memory(request: pytest.FixtureRequest, attacked: Attacked) -> PeakMemory:
    return PeakMemory(attacked.process.pid, attacked.resident_before, is_checked=request.param)


@pytest.fixture(autouse=True)
def healthy_client_is_served(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check after each test that the attacks had no effect on other clients."""
    yield
    if "attacked" not in request.fixturenames:
        return
    attacked: Attacked = request.getfixturevalue("attacked")
    attacked.healthy.check()
    assert attacked.process.is_running
    assert attacked.process.errors() == []
    if request.node.get_closest_marker("slow") is not None:
        assert resident(attacked.process.pid) - attacked.resident_before < GROWTH


@pytest.fixture
def client(attacked: Attacked) -> Iterator[RawClient]:
    with attacked.client() as client:
        yield client

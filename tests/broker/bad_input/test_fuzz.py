"""20,000 mutated frames of all keys and versions against a broker process. `python -m bench.fuzz` sends a million."""

from __future__ import annotations

from pathlib import Path

from tests.broker.bad_input.attack import Attack, create_topics, prepare
from tests.broker.bad_input.fuzzer import Fuzzer
from tests.broker.bad_input.healthy import HealthyClient
from tests.broker.bad_input.memory import MB, resident
from tests.broker.process import BrokerProcess

FRAMES = 20_000
SEED = 20_261
SETTINGS = {
    "stratalog.max.partitions": 150,  # or the fuzzer makes thousands of logs, which are no bad input
    "group.initial.rebalance.delay.ms": 0,
}


def test_a_broker_survives_thousands_of_mutated_frames_and_a_healthy_client_notices_nothing(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", SETTINGS) as broker:
        healthy = HealthyClient(broker.port)
        healthy.check()
        before = resident(broker.pid)
        world = prepare(broker.port)
        fuzzer = Fuzzer(SEED, world)
        attack = Attack(broker.port, fuzzer)
        for start in range(0, FRAMES, 2000):
            attack.run(range(start, start + 2000))
            healthy.check()
            create_topics(broker.port)
        grown = resident(broker.pid) - before
        healthy.close()
        assert broker.is_running
    assert broker.errors() == []
    assert attack.outcomes["answered"] > FRAMES / 5
    assert attack.outcomes["closed"] > FRAMES / 5
    assert grown < 150 * MB

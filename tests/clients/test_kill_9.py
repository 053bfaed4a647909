"""kill -9 during a produce load, again and again, on the same directory and port."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.broker.process import BrokerProcess
from tests.campaigns import quick_and_full
from tests.clients.admin import create_topic
from tests.clients.produce_load import RECOVERING, ProduceLoad

PARTITIONS = 3
# Small segments, so that rolls are interrupted too.
SETTINGS = {"log.segment.bytes": 256 * 1024, "log.index.interval.bytes": 1024}


@pytest.mark.parametrize("kills", quick_and_full(3, 30))
def test_kills_lose_and_duplicate_no_record(tmp_path: Path, kills: int) -> None:
    chance = random.Random(3)
    with BrokerProcess(tmp_path / "data", SETTINGS) as broker:
        create_topic(broker.address, "load", PARTITIONS)
        with ProduceLoad(broker.address, "load", PARTITIONS) as load:
            for _ in range(kills):
                load.wait_for_more(1)
                time.sleep(chance.uniform(0, 0.1))  # waits for nothing: the kill comes at a random moment of the load
                broker.kill()
                broker.start()
            load.finish()
        load.check(broker.address)
        assert broker.logs.count(RECOVERING) == kills
        assert broker.errors() == []

"""Exactly once, with a real Spark, real deaths and a real broker. `make faults` has more of the same."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from stratalog.client.admin import Admin
from stratalog.testing import BrokerProcess
from tests.spark.batch_driver import ROWS
from tests.spark.batch_rounds import each_once, let_time_pass
from tests.spark.committed import nothing_is_open
from tests.spark.driver_process import SECONDS, Driver
from tests.spark.dying_sink import BATCH_POINTS
from tests.spark.stream_rounds import PARTITIONS, SETTINGS, Rounds

LONG = 1800  # sessions take ten seconds to start, or minutes on a machine that does much else


@pytest.mark.timeout(LONG)
@pytest.mark.slow
def test_stream_is_in_the_topic_once_whatever_dies(tmp_path: Path) -> None:
    """Planted: workers before and behind their preparation, the driver behind the decision. Then five at random."""
    kinds = ("worker", "broker", "worker and broker", "broker", "driver and broker")
    Rounds(tmp_path, seed=7).run([("rows sent", "prepared", "decided")], kinds)


@pytest.mark.timeout(LONG)
@pytest.mark.slow
def test_batch_write_of_a_killed_driver_is_there_wholly_or_not_at_all(tmp_path: Path) -> None:
    """Of two in one topic: driver and broker are killed when all tasks of one have prepared their rows and nothing is
    decided, and the other is decided and its driver has not heard of it. Readers are not held up for ever."""
    with BrokerProcess(tmp_path / "broker", SETTINGS) as broker:
        broker.create_topic("numbers", PARTITIONS)
        driver = Driver("tests.spark.held_batches", [], tmp_path)
        files = driver.plant(BATCH_POINTS)
        driver.arguments = [broker.bootstrap_servers, "numbers", str(tmp_path / "scratch"), str(files[0])]
        driver.ensure_running()
        try:
            deadline = time.monotonic() + SECONDS
            while not all(file.exists() for file in files):
                assert driver.is_running, driver.log()
                assert time.monotonic() < deadline, driver.log()
                time.sleep(0.05)
        finally:
            driver.kill()
        broker.kill()
        broker.start()
        with Admin(broker.bootstrap_servers) as admin:
            prepared = admin.prepared_transactions("stratalog-spark-batch-")
        assert len(prepared) == 2  # a task each, and nobody is left who could decide
        assert not nothing_is_open(broker.bootstrap_servers, "numbers", PARTITIONS)
        assert not [one for one in each_once(broker, "numbers") if one.startswith("lost")]
        let_time_pass(broker, "numbers")
        assert each_once(broker, "numbers") == sorted(f"kept-{number}" for number in range(ROWS))

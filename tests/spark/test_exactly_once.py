"""Exactly once, with a real Spark, real kills and a real broker. `make faults` runs more rounds."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from stratalog.client.admin import Admin
from stratalog.testing import BrokerProcess
from tests.spark.batch_driver import ROWS
from tests.spark.batch_rounds import advance_until_closed, each_once
from tests.spark.committed import nothing_is_open
from tests.spark.driver_process import SECONDS, Driver
from tests.spark.dying_sink import BATCH_POINTS
from tests.spark.stream_rounds import PARTITIONS, SETTINGS, Rounds

LONG = 1800  # a session takes ten seconds to start, or minutes on a busy machine


@pytest.mark.timeout(LONG)
@pytest.mark.slow
def test_stream_is_written_once_despite_kills(tmp_path: Path) -> None:
    """Kill workers before and after they prepare, and the driver after the decision. Then kill five times at random."""
    kinds = ("worker", "broker", "worker and broker", "broker", "driver and broker")
    Rounds(tmp_path, seed=7).run([("rows sent", "prepared", "decided")], kinds)


@pytest.mark.timeout(LONG)
@pytest.mark.slow
def test_batch_write_of_a_killed_driver_is_atomic(tmp_path: Path) -> None:
    """Kill driver and broker during two writes to one topic. All tasks of one have prepared their rows, and nothing is
    decided. The other is decided, but its driver has no response yet. Readers are not blocked permanently."""
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
        assert len(prepared) == 2  # one per task, and no driver is left to decide
        assert not nothing_is_open(broker.bootstrap_servers, "numbers", PARTITIONS)
        assert not [each for each in each_once(broker, "numbers") if each.startswith("lost")]
        advance_until_closed(broker, "numbers")
        assert each_once(broker, "numbers") == sorted(f"kept-{number}" for number in range(ROWS))

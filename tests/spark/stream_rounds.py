"""A stream from topic to topic while driver, executors, Python workers and broker are killed by SIGKILL.

Planned kills come first, at points that random kills would rarely hit, and then random ones. At the end, readers of
committed records see each row once, and no transaction is open.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa

from stratalog.client import Producer
from stratalog.client.admin import Admin
from stratalog.client.errors import ClientError
from stratalog.spark.sink_ids import SinkIds
from stratalog.testing import BrokerProcess
from tests.spark.committed import nothing_is_open, values
from tests.spark.driver_process import SECONDS, Driver
from tests.spark.stream_driver import ROWS

PARTITIONS = 3
SOURCE, TOPIC, SINK = "source", "numbers", "numbers-sink"
SOURCE_ROWS = 200_000  # more than any run can process
KINDS = ("worker", "broker", "driver", "worker and broker", "driver and broker")
EXECUTOR = "executor"  # only for driver_process.CLUSTER
SETTINGS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 50}


class Rounds:
    def __init__(self, where: Path, seed: int, master: str | None = None) -> None:
        where.mkdir(parents=True, exist_ok=True)
        self._chance = random.Random(seed)
        self.broker = BrokerProcess(where / "broker", SETTINGS)
        arguments = [self.broker.bootstrap_servers, SOURCE, TOPIC, str(where / "checkpoint"), SINK]
        self.driver = Driver("tests.spark.stream_driver", arguments, where, master)

    def run(
        self, planted: Sequence[Sequence[str]], kinds: Sequence[str], tick: Callable[[], None] = lambda: None
    ) -> None:
        """`planted` has the kill points of each driver in turn. Only the last one can be a point of a driver."""
        with self.broker as broker:
            broker.create_topic(TOPIC, PARTITIONS)
            broker.create_topic(SOURCE)
            with Producer(broker.bootstrap_servers) as producer:
                numbers = [str(number) for number in range(SOURCE_ROWS)]
                producer.send_arrow(SOURCE, pa.record_batch({"value": numbers})).result()
            try:
                for points in planted:
                    self._planted(points)
                    for _ in points:
                        tick()
                for kind in kinds:
                    self._wait_for_batches(1)
                    time.sleep(
                        self._chance.uniform(0, 0.5)
                    )  # the delay varies the moment of the kill; no condition depends on it
                    self._strike(kind)
                    tick()
                self._wait_for_batches(2)
                self.driver.stop()
                self._check()
            except BaseException as error:
                error.add_note(self.driver.log())
                raise
            finally:
                self.driver.end()

    def _planted(self, points: Sequence[str]) -> None:
        self.driver.kill()
        files = self.driver.plant(points)
        self.driver.ensure_running()
        self._until(lambda: all(file.exists() for file in files))

    def _strike(self, kind: str) -> None:
        if "broker" in kind:
            self.broker.kill()
        if "driver" in kind:
            self.driver.kill()
        if EXECUTOR in kind:
            self._until(self.driver.kill_executor)
        if "worker" in kind:
            self._until(self.driver.kill_worker)
        if "broker" in kind:
            self.broker.start()

    def _wait_for_batches(self, count: int) -> None:
        """Wait until `count` more batches are written."""
        before: int | None = None

        def written() -> bool:
            nonlocal before
            now = self._next_batch()
            if before is None:
                before = now
            return now is not None and before is not None and now >= before + count

        self._until(written)

    def _until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline, "the stream has stopped"
            self.driver.ensure_running()
            time.sleep(0.02)

    def _next_batch(self) -> int | None:
        try:
            with Admin(self.broker.bootstrap_servers, default_api_timeout_ms=5_000) as admin:
                offsets = list(admin.list_group_offsets(SinkIds(SINK).group).values())
        except ClientError:
            return None
        return offsets[0].offset if offsets else 0

    def _check(self) -> None:
        servers = self.broker.bootstrap_servers
        self.broker.clock.advance(days=2)  # transactions of an unfinished batch end by their timeout
        while not nothing_is_open(servers, TOPIC, PARTITIONS):
            self.broker.clock.advance(minutes=1)
        batches = self._next_batch()
        assert batches
        assert values(servers, TOPIC, PARTITIONS) == sorted(str(number) for number in range(batches * ROWS))

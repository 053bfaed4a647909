"""Batch writes while driver, Python workers and broker are killed: each write is atomic.

Writes whose `save()` returned are in the topic. Transactions that a dead driver left prepared block readers of
committed records no longer than decisionTimeout.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from stratalog.testing import BrokerProcess
from tests.spark.batch_driver import ROWS
from tests.spark.committed import nothing_is_open, values
from tests.spark.driver_process import SECONDS, Driver
from tests.spark.stream_rounds import PARTITIONS, SETTINGS

TOPIC = "numbers"


class BatchRounds:
    def __init__(self, where: Path, seed: int, master: str | None = None) -> None:
        where.mkdir(parents=True, exist_ok=True)
        self._chance = random.Random(seed)
        self._begun, self._done = where / "begun", where / "done"
        for file in (self._begun, self._done):
            file.touch()
        self.broker = BrokerProcess(where / "broker", SETTINGS)
        arguments = [self.broker.bootstrap_servers, TOPIC, str(self._begun), str(self._done)]
        self.driver = Driver("tests.spark.batch_driver", arguments, where, master)

    def run(self, kinds: Sequence[str], tick: Callable[[], None] = lambda: None) -> None:
        with self.broker as broker:
            broker.create_topic(TOPIC, PARTITIONS)
            try:
                for kind in kinds:
                    self._wait_for_writes()
                    time.sleep(
                        self._chance.uniform(0, 1)
                    )  # the delay varies the moment of the kill; no condition depends on it
                    self._strike(kind)
                    tick()
                self._wait_for_writes()
                self.driver.kill()
                self.check(self._numbers(self._begun), self._numbers(self._done))
            except BaseException as error:
                error.add_note(self.driver.log())
                raise
            finally:
                self.driver.end()

    def _strike(self, kind: str) -> None:
        if "broker" in kind:
            self.broker.kill()
        if "driver" in kind:
            self.driver.kill()
        if "worker" in kind:
            self._until(self.driver.kill_worker)
        if "broker" in kind:
            self.broker.start()

    def _wait_for_writes(self) -> None:
        """Wait until one more write has returned and the next one has begun."""
        before = len(self._numbers(self._done))
        self._until(lambda: len(self._numbers(self._done)) > before)

    def _until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline, "the writes have stopped"
            self.driver.ensure_running()
            time.sleep(0.02)

    def _numbers(self, file: Path) -> list[str]:
        return file.read_text().split()

    def check(self, begun: Sequence[str], done: Sequence[str]) -> None:
        advance_until_closed(self.broker, TOPIC)
        writes = Counter(value.partition("-")[0] for value in each_once(self.broker, TOPIC))
        assert set(writes) <= set(begun)
        assert set(done) <= set(writes), f"{set(done) - set(writes)} returned, but are missing"
        assert set(writes.values()) <= {ROWS}, (
            f"incomplete: {[name for name, count in writes.items() if count != ROWS]}"
        )


def advance_until_closed(broker: BrokerProcess, topic: str) -> None:
    """Advance the clock until no transaction is open."""
    broker.clock.advance(days=1)
    while not nothing_is_open(broker.bootstrap_servers, topic, PARTITIONS):
        broker.clock.advance(minutes=1)


def each_once(broker: BrokerProcess, topic: str) -> list[str]:
    writes = values(broker.bootstrap_servers, topic, PARTITIONS)
    assert len(set(writes)) == len(writes), "rows were written twice"
    return writes

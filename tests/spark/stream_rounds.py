"""A stream into a topic, while driver, executors' Python workers and broker are killed, each by SIGKILL.

Planted deaths come first, at points that chance would rarely find; then rounds at random. Behind all of it the topic
holds each row once for readers of committed records, and nothing is open.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from stratalog.client.admin import Admin
from stratalog.client.errors import ClientError
from stratalog.spark.sink_ids import SinkIds
from stratalog.testing import BrokerProcess
from tests.spark.committed import nothing_is_open, values
from tests.spark.dying_sink import DEATHS, DRIVER
from tests.spark.stream_driver import MASTER, ROWS

_ROOT = Path(__file__).parents[2]
PARTITIONS = 3
TOPIC, SINK = "numbers", "numbers-sink"
SECONDS = 300.0  # for anything to happen, on a machine that does much else
KINDS = ("worker", "broker", "driver", "worker and broker", "driver and broker")
CLUSTER = "local-cluster[2,1,512]"  # two executors in processes of their own, where "executor" is a kind too
SETTINGS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 50}


class Driver:
    """The query's process, started again whenever it is gone."""

    def __init__(self, servers: str, where: Path, master: str | None) -> None:
        self._master = {} if master is None else {MASTER: master}
        self._arguments = [servers, TOPIC, str(where / "checkpoint"), SINK]
        self._log = where / "driver.log"
        self._where = where
        self._process: subprocess.Popen[bytes] | None = None
        self._deaths = ""

    def plant(self, points: Sequence[str]) -> list[Path]:
        """For the next start. Each has a file once it has happened."""
        files = [self._where / f"died-{point.replace(' ', '-')}" for point in points]
        self._deaths = ";".join(f"{point}:{file}" for point, file in zip(points, files, strict=True))
        return files

    def ensure_running(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self.end()
        # A session of its own, so that it can be killed with its JVM; it ends with us, as its input is closed then.
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    f"import os; os.environ[{DRIVER!r}] = str(os.getpid())\n"
                    "import sys; from tests.spark.stream_driver import main; main(*sys.argv[1:])",
                    *self._arguments,
                ],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, DEATHS: self._deaths, "PYTHONPATH": str(_ROOT), **self._master},
                cwd=_ROOT,
            )

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self.end()

    def kill_worker(self) -> bool:
        """One that runs tasks. False: there was none just now."""
        assert self._process is not None
        workers = _task_workers(self._process.pid)
        for pid in workers[:1]:
            os.kill(pid, signal.SIGKILL)
        return bool(workers)

    def kill_executor(self) -> bool:
        """One of a cluster, with its JVM."""
        assert self._process is not None
        executors = _descendants(self._process.pid, b"CoarseGrainedExecutorBackend")
        for pid in executors[:1]:
            os.kill(pid, signal.SIGKILL)
        return bool(executors)

    def stop(self) -> None:
        """In order."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait(SECONDS)
        self.end()

    def end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(SECONDS)
        if process.stdin is not None:
            process.stdin.close()

    def log(self) -> str:
        return self._log.read_text(errors="replace")[-5000:] if self._log.exists() else ""


def _task_workers(ancestor: int) -> list[int]:
    """Forked by the daemon of `pyspark.worker`, which a descendant of the driver is."""
    daemons = _descendants(ancestor, b"pyspark.daemon\0pyspark.worker\0")
    return [pid for pid in daemons if _parents().get(pid) in daemons]


def _descendants(ancestor: int, command: bytes) -> list[int]:
    """Those whose command line has this in it."""
    parents = _parents()
    found = []
    for pid in parents:
        try:
            is_one = command in Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue  # gone meanwhile
        if is_one and _descends(pid, ancestor, parents):
            found.append(pid)
    return found


def _parents() -> dict[int, int]:
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    return found


def _descends(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    while pid in parents and pid != ancestor:
        pid = parents[pid]
    return pid == ancestor


class Rounds:
    def __init__(self, where: Path, seed: int, master: str | None = None) -> None:
        self._master = master
        where.mkdir(parents=True, exist_ok=True)
        self._chance = random.Random(seed)
        self.broker = BrokerProcess(where / "broker", SETTINGS)
        self.driver: Driver | None = None
        self._where = where

    def run(
        self, planted: Sequence[Sequence[str]], kinds: Sequence[str], tick: Callable[[], None] = lambda: None
    ) -> None:
        """`planted`: points for one driver, and for the next; of the driver's own points only the last can be one."""
        with self.broker as broker:
            broker.create_topic(TOPIC, PARTITIONS)
            driver = self.driver = Driver(broker.bootstrap_servers, self._where, self._master)
            try:
                for points in planted:
                    self._planted(driver, points)
                    for _ in points:
                        tick()
                for kind in kinds:
                    self._wait_for_batches(driver, 1)
                    time.sleep(self._chance.uniform(0, 0.5))  # not to wait for anything: to strike at any moment
                    self._strike(driver, kind)
                    tick()
                self._wait_for_batches(driver, 2)
                driver.stop()
                self._check()
            except BaseException as error:
                error.add_note(driver.log())
                raise
            finally:
                driver.end()

    def _planted(self, driver: Driver, points: Sequence[str]) -> None:
        driver.kill()
        files = driver.plant(points)
        driver.ensure_running()
        self._until(driver, lambda: all(file.exists() for file in files))

    def _strike(self, driver: Driver, kind: str) -> None:
        if "broker" in kind:
            self.broker.kill()
        if "driver" in kind:
            driver.kill()
        if "executor" in kind:
            self._until(driver, driver.kill_executor)
        if "worker" in kind:
            self._until(driver, driver.kill_worker)
        if "broker" in kind:
            self.broker.start()

    def _wait_for_batches(self, driver: Driver, count: int) -> None:
        """So many more are written."""
        before: int | None = None

        def written() -> bool:
            nonlocal before
            now = self._next_batch()
            if before is None:
                before = now
            return now is not None and before is not None and now >= before + count

        self._until(driver, written)

    def _until(self, driver: Driver, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline, "the stream does not go on"
            driver.ensure_running()
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
        self.broker.clock.advance(days=2)  # what was stopped in the middle of a batch is left to its time
        while not nothing_is_open(servers, TOPIC, PARTITIONS):
            self.broker.clock.advance(minutes=1)
        batches = self._next_batch()
        assert batches
        assert values(servers, TOPIC, PARTITIONS) == sorted(str(number) for number in range(batches * ROWS))

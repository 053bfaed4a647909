"""A Spark driver in a process of its own. Tests can kill it with its JVM, or single workers and executors.

The program is a module of these tests with a function `main`. It stops when its stdin is closed, so it also stops with
the test process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.spark.driver_session import MASTER
from tests.spark.dying_sink import DEATHS, DRIVER

_ROOT = Path(__file__).parents[2]
SECONDS = 900.0  # the timeout for any condition, on a busy machine
CLUSTER = "local-cluster[2,1,512]"  # two executors, each a process


class Driver:
    """A driver that is started again when it has stopped."""

    def __init__(self, module: str, arguments: Sequence[str], where: Path, master: str | None = None) -> None:
        self._module = module
        self.arguments = list(arguments)
        self._master = {} if master is None else {MASTER: master}
        self._log = where / "driver.log"
        self._where = where
        self._process: subprocess.Popen[bytes] | None = None
        self._deaths = ""

    def plant(self, points: Sequence[str]) -> list[Path]:
        """Set the kill points for the next start. Return a file per point, which exists once the point was reached."""
        files = [self._where / f"died-{point.replace(' ', '-')}" for point in points]
        self._deaths = ";".join(f"{point}:{file}" for point, file in zip(points, files, strict=True))
        return files

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def ensure_running(self) -> None:
        if self.is_running:
            return
        self.end()
        # A new process group, so that it can be killed with its JVM.
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    f"import os; os.environ[{DRIVER!r}] = str(os.getpid())\n"
                    f"import sys; from {self._module} import main; main(*sys.argv[1:])",
                    *self.arguments,
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
        """Kill a worker that runs tasks. Return False if there is no worker."""
        assert self._process is not None
        workers = _task_workers(self._process.pid)
        for pid in workers[:1]:
            os.kill(pid, signal.SIGKILL)
        return bool(workers)

    def kill_executor(self) -> bool:
        """Kill an executor of a cluster, with its JVM. Return False if there is no executor."""
        assert self._process is not None
        executors = _descendants(self._process.pid, b"CoarseGrainedExecutorBackend")
        for pid in executors[:1]:
            os.kill(pid, signal.SIGKILL)
        return bool(executors)

    def stop(self) -> None:
        """Stop the driver cleanly."""
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
    """Return the workers, which the daemon of `pyspark.worker` has forked."""
    daemons = _descendants(ancestor, b"pyspark.daemon\0pyspark.worker\0")
    return [pid for pid in daemons if _parents().get(pid) in daemons]


def _descendants(ancestor: int, command: bytes) -> list[int]:
    """Return the descendants whose command line contains `command`."""
    parents = _parents()
    pids = []
    for pid in parents:
        try:
            matches = command in Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue  # the process has ended
        if matches and _descends(pid, ancestor, parents):
            pids.append(pid)
    return pids


def _parents() -> dict[int, int]:
    pids = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                pids[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    return pids


def _descends(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    while pid in parents and pid != ancestor:
        pid = parents[pid]
    return pid == ancestor

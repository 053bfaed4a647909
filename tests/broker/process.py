"""A broker as users run it: `stratalog serve` in a process of its own, on a free port."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

START_SECONDS = 60
STOP_SECONDS = 30
# Retention must not delete records with old timestamps while a test reads them.
FOR_TESTS: dict[str, object] = {"log.retention.check.interval.ms": 365 * 24 * 60 * 60 * 1000}


class BrokerProcess:
    """Started by `start` or as a context manager; ended in any case. `port` stays the same over restarts."""

    module = "stratalog"  # what `python -m` runs

    def __init__(
        self, data_dir: Path, settings: Mapping[str, object] | None = None, *, arguments: tuple[str, ...] = ()
    ) -> None:
        self.data_dir = data_dir
        self.settings = FOR_TESTS | dict(settings or {})
        self.arguments = arguments
        self.port = 0
        self.ready_line = ""
        self.log = data_dir.with_name(data_dir.name + ".stderr")
        self._process: subprocess.Popen[str] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        command = [sys.executable, "-m", self.module, "serve", "--data-dir", str(self.data_dir)]
        command += ["--listen", f"127.0.0.1:{self.port}", *self.arguments]
        for name, value in self.settings.items():
            command += ["--set", f"{name}={value}"]
        with self.log.open("a") as log:
            environment = self.environment()
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
        assert self._process.stdout is not None
        self.ready_line = self._process.stdout.readline()
        if not self.ready_line.startswith("ready "):
            self._process.wait(STOP_SECONDS)
            raise RuntimeError(f"the broker did not start: {self.log.read_text()[-2000:]}")
        self.port = int(self.ready_line.split(",")[0].rpartition(":")[2])
        return self

    def environment(self) -> dict[str, str]:
        """Compiled modules are kept, whatever the tests' own environment says: it is started many times."""
        return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """As an operator would; its exit code."""
        return self._end(number)

    def kill(self) -> None:
        """SIGKILL: no time for anything."""
        self._end(signal.SIGKILL)

    def wait_for_end(self) -> int:
        """Of a process that ends by itself; its exit code."""
        assert self._process is not None
        self._process.wait(STOP_SECONDS)
        return self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> int:
        process = self._process
        assert process is not None
        if process.poll() is None:
            os.kill(process.pid, number)
        try:
            code = process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_SECONDS)
            raise
        finally:
            if process.stdout is not None:
                process.stdout.close()
        self._process = None
        return code

    def errors(self) -> list[str]:
        """Lines of its log that no client's doing excuses."""
        return [line for line in self.log.read_text().splitlines() if " ERROR " in line or line.startswith("Traceback")]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._end(signal.SIGKILL if kind is not None else signal.SIGTERM)

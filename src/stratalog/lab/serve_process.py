"""`stratalog serve` in its own process, on a free port of the loopback address.

    with ServeProcess(directory / "data", {"num.partitions": 3}) as broker:
        ... any Kafka client, with broker.bootstrap_servers ...

The port stays the same over restarts. The `with` block stops the process at its end, and kills it after an exception.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from stratalog.errors import StratalogError
from stratalog.lab.broker_child import BrokerChild, environment_with_bytecode

START_SECONDS = 60.0
_HOST = "127.0.0.1"
_READY = re.compile(r"ready on \S+:(\d+),")


class BrokerStartError(StratalogError):
    """The broker did not start. The message has the end of its log."""


class ServeProcess(BrokerChild):
    """A process of `stratalog serve`, with its data directory and its settings."""

    module = "stratalog"
    """The module that `python -m` runs."""

    def __init__(
        self,
        data_dir: Path,
        settings: Mapping[str, object] | None = None,
        *,
        arguments: tuple[str, ...] = (),
        dies_with_thread: bool = False,
    ) -> None:
        """`arguments` are further options of `stratalog serve`. The log goes to a file next to the data directory."""
        super().__init__(data_dir.with_name(data_dir.name + ".log"))
        self.data_dir = data_dir
        self.settings = dict(settings or {})
        self.arguments = arguments
        self.port = 0
        self.ready_line = ""
        self.dies_with_thread = dies_with_thread

    @property
    def bootstrap_servers(self) -> str:
        return f"{_HOST}:{self.port}"

    @property
    def pid(self) -> int:
        return self._started().pid

    def start(self) -> Self:
        """Start the broker, and return when clients can connect."""
        process = self.spawn(self._command(), environment=self.environment(), dies_with_thread=self.dies_with_thread)
        self.ready_line = _first_line(process)
        ready = _READY.match(self.ready_line)
        if ready is None:
            self.kill()
            raise BrokerStartError(f"the broker did not start{self.last_log_lines()}")
        self.port = int(ready[1])
        return self

    def environment(self) -> dict[str, str]:
        return environment_with_bytecode()

    def _command(self) -> list[str]:
        command = [sys.executable, "-m", self.module, "serve", "--data-dir", str(self.data_dir)]
        command += ["--listen", f"{_HOST}:{self.port}", *self.arguments]
        for name, value in self.settings.items():
            command += ["--set", f"{name}={value}"]
        return command

    def errors(self) -> list[str]:
        """Return the lines of the log that report an error of the broker itself."""
        return [line for line in self.logs.splitlines() if " ERROR " in line or line.startswith("Traceback")]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process is not None:
            self.stop(signal.SIGTERM if kind is None else signal.SIGKILL)


def _first_line(process: subprocess.Popen[bytes]) -> str:
    """Return the first line of stdout, or an empty string if the process ends or takes too long."""
    assert process.stdout is not None
    timer = threading.Timer(START_SECONDS, process.kill)
    timer.start()
    try:
        return process.stdout.readline().decode()
    finally:
        timer.cancel()

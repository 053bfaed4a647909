"""The demo's broker: `stratalog serve` in a process of its own, on a free port; its directory is removed by others.

It ends with the `with` block, and by the kernel's hand if this process is killed.
"""

from __future__ import annotations

import ctypes
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from stratalog.demo.errors import DemoError

START_SECONDS = 60.0
STOP_SECONDS = 20.0
_READY = re.compile(r"ready on (\S+),")
_PR_SET_PDEATHSIG = 1
_SHOWN_LINES = 10
SETTINGS = ["offsets.topic.num.partitions=1", "transaction.state.log.num.partitions=1"]


class DemoBroker:
    def __init__(self, directory: Path) -> None:
        self.data_dir = directory / "data"
        self._log_file = directory / "broker.log"
        self._process: subprocess.Popen[str] | None = None
        self.bootstrap_servers = ""

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Self:
        command = [
            sys.executable,
            "-m",
            "stratalog",
            "serve",
            "--data-dir",
            str(self.data_dir),
            "--listen",
            "127.0.0.1:0",
        ]
        for setting in SETTINGS:
            command += ["--set", setting]
        libc = ctypes.CDLL(None)  # loaded here: between fork and exec there is no time for it
        with self._log_file.open("wb") as log:
            # In a session of its own: Ctrl-C is for the demo, which stops it when nothing needs it any more.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),
            )
        try:
            self.bootstrap_servers = self._wait_until_ready()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _wait_until_ready(self) -> str:
        assert self._process is not None and self._process.stdout is not None
        timer = threading.Timer(START_SECONDS, self._process.kill)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        ready = _READY.match(line)
        if ready is None:
            last = " | ".join(self._log_file.read_text(errors="replace").splitlines()[-_SHOWN_LINES:])
            raise DemoError(f"the broker did not start; its log ends: {last or '(nothing)'}")
        return ready[1]

    def _stop(self) -> None:
        """In order; then without asking."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except BaseException as error:
            process.kill()
            process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
        finally:
            if process.stdout is not None:
                process.stdout.close()

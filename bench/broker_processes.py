"""The processes under test: started on their own core, measured for CPU time and memory, and stopped by process id."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

READY_SECONDS = 120
STOP_SECONDS = 120  # each of 10,000 logs is flushed
TICKS = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGESIZE")
CORES = sorted(os.sched_getaffinity(0))
GENERATOR_CORE, SERVER_CORE = CORES[0], CORES[-1]


class ProcessFailedError(Exception):
    """A process did not become ready, or ended unexpectedly. The message has the end of its stderr."""


class Process:
    """A server under test that prints `ready ...` on stdout. Its stderr goes to a file in `directory`."""

    def __init__(self, command: Sequence[str], directory: Path, port: int = 0) -> None:
        self._errors = directory / "stderr.txt"
        start = time.perf_counter()
        with self._errors.open("ab") as errors:
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                preexec_fn=lambda: os.sched_setaffinity(0, {SERVER_CORE}),
            )
        self.pid = self._popen.pid
        try:
            line = self._ready_line()
        except BaseException:
            self.kill()
            raise
        self.seconds_to_ready = time.perf_counter() - start
        self.port = port or int(line.split()[1])

    def cpu(self) -> tuple[float, float]:
        """Return the user and system seconds of all threads so far."""
        return cpu_of(self.pid)

    def resident_bytes(self) -> int:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * PAGE_BYTES

    def stop(self) -> None:
        """Send SIGTERM, as an operator would, and SIGKILL if the process takes too long."""
        if self._popen.poll() is None:
            self._popen.send_signal(signal.SIGTERM)
            try:
                self._popen.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
                raise self._failure(f"did not stop within {STOP_SECONDS} s of SIGTERM") from None
        self._close()

    def kill(self) -> None:
        self._popen.kill()
        self._popen.wait()
        self._close()

    def _close(self) -> None:
        if self._popen.stdout is not None:
            self._popen.stdout.close()

    def _ready_line(self) -> str:
        assert self._popen.stdout is not None
        fd, text, deadline = self._popen.stdout.fileno(), b"", time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            if not select.select([fd], [], [], deadline - time.monotonic())[0]:
                break
            part = os.read(fd, 4096)
            if not part:
                raise self._failure("ended before it was ready")
            text += part
            for line in text.decode(errors="replace").splitlines(keepends=True):
                if line.startswith("ready ") and line.endswith("\n"):
                    return line
        raise self._failure(f"was not ready within {READY_SECONDS} s")

    def _failure(self, what: str) -> ProcessFailedError:
        tail = self._errors.read_text(errors="replace")[-4000:]
        return ProcessFailedError(f"{' '.join(map(str, self._popen.args))} {what}\n{tail}")  # type: ignore[arg-type]


def cpu_of(pid: int) -> tuple[float, float]:
    # the name in parentheses may have spaces, so count from its end; utime and stime are fields 14 and 15
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) / TICKS, int(fields[12]) / TICKS


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def start_broker(directory: Path, settings: Sequence[str] = ()) -> Process:
    """Start `stratalog serve` on `directory`/data, which is kept if it exists."""
    port = free_port()
    command = [sys.executable, "-m", "stratalog", "serve", "--data-dir", str(directory / "data")]
    command += ["--listen", f"127.0.0.1:{port}"]
    for setting in settings:
        command += ["--set", setting]
    return Process(command, directory, port)


@contextmanager
def broker(directory: Path, settings: Sequence[str] = ()) -> Iterator[Process]:
    process = start_broker(directory, settings)
    try:
        yield process
    finally:
        process.stop()


@contextmanager
def peer(directory: Path, *arguments: object) -> Iterator[Process]:
    process = Process([sys.executable, "-m", "bench.broker_peers", *map(str, arguments)], directory)
    try:
        yield process
    finally:
        process.kill()

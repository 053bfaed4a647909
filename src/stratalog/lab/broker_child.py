"""A broker in a child process: starting it with its log in a file, stopping, killing, pausing and resuming it.

BrokerChild owns only the process. Its users choose the command and know when the broker is ready: `ServeProcess` runs
`stratalog serve`, and the pytest plugin runs a broker that accepts commands.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

STOP_SECONDS = 30.0
_PR_SET_PDEATHSIG = 1
_SHOWN_LINES = 20


class BrokerChild:
    """The process of a broker, which may be started again after each end."""

    def __init__(self, log_file: Path) -> None:
        self.log_file = log_file
        self.is_paused = False
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def logs(self) -> str:
        """The log so far, over all restarts."""
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def last_log_lines(self) -> str:
        """Return the end of the log, for an error message."""
        lines = self.logs.splitlines()[-_SHOWN_LINES:]
        return "\n".join(["; its log ends:", *lines]) if lines else "; its log is empty"

    def spawn(
        self,
        command: Sequence[str],
        *,
        stdin: int = subprocess.DEVNULL,
        environment: Mapping[str, str] | None = None,
        dies_with_thread: bool = False,
    ) -> subprocess.Popen[bytes]:
        """Start the process in its own session, so that Ctrl-C reaches only the program that started it. Stdout is an
        unbuffered pipe. With `dies_with_thread`, the kernel kills the process when the calling thread ends."""
        self.forget()
        library = ctypes.CDLL(None)  # loaded before the fork: the forked child of a process with threads must do little

        def die_with_thread() -> None:
            library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                start_new_session=True,
                env=environment,
                preexec_fn=die_with_thread if dies_with_thread else None,
            )
        return self.process

    def stop(self, number: signal.Signals = signal.SIGTERM, seconds: float = STOP_SECONDS) -> int:
        """Send a signal, wait for the end of the process, and return its exit code. If it takes longer than `seconds`,
        kill the process and raise TimeoutExpired."""
        process = self._started()
        if process.poll() is None:
            process.send_signal(number)
            if self.is_paused:
                self.resume()
        return self.wait_for_end(seconds)

    def wait_for_end(self, seconds: float = STOP_SECONDS) -> int:
        """Wait until the process ends by itself, and return its exit code. If it takes longer than `seconds`, kill the
        process and raise TimeoutExpired."""
        process = self._started()
        try:
            return process.wait(seconds)
        except BaseException:
            process.kill()
            process.wait(STOP_SECONDS)
            raise
        finally:
            self.forget()

    def kill(self) -> None:
        """Kill the process with SIGKILL. Without a running process, this does nothing."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(STOP_SECONDS)
        self.forget()

    def pause(self) -> None:
        """Pause the process with SIGSTOP: connections stay open, and no request is answered."""
        self._started().send_signal(signal.SIGSTOP)
        self.is_paused = True

    def resume(self) -> None:
        """Resume the process with SIGCONT."""
        self._started().send_signal(signal.SIGCONT)
        self.is_paused = False

    def forget(self) -> None:
        """Close the pipes of a process that has ended."""
        process, self.process, self.is_paused = self.process, None, False
        for pipe in () if process is None else (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()

    def _started(self) -> subprocess.Popen[bytes]:
        if self.process is None:
            raise ProcessLookupError("the broker is not running; start it first")
        return self.process


def environment_with_bytecode() -> dict[str, str]:
    """Return the environment without the variable that keeps Python from saving compiled modules, so that a broker that
    is started often does not compile them each time."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

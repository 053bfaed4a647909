"""A broker for tests, in its own process on a free port of this machine, with faults on request.

    with BrokerProcess(settings={"num.partitions": 3}) as broker:
        ... any Kafka client, with broker.bootstrap_servers ...
        broker.kill()       # SIGKILL
        broker.restart()    # on the same port and the same data

It differs from `stratalog serve` in its clock and in the commands for tests. The broker ends with the `with` block, and
when the process that started it ends, even by SIGKILL. Calls return when their effect is complete.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from stratalog.errors import StratalogError
from stratalog.lab.broker_child import STOP_SECONDS, BrokerChild
from stratalog.testing.controls import BrokerClock, Fault

START_SECONDS = 60.0

# Settings that make tests fast and repeatable: groups don't wait for more members, and internal topics have few
# partitions. Only clock.advance() applies retention, so no record is deleted because a test gave it an old timestamp.
FOR_TESTS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "log.retention.check.interval.ms": str(24 * 60 * 60 * 1000),
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}


class BrokerFailedError(StratalogError):
    """The broker did not start, is not running, or could not run a command. The message says why."""


class BrokerProcess:
    """A broker with its process, its port, its data and its clock."""

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        settings: Mapping[str, object] | None = None,
        *,
        host: str = "127.0.0.1",
    ) -> None:
        """`directory` gets the data directory and the log. The default is a temporary directory, which close()
        removes."""
        self._is_temporary = directory is None
        self._directory = Path(tempfile.mkdtemp(prefix="stratalog-") if directory is None else directory)
        self.settings = FOR_TESTS | {name: _text(value) for name, value in (settings or {}).items()}
        """The broker's settings, by Kafka's names. Changes apply at the next start."""
        self.data_dir = self._directory / "data"
        self.host = host
        self.clock = BrokerClock(self._run)
        self._held_port = HeldPort(host)
        self._child = BrokerChild(self._directory / "broker.log")
        self._commands: CommandLine | None = None

    @property
    def port(self) -> int:
        """The port, which stays the same over all restarts."""
        return self._held_port.number

    @property
    def bootstrap_servers(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def is_running(self) -> bool:
        return self._child.is_running

    @property
    def is_paused(self) -> bool:
        return self._child.is_paused

    @property
    def log_file(self) -> Path:
        return self._child.log_file

    @property
    def logs(self) -> str:
        """The log so far, over all restarts."""
        return self._child.logs

    # Life

    def start(self) -> Self:
        """Start the broker, and return when clients can connect."""
        if self.is_running:
            raise BrokerFailedError(f"the broker on {self.bootstrap_servers} runs already; call restart() or stop()")
        self._forget()
        process = self._child.spawn([sys.executable, "-m", "stratalog.testing.child"], stdin=subprocess.PIPE)
        self._commands = CommandLine(process)
        start = {
            "data_dir": str(self.data_dir.resolve()),
            "settings": self.settings,
            "host": self.host,
            "port": self.port,
            "clock": self.clock.state,
            "parent": os.getpid(),
            # For the kernel, the parent of a process ends with the thread that started it.
            "dies_with_thread": threading.current_thread() is threading.main_thread(),
        }
        try:
            self._exchange(start)
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self) -> None:
        """Stop the broker with SIGTERM: it answers the requests in flight and flushes everything."""
        self._running()
        try:
            code = self._child.stop()
        except subprocess.TimeoutExpired:
            message = f"the broker did not stop within {STOP_SECONDS:g} s{self._child.last_log_lines()}"
            raise BrokerFailedError(message) from None
        finally:
            self._forget()
        if code != 0:
            raise BrokerFailedError(f"the broker stopped with exit code {code}{self._child.last_log_lines()}")

    def kill(self) -> None:
        """Kill the broker with SIGKILL. Without a running broker, this does nothing."""
        self._child.kill()
        self._forget()

    def restart(self) -> None:
        """Stop the broker if it runs, and start it with the same port, data and clock, without faults."""
        if self.is_running:
            self.stop()
        self.start()

    def pause(self) -> None:
        """Pause the broker with SIGSTOP: connections stay open, and no request is answered."""
        self._running()
        self._child.pause()

    def resume(self) -> None:
        """Resume the broker after pause(). It answers the requests that arrived since."""
        self._running()
        self._child.resume()

    def close(self) -> None:
        """Kill the broker, release its port, and remove a temporary directory."""
        self.kill()
        self._held_port.close()
        if self._is_temporary:
            shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self if self.is_running else self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def put_right(self) -> None:
        """Undo what a test changed: start the broker if necessary, end its faults, and reset its clock. Raises
        BrokerFailedError, after it restarted the broker, if the broker ended without stop() or kill()."""
        if self._child.process is not None:
            try:
                self.resume()
                self.heal()
                self.clock.reset()
            except BrokerFailedError as error:
                self._start_over()
                raise BrokerFailedError(f"the broker ended by itself: {error}") from error
        else:
            self._start_over()

    def _start_over(self) -> None:
        self.kill()
        self.clock.state = (0, None)
        self.start()

    # Topics, without a client

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, object] | None = None) -> None:
        """Create a topic. `config` has settings by Kafka's names."""
        settings = {key: _text(value) for key, value in (config or {}).items()}
        self._run("create_topic", name=name, partitions=partitions, config=settings)

    def delete_topic(self, name: str, *, if_exists: bool = False) -> None:
        self._run("delete_topic", name=name, if_exists=if_exists)

    # Faults

    def delay(self, seconds: float, *, api: str | None = None, count: int | None = None) -> Fault:
        """Delay responses. `api` limits the fault to one kind of request, like "Produce", and `count` to that many
        responses."""
        if not seconds >= 0:
            raise ValueError(f"seconds is {seconds!r}; it must be 0 or more")
        return self._arm("delay", api, count, seconds)

    def drop(self, *, api: str | None = None, count: int | None = None) -> Fault:
        """Handle requests without sending their responses. A connection that lost a response stays silent, and is
        closed when the fault ends."""
        return self._arm("drop", api, count)

    def disconnect(self, *, api: str | None = None, count: int | None = None) -> Fault:
        """Handle requests, and close the connection instead of sending the response."""
        return self._arm("disconnect", api, count)

    def heal(self) -> None:
        """End all faults."""
        self._run("end_faults")

    def _arm(self, kind: str, api: str | None, count: int | None, seconds: float = 0.0) -> Fault:
        if count is not None and count < 1:
            raise ValueError(f"count is {count}; it must be 1 or more, or None for all responses")
        number, pid = self._run("arm", kind=kind, seconds=seconds, api=api, count=count), self.pid
        return Fault(number, self._run, lambda: self.is_running and self.pid == pid)

    # The process

    def _run(self, command: str, **arguments: object) -> Any:
        self._running()
        if self.is_paused:
            raise BrokerFailedError(f"the broker is paused and can't run {command}; call resume() first")
        return self._exchange([command, arguments])

    def _exchange(self, message: object) -> Any:
        assert self._commands is not None
        line = self._commands.exchange(json.dumps(message), START_SECONDS)
        if not line:
            raise BrokerFailedError(
                f"the broker on {self.bootstrap_servers} ended or hangs{self._child.last_log_lines()}"
            )
        reply = json.loads(line)
        if "error" in reply:
            raise BrokerFailedError(f"the broker on {self.bootstrap_servers}: {reply['error']}")
        return reply["result"]

    def _running(self) -> subprocess.Popen[bytes]:
        process = self._child.process
        if process is None or process.poll() is not None:
            message = f"the broker on {self.bootstrap_servers} is not running; call start() first"
            raise BrokerFailedError(message + self._child.last_log_lines())
        return process

    def _forget(self) -> None:
        self._child.forget()
        self._commands = None


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class CommandLine:
    """A process that receives one line on its stdin and replies with one line on its stdout. Any thread may call it;
    the exchanges take turns."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        """Stdin and stdout of the process must be unbuffered pipes."""
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin = process.stdin
        self._stdout = process.stdout
        self._lock = threading.Lock()

    def exchange(self, line: str, seconds: float) -> str:
        """Send a line and return the reply. Return an empty string if the process has ended or doesn't reply in
        time."""
        with self._lock:
            try:
                self._stdin.write(line.encode() + b"\n")
            except (BrokenPipeError, ValueError):
                return ""
            readable = select.poll()  # select.select() does not support descriptors above 1023
            readable.register(self._stdout, select.POLLIN)
            if not readable.poll(seconds * 1000):
                return ""
            return self._stdout.readline().decode()


class HeldPort:
    """A free port of a host, reserved until close(), also while its broker is down. It is bound, so the system gives it
    to no other process, but does not listen, so the connections of clients are refused.

    Without it, the system could give the port to a connecting client as its own end, and the client would talk to
    itself.
    """

    def __init__(self, host: str) -> None:
        self._socket = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the broker binds it too
        self._socket.bind((host, 0))
        self.number: int = self._socket.getsockname()[1]

    def close(self) -> None:
        self._socket.close()

"""A broker for tests, in a process of its own on a free port of this machine, with faults on demand.

    with BrokerProcess(settings={"num.partitions": 3}) as broker:
        ... any Kafka client, with broker.bootstrap_servers ...
        broker.kill()       # SIGKILL
        broker.restart()    # on the same port and the same data

It is `stratalog serve` in all but its clock and what tests may ask of it. It ends with the `with` block, and with the
process that started it, however that one ends. Calls come back when what they ask for is so.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from stratalog.errors import StratalogError
from stratalog.testing.command_line import CommandLine
from stratalog.testing.controls import BrokerClock, Fault
from stratalog.testing.held_port import HeldPort

START_SECONDS = 60.0
STOP_SECONDS = 30.0
_SHOWN_LINES = 20

# Nobody wants to wait in a test for what makes sense for many members, or for a hundred logs of internal topics.
FOR_TESTS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}


class BrokerFailedError(StratalogError):
    """The broker did not start, is not running, or refused what it was asked for; the message says why."""


class BrokerProcess:
    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        settings: Mapping[str, object] | None = None,
        *,
        host: str = "127.0.0.1",
    ) -> None:
        """`directory` gets the data directory and the log; without one, a temporary one is removed by close()."""
        self._is_temporary = directory is None
        self._directory = Path(tempfile.mkdtemp(prefix="stratalog-") if directory is None else directory)
        self.settings = FOR_TESTS | {name: _text(value) for name, value in (settings or {}).items()}
        """Kafka's names. Changes count at the next start."""
        self.data_dir = self._directory / "data"
        self.log_file = self._directory / "broker.log"
        self.host = host
        self.clock = BrokerClock(self._ask)
        self.is_paused = False
        self._held_port = HeldPort(host)
        self._process: subprocess.Popen[bytes] | None = None
        self._commands: CommandLine | None = None

    @property
    def port(self) -> int:
        """The same over all restarts."""
        return self._held_port.number

    @property
    def bootstrap_servers(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def logs(self) -> str:
        """All that it has logged so far, over all restarts."""
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    # Life

    def start(self) -> Self:
        """Clients can connect when it returns."""
        if self.is_running:
            raise BrokerFailedError(f"the broker on {self.bootstrap_servers} runs already; restart() stops it first")
        self._forget()
        self._directory.mkdir(parents=True, exist_ok=True)
        with self.log_file.open("ab") as log:
            # A session of its own: Ctrl-C is for the tests, which end it.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "stratalog.testing.child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                start_new_session=True,
            )
        self._commands = CommandLine(self._process)
        start = {
            "data_dir": str(self.data_dir.resolve()),
            "settings": self.settings,
            "host": self.host,
            "port": self.port,
            "clock": self.clock.state,
            "parent": os.getpid(),
            # The kernel takes the end of the thread that started a process for the end of its parent.
            "dies_with_thread": threading.current_thread() is threading.main_thread(),
        }
        try:
            self._ask_for(start)
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self) -> None:
        """In order, as SIGTERM does it: requests under way are answered, everything is flushed."""
        process = self._running()
        process.send_signal(signal.SIGTERM)
        self.resume()
        try:
            code = process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerFailedError(f"the broker did not stop within {STOP_SECONDS:g} s{self._last_lines()}") from None
        self._forget()
        if code != 0:
            raise BrokerFailedError(f"the broker stopped with exit code {code}{self._last_lines()}")

    def kill(self) -> None:
        """SIGKILL: no time for anything. One that does not run is left alone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_SECONDS)
        self._forget()

    def restart(self) -> None:
        """Stop it in order if it runs, and start it: the same port, data and clock, without the faults."""
        if self.is_running:
            self.stop()
        self.start()

    def pause(self) -> None:
        """SIGSTOP: connections stay open, and nothing answers."""
        self._running().send_signal(signal.SIGSTOP)
        self.is_paused = True

    def resume(self) -> None:
        """On after pause(); what was asked for meanwhile is answered now."""
        self._running().send_signal(signal.SIGCONT)
        self.is_paused = False

    def close(self) -> None:
        """End it, and remove what is temporary."""
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
        """Undo what a test did to it: it runs, has no faults, and the system's time. An error says that it had ended,
        and not by stop() or kill(); it runs again all the same."""
        if self._process is not None:
            try:
                self.resume()
                self.heal()
                self.clock.reset()
            except BrokerFailedError as error:
                self._start_over()
                raise BrokerFailedError(f"the broker ended, and nobody had asked for it: {error}") from error
        else:
            self._start_over()

    def _start_over(self) -> None:
        self.kill()
        self.clock.state = (0, None)
        self.start()

    # Topics, without a client

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, object] | None = None) -> None:
        settings = {key: _text(value) for key, value in (config or {}).items()}
        self._ask("create_topic", name=name, partitions=partitions, config=settings)

    def delete_topic(self, name: str, *, if_exists: bool = False) -> None:
        self._ask("delete_topic", name=name, if_exists=if_exists)

    # Faults

    def delay(self, seconds: float, *, api: str | None = None, count: int | None = None) -> Fault:
        """Answers come so much later. `api`: of one kind of request only, like "Produce"; `count`: so many of them."""
        if not seconds >= 0:
            raise ValueError(f"seconds is {seconds!r}; it must be 0 or more")
        return self._arm("delay", api, count, seconds)

    def drop(self, *, api: str | None = None, count: int | None = None) -> Fault:
        """Requests are handled, and their answers never come; a connection that lost one is silent from then on. When
        the fault is ended such connections are closed."""
        return self._arm("drop", api, count)

    def disconnect(self, *, api: str | None = None, count: int | None = None) -> Fault:
        """Requests are handled, and instead of an answer the connection is closed."""
        return self._arm("disconnect", api, count)

    def heal(self) -> None:
        """End all faults."""
        self._ask("end_faults")

    def _arm(self, kind: str, api: str | None, count: int | None, seconds: float = 0.0) -> Fault:
        if count is not None and count < 1:
            raise ValueError(f"count is {count}; it must be 1 or more, or None for all")
        number, pid = self._ask("arm", kind=kind, seconds=seconds, api=api, count=count), self.pid
        return Fault(number, self._ask, lambda: self.is_running and self.pid == pid)

    # The process

    def _ask(self, command: str, **arguments: object) -> Any:
        self._running()
        if self.is_paused:
            raise BrokerFailedError(f"the broker is paused and can't do {command}; call resume() first")
        return self._ask_for([command, arguments])

    def _ask_for(self, what: object) -> Any:
        assert self._commands is not None
        line = self._commands.exchange(json.dumps(what), START_SECONDS)
        if not line:
            raise BrokerFailedError(f"the broker on {self.bootstrap_servers} ended or hangs{self._last_lines()}")
        answer = json.loads(line)
        if "error" in answer:
            raise BrokerFailedError(f"the broker on {self.bootstrap_servers}: {answer['error']}")
        return answer["result"]

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise BrokerFailedError(
                f"the broker on {self.bootstrap_servers} does not run; start() it first{self._last_lines()}"
            )
        return self._process

    def _forget(self) -> None:
        if self._commands is not None:
            self._commands.close()
        self._process = self._commands = None
        self.is_paused = False

    def _last_lines(self) -> str:
        lines = self.logs.splitlines()[-_SHOWN_LINES:]
        return "\n".join(["; the last lines of its log:", *lines]) if lines else "; its log is empty"


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

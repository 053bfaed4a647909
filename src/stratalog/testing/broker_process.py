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
from stratalog.testing.command_line import CommandLine
from stratalog.testing.controls import BrokerClock, Fault
from stratalog.testing.held_port import HeldPort

START_SECONDS = 60.0

# Settings that make tests quick and steady: no wait for further members of a group, few internal partitions. Retention
# is applied by clock.advance() alone, so no record vanishes because a test gave it an old timestamp.
FOR_TESTS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "log.retention.check.interval.ms": str(24 * 60 * 60 * 1000),
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
        self.host = host
        self.clock = BrokerClock(self._ask)
        self._held_port = HeldPort(host)
        self._child = BrokerChild(self._directory / "broker.log")
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
        return self._child.is_running

    @property
    def is_paused(self) -> bool:
        return self._child.is_paused

    @property
    def log_file(self) -> Path:
        return self._child.log_file

    @property
    def logs(self) -> str:
        """Everything it has logged so far, over all restarts."""
        return self._child.logs

    # Life

    def start(self) -> Self:
        """Return when clients can connect."""
        if self.is_running:
            raise BrokerFailedError(f"the broker on {self.bootstrap_servers} runs already; restart() stops it first")
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
        """Stop it as SIGTERM does: requests under way are answered, and everything is flushed."""
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
        """Send SIGKILL. A broker that is not running is left alone."""
        self._child.kill()
        self._forget()

    def restart(self) -> None:
        """Stop it in order if it runs, and start it: the same port, data and clock, without the faults."""
        if self.is_running:
            self.stop()
        self.start()

    def pause(self) -> None:
        """SIGSTOP: connections stay open, and nothing answers."""
        self._running()
        self._child.pause()

    def resume(self) -> None:
        """On after pause(); what was asked for meanwhile is answered now."""
        self._running()
        self._child.resume()

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
        if self._child.process is not None:
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
            raise BrokerFailedError(
                f"the broker on {self.bootstrap_servers} ended or hangs{self._child.last_log_lines()}"
            )
        answer = json.loads(line)
        if "error" in answer:
            raise BrokerFailedError(f"the broker on {self.bootstrap_servers}: {answer['error']}")
        return answer["result"]

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

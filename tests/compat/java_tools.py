"""Kafka's programs against one of our brokers, in a module's own process."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tests.broker.process import BrokerProcess
from tests.compat.jvm import SILENT, java_command, run_tool_or_fail

TOOLS = "org.apache.kafka.tools."
PATIENCE_SECONDS = 60
END_SECONDS = 30


def tool(broker: BrokerProcess, name: str, *arguments: str, stdin: str = "") -> str:
    """Run a tool and return its stdout. Its exit code must be 0."""
    server = ("--bootstrap-server", broker.address)
    return run_tool_or_fail(TOOLS + name, [*server, *arguments], stdin=stdin.encode()).stdout.decode()


class EventfulTool:
    """A program that writes its events as JSON lines, and runs until stop()."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.events: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self.events.append(json.loads(line))

    def named(self, name: str) -> list[dict[str, Any]]:
        return [event for event in list(self.events) if event["name"] == name]

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)
        try:
            self._process.wait(END_SECONDS)
        finally:
            self._process.kill()
            self._process.wait(END_SECONDS)
            self._reader.join(END_SECONDS)
            if self._process.stdout is not None:
                self._process.stdout.close()


@contextmanager
def running(broker: BrokerProcess, name: str, *arguments: str) -> Iterator[EventfulTool]:
    command = java_command(
        TOOLS + name, ["--bootstrap-server", broker.address, *arguments], options=("-Xmx128m", *SILENT)
    )
    tool = EventfulTool(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True))
    try:
        yield tool
    finally:
        tool.kill()


def wait_until(done: Callable[[], bool], seen: Sequence[EventfulTool] = ()) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not done():
        if time.monotonic() > deadline:
            last = [tool.events[-3:] for tool in seen]
            raise AssertionError(f"did not happen within {PATIENCE_SECONDS} s; last events: {last}")
        time.sleep(0.05)

"""Ctrl-C at the prompt of `stratalog spark sql`, with a real Spark."""

from __future__ import annotations

import fcntl
import os
import pty
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stratalog.testing import BrokerProcess

PROGRAM = "from stratalog.cli.main import run; run()"
# Far too long to finish; it occupies both cores, so a second query could not run next to it.
ENDLESS = "SELECT count(*) FROM range(0, 1000000000000000, 1, 2) WHERE pow(id, 2) % 7 = 3;\n"
SECONDS = 120


class Prompt:
    """The command in a terminal of its own, so that Ctrl-C reaches it and Spark's Java as it does for a user."""

    def __init__(self, leader: int) -> None:
        self._leader = leader
        self._unread = ""

    def wait_for(self, text: str) -> None:
        while text not in self._unread:
            self._unread += os.read(self._leader, 4096).decode()
        self._unread = self._unread.partition(text)[2]

    def type(self, text: str) -> None:
        os.write(self._leader, text.encode())


@contextmanager
def sql_prompt(broker: BrokerProcess, directory: Path) -> Iterator[Prompt]:
    options = ["--bootstrap-server", broker.bootstrap_servers, "--master", "local[2]"]
    for setting in ("enabled=true", f"dir={directory}", "rolling.enabled=false", "compress=false"):
        options += ["--conf", f"spark.eventLog.{setting}"]
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "spark", "sql", *options],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env=os.environ | {"TERM": "dumb", "XDG_STATE_HOME": str(directory)},
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(follower)
    watchdog = threading.Timer(SECONDS, process.kill)
    watchdog.start()
    try:
        yield Prompt(leader)
        assert process.wait() == 0
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
        os.close(leader)


def wait_for_event(directory: Path, event: str) -> str:
    """Return the line of Spark's event log that contains the event."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        for log in directory.glob("local-*"):
            for line in log.read_text().splitlines():
                if event in line:
                    return line
        time.sleep(0.1)
    raise AssertionError(f"Spark logged no {event}")


@pytest.mark.slow
def test_interrupt_cancels_the_running_query_and_keeps_the_prompt(
    stratalog_broker: BrokerProcess, tmp_path: Path
) -> None:
    with sql_prompt(stratalog_broker, tmp_path) as prompt:
        prompt.wait_for("sql> ")
        prompt.type(ENDLESS)
        wait_for_event(tmp_path, "SparkListenerJobStart")
        prompt.type("\x03")
        assert "cancelled" in wait_for_event(tmp_path, "SparkListenerJobEnd")
        prompt.wait_for("sql> ")
        prompt.type("SELECT count(*), 'answered' FROM range(0, 42, 1, 2);\n")
        prompt.wait_for(" answered")
        prompt.wait_for("sql> ")
        prompt.type("\\q\n")

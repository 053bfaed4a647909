"""The demo as people run it: a process of its own, with few flights; and one that is interrupted."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from stratalog.demo.expectation import delays_per_carrier_and_hour, in_order
from tests.clients.waiting import wait_until

FLIGHTS = 2000
PNG = b"\x89PNG\r\n\x1a\n"


def demo(output: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "stratalog", "demo", "--flights", str(FLIGHTS), "--output", str(output)]
    # In a session of its own: its group is what a terminal would interrupt.
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, cwd=output.parent
    )


def processes_of(output: Path) -> list[str]:
    """Everything that has the demo's directory in its command: broker, JVM and what they started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\x00", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(output) in command:
                found.append(command)
    return found


@pytest.mark.timeout(900)
@pytest.mark.slow
def test_flights_become_a_chart_and_a_table_and_nothing_else_is_left(tmp_path: Path) -> None:
    output = tmp_path / "result"
    with demo(output) as process:
        told, complaints = process.communicate()
    assert (process.returncode, complaints) == (0, ""), told
    for word in ("broker", "replayed", "spark", "streamed", "kept", "asked", "checked", "events/s", "done"):
        assert word in told
    assert str(output / "delays.png") in told
    assert (output / "delays.png").read_bytes().startswith(PNG)
    table = in_order(pd.read_parquet(output / "delays.parquet"))
    pd.testing.assert_frame_equal(table, delays_per_carrier_and_hour(FLIGHTS))
    assert sorted(path.name for path in output.iterdir()) == ["delays.parquet", "delays.png"]
    assert [path.name for path in tmp_path.iterdir()] == ["result"]
    assert processes_of(output) == []
    broker = re.search(r"process (\d+)", told)
    assert broker is not None and not Path(f"/proc/{broker[1]}").exists()


@pytest.mark.timeout(900)
@pytest.mark.slow
def test_interrupt_stops_every_process_and_leaves_no_work(tmp_path: Path) -> None:
    output = tmp_path / "result"
    with demo(output) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("replayed"):  # from here on Spark is being started
                break
        os.killpg(process.pid, signal.SIGINT)
        told, complaints = process.communicate()
    assert (process.returncode, complaints) == (130, "stratalog: interrupted\n"), told
    assert list(output.iterdir()) == []
    wait_until(lambda: not processes_of(output), "the end of what the demo has started")

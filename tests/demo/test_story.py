"""The demo in a process of its own, with few flights, also interrupted."""

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
    """Return the commands of all processes that mention the demo's directory: broker, JVM and their children."""
    commands = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\x00", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(output) in command:
                commands.append(command)
    return commands


@pytest.mark.timeout(900)
@pytest.mark.slow
def test_demo_leaves_only_the_chart_and_the_table(tmp_path: Path) -> None:
    output = tmp_path / "result"
    with demo(output) as process:
        output_text, complaints = process.communicate()
    assert (process.returncode, complaints) == (0, ""), output_text
    for word in ("broker", "replayed", "spark", "streamed", "kept", "queried", "checked", "events/s", "done"):
        assert word in output_text
    assert str(output / "delays.png") in output_text
    assert (output / "delays.png").read_bytes().startswith(PNG)
    table = in_order(pd.read_parquet(output / "delays.parquet"))
    pd.testing.assert_frame_equal(table, delays_per_carrier_and_hour(FLIGHTS))
    assert sorted(path.name for path in output.iterdir()) == ["delays.parquet", "delays.png"]
    assert [path.name for path in tmp_path.iterdir()] == ["result"]
    assert processes_of(output) == []
    broker = re.search(r"process (\d+)", output_text)
    assert broker is not None and not Path(f"/proc/{broker[1]}").exists()


@pytest.mark.timeout(900)
@pytest.mark.slow
def test_interrupt_stops_every_process_and_removes_the_work_directory(tmp_path: Path) -> None:
    output = tmp_path / "result"
    with demo(output) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("replayed"):  # from here on Spark is being started
                break
        os.killpg(process.pid, signal.SIGINT)
        output_text, complaints = process.communicate()
    assert (process.returncode, complaints) == (130, "stratalog: interrupted\n"), output_text
    assert list(output.iterdir()) == []
    wait_until(lambda: not processes_of(output), "the end of what the demo has started")

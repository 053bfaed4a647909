from __future__ import annotations

import io
import logging
import os
import pty
import re
import subprocess
import sys

import pytest

from stratalog.cli import progress
from stratalog.cli.progress import OpeningProgress, ProgressDisplay, RecordProgress
from stratalog.clock import ManualClock

PROGRAM = """
from stratalog.cli.progress import RecordProgress
with RecordProgress(on_terminal={on_terminal}) as progress:
    progress.total_records = 4000
    progress.add(1000, 1024 * 1024)
"""


def stderr_on_a_terminal(program: str) -> str:
    ours, theirs = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", program], stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        try:
            while more := os.read(ours, 4096):
                shown += more
        except OSError:
            pass  # a terminal reports the end of its program like this
        os.close(ours)
        assert process.wait(60) == 0
    return shown.decode()


def test_terminal_gets_counts_and_rates() -> None:
    shown = stderr_on_a_terminal(PROGRAM.format(on_terminal=True))
    assert "1,000 of 4,000 (25%) records, 1.0 MiB, " in shown
    assert shown.endswith("/s\r\n")


def test_nothing_is_shown_if_records_go_to_the_same_terminal() -> None:
    assert stderr_on_a_terminal(PROGRAM.format(on_terminal=False)) == ""


def test_short_work_shows_nothing_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    with RecordProgress() as shown:
        shown.add(1, 1)
    assert capsys.readouterr().err == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def plain(content: str) -> list[str]:
    """The lines that a terminal shows one after the other, without control sequences."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", content).replace("\r", "\n").split("\n")


def shown(stream: io.StringIO, seconds: int, *, total: int | None = None, total_bytes: int | None = None) -> list[str]:
    """A record of a mebibyte each second."""
    clock = ManualClock(0)
    with RecordProgress(stream=stream, clock=clock, total_bytes=total_bytes) as records:
        records.total_records = total
        for _ in range(seconds):
            clock.advance(1000)
            records.add(1, 1024 * 1024)
    return [line for line in plain(stream.getvalue()) if line]


@pytest.mark.parametrize("columns", [80, 120])
def test_terminal_has_a_bar_if_the_total_is_known(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    lines = shown(Terminal(), 10, total_bytes=20 * 1024 * 1024)
    assert all(len(line) <= columns for line in lines)
    bar = next(line for line in lines if " 5 records, 5.0 MiB of 20.0 MiB (25%), " in line)
    assert bar.startswith("━")
    assert ("1 records/s" in bar) == (columns == 120)
    assert bar.endswith("1.0 MiB/s, about 15 s left")
    assert lines[-1] == "10 records, 10.0 MiB of 20.0 MiB (50%), 1 records/s, 1.0 MiB/s"


def test_narrow_terminal_gets_as_much_as_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    assert all(len(line) <= 40 for line in shown(Terminal(), 3, total=10)[:-1])


def test_pipe_gets_a_line_every_few_seconds_if_the_total_is_known() -> None:
    assert shown(io.StringIO(), 12, total=20) == [
        "stratalog: 5 of 20 (25%) records, 5.0 MiB, 1 records/s, 1.0 MiB/s, about 15 s left",
        "stratalog: 10 of 20 (50%) records, 10.0 MiB, 1 records/s, 1.0 MiB/s, about 10 s left",
        "stratalog: 12 of 20 (60%) records, 12.0 MiB, 1 records/s, 1.0 MiB/s",
    ]


def test_pipe_gets_fewer_and_fewer_lines_if_no_end_is_in_sight() -> None:
    lines = shown(io.StringIO(), 200)
    assert [int(line.split()[1]) for line in lines] == [5, 10, 20, 40, 80, 140, 200, 200]


class Working(ProgressDisplay):
    def describe(self) -> str:
        return "working"


def test_other_lines_are_printed_above_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal, clock = Terminal(), ManualClock(0)
    display = Working(stream=terminal, clock=clock)
    display.total = 2
    clock.advance(1000)
    display.update(1)
    progress.print_line("it is back")
    display.close()
    lines = plain(terminal.getvalue())
    assert "it is back" in lines
    assert [line for line in lines if "working" in line][-1] > ""


def opened(stream: io.StringIO, total: int, seconds_each: float) -> None:
    clock = ManualClock(0)
    opening = OpeningProgress(stream, clock)
    for done in range(1, total + 1):
        clock.advance(int(seconds_each * 1000))
        opening(done, total)


def test_long_start_has_a_bar_on_a_terminal_which_is_removed_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    opened(terminal, 10, 1)
    assert any("opened 5 of 10 partitions in 5 s, about 5 s left" in line for line in plain(terminal.getvalue()))
    assert terminal.getvalue().rstrip().endswith("\x1b[2K")  # the last line is cleared


def test_long_start_has_a_line_in_the_log_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    pipe = io.StringIO()
    with caplog.at_level(logging.INFO):
        opened(pipe, 13, 1)
    assert [record.getMessage() for record in caplog.records] == [
        "opened 5 of 13 partitions in 5 s, about 8 s left",
        "opened 10 of 13 partitions in 10 s, about 3 s left",
    ]
    assert pipe.getvalue() == ""


def test_short_start_shows_nothing(caplog: pytest.LogCaptureFixture) -> None:
    for stream in (Terminal(), io.StringIO()):
        opened(stream, 100, 0.001)
        assert stream.getvalue() == ""
    assert caplog.records == []

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys

import pytest

from stratalog.cli.progress_line import ProgressLine
from stratalog.clock import ManualClock

PROGRAM = """
from stratalog.cli.progress_line import ProgressLine
with ProgressLine(also_if={also_if}) as progress:
    progress.total = 4000
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
            pass  # so a terminal says that its program has ended
        os.close(ours)
        assert process.wait(60) == 0
    return shown.decode()


def test_terminal_is_told_how_many_and_how_fast() -> None:
    shown = stderr_on_a_terminal(PROGRAM.format(also_if=True))
    assert "1,000 of 4,000 (25%) records, 1.0 MiB, " in shown
    assert shown.endswith("/s\r\n")


def test_nothing_is_shown_where_records_go_to_the_same_terminal() -> None:
    assert stderr_on_a_terminal(PROGRAM.format(also_if=False)) == ""


def test_nothing_is_shown_in_a_pipe_of_what_is_over_soon(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressLine() as progress:
        progress.add(1, 1)
    assert capsys.readouterr().err == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(stream: io.StringIO, seconds: int, *, total: int | None = None, total_bytes: int | None = None) -> list[str]:
    """A record of a mebibyte each second."""
    clock = ManualClock(0)
    with ProgressLine(stream=stream, clock=clock, total_bytes=total_bytes) as progress:
        progress.total = total
        for _ in range(seconds):
            clock.advance(1000)
            progress.add(1, 1024 * 1024)
    return stream.getvalue().replace("\r\x1b[2K", "\n").splitlines()


@pytest.mark.parametrize("columns", [80, 120])
def test_terminal_has_a_bar_where_the_total_is_known(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = shown(Terminal(), 10, total_bytes=20 * 1024 * 1024)
    assert all(len(line) < columns for line in lines)
    bar = "━" * 5 + "╌" * 15 if columns == 120 else "━" * 2 + "╌" * 8
    assert lines[5].startswith(f"{bar} 5 records, 5.0 MiB of 20.0 MiB (25%), ")
    assert lines[5].endswith(" 1.0 MiB/s, about 15 s left")
    assert lines[-1] == "10 records, 10.0 MiB of 20.0 MiB (50%), 1 records/s, 1.0 MiB/s"


def test_narrow_terminal_gets_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    assert all(len(line) < 20 for line in shown(Terminal(), 3, total=10)[:-1])


def test_pipe_gets_a_line_every_few_seconds_where_the_total_is_known() -> None:
    assert shown(io.StringIO(), 12, total=20) == [
        "stratalog: 5 of 20 (25%) records, 5.0 MiB, 1 records/s, 1.0 MiB/s, about 15 s left",
        "stratalog: 10 of 20 (50%) records, 10.0 MiB, 1 records/s, 1.0 MiB/s, about 10 s left",
        "stratalog: 12 of 20 (60%) records, 12.0 MiB, 1 records/s, 1.0 MiB/s",
    ]


def test_pipe_gets_fewer_and_fewer_lines_where_no_end_is_in_sight() -> None:
    lines = shown(io.StringIO(), 200)
    assert [int(line.split()[1]) for line in lines] == [5, 10, 20, 40, 80, 140, 200, 200]

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from stratalog.cli.progress_line import ProgressLine

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


def test_nothing_is_shown_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressLine() as progress:
        progress.add(1, 1)
    assert capsys.readouterr().err == ""

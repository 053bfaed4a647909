from __future__ import annotations

import io
import logging

import pytest

from stratalog.cli.opening_progress import OpeningProgress
from stratalog.clock import ManualClock


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def opened(stream: io.StringIO, total: int, seconds_each: float) -> None:
    clock = ManualClock(0)
    progress = OpeningProgress(stream, clock)
    for done in range(1, total + 1):
        clock.advance(int(seconds_each * 1000))
        progress(done, total)


def test_long_start_has_a_bar_on_a_terminal_which_is_gone_in_the_end() -> None:
    terminal = Terminal()
    opened(terminal, 10, 1)
    drawn = terminal.getvalue().split("\r\x1b[2K")
    assert drawn[5] == f"opening partitions {'━' * 15}{'╌' * 15} 5 of 10, about 5 s left"
    assert drawn[-1] == ""
    assert "\n" not in terminal.getvalue()


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
        opened(stream, 100, 0.004)
        assert stream.getvalue() == ""
    assert caplog.records == []

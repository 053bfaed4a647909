"""How far a command has got, on stderr: rich's bar on a terminal, elsewhere a plain line every few seconds.

A command that ends within a moment shows neither, and does not import rich.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

from stratalog.cli.wording import format_size, printable
from stratalog.clock import Clock, SystemClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.progress import Progress as Bar

    from stratalog.inspect.findings import Finding

logger = logging.getLogger(__name__)

REDRAW_SECONDS = 0.2
LINE_SECONDS = 5.0
RAREST_LINE_SECONDS = 60.0  # lines become rarer if no end is in sight
_WIDE_COLUMNS = 100  # a narrower terminal has no room for all rates next to the bar
_shown: list[Bar] = []  # at most one bar; other lines on stderr are printed above it


def print_line(line: str) -> None:
    """Write a line to stderr, above a bar that is shown there."""
    line = printable(line)
    if _shown:
        _shown[0].console.print(line, soft_wrap=True)
    else:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def is_stderr_stdout() -> bool:
    """True if both go to the same file or pipe, where progress lines would appear between the records."""
    try:
        return os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno())
    except (OSError, ValueError):
        return False  # there is no file behind one of them


class ProgressDisplay:
    """Shows `describe()` on stderr every now and then, with a bar if `total` is known.

    `on_terminal` and `in_pipe` switch it off in one of the two. With `slows_down`, the pauses between lines grow as
    long as the total is unknown.
    """

    def __init__(
        self,
        describe: Callable[[], str],
        *,
        on_terminal: bool = True,
        in_pipe: bool = True,
        slows_down: bool = False,
        write_line: Callable[[str], None] = print_line,
        stream: TextIO | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.total: float | None = None
        self.lines = 0
        self._describe = describe
        self._slows_down = slows_down
        self._write_line = write_line
        self._stream = stream or sys.stderr
        self._clock = clock or SystemClock()
        is_terminal = self._stream.isatty()
        self.is_bar = is_terminal and on_terminal
        self._is_shown = self.is_bar or (not is_terminal and in_pipe)
        self.started = self._clock.monotonic()
        self._due = self.started + (REDRAW_SECONDS if self.is_bar else LINE_SECONDS)
        self._done_in_line = 0.0
        self._bar: Bar | None = None

    @property
    def seconds(self) -> float:
        return self._clock.monotonic() - self.started

    def update(self, done: float) -> None:
        """Show how much is done, if it is time to."""
        if not self._is_shown or self._clock.monotonic() < self._due:
            return
        if self.is_bar:
            self._due = self._clock.monotonic() + REDRAW_SECONDS
            self._draw(done)
        elif done != self._done_in_line:
            pause = LINE_SECONDS * 2.0 ** min(self.lines, 10) if self._slows_down and not self.total else LINE_SECONDS
            self._due = self._clock.monotonic() + min(pause, RAREST_LINE_SECONDS)
            self._done_in_line = done
            self.lines += 1
            self._write_line(self._describe())

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            _shown.clear()
            self._bar.stop()
            self._bar = None

    def _draw(self, done: float) -> None:
        if self._bar is None:
            self._bar = self._new_bar()
            self._bar.start()
            _shown[:] = [self._bar]
        self._bar.update(self._bar.task_ids[0], completed=done, total=self.total, description=self._describe())
        self._bar.refresh()

    def _new_bar(self) -> Bar:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
        from rich.table import Column

        width_of_text = Column(no_wrap=True, overflow="ellipsis")
        bar = Progress(
            BarColumn(20) if self.total else SpinnerColumn(),
            TextColumn("{task.description}", markup=False, table_column=width_of_text),
            console=Console(file=self._stream, highlight=False, markup=False, emoji=False),
            auto_refresh=False,
            transient=True,
        )
        bar.add_task("", total=self.total)
        return bar


def time_left(share: float | None, seconds: float) -> list[str]:
    """Estimate the remaining time from the share that is done and the time it took."""
    return [f"about {seconds / share - seconds:,.0f} s left"] if share and share < 1 else []


class RecordProgress:
    """Counts the records that `produce` and `consume` handle. Set `total` or `total_bytes` if they are known.

    On a terminal the bar gives way to a summary at the end. A pipe gets one only if there were lines before it.
    """

    def __init__(
        self,
        *,
        on_terminal: bool = True,
        in_pipe: bool = True,
        total_bytes: int | None = None,
        stream: TextIO | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.records = 0
        self.bytes = 0
        self.total: int | None = None
        self.total_bytes = total_bytes
        self._stream = stream or sys.stderr
        self._display = ProgressDisplay(
            self._describe,
            on_terminal=on_terminal,
            in_pipe=in_pipe,
            slows_down=True,
            write_line=lambda line: self._write(f"stratalog: {line}\n"),
            stream=self._stream,
            clock=clock,
        )

    def add(self, records: int, size: int) -> None:
        self.records += records
        self.bytes += size
        done, self._display.total = self._progress()
        self._display.update(done)

    def _progress(self) -> tuple[int, int | None]:
        return (self.records, self.total) if self.total else (self.bytes, self.total_bytes)

    def _describe(self) -> str:
        done, total = self._progress()
        share = min(done / total, 1.0) if total else None
        is_narrow = shutil.get_terminal_size().columns < _WIDE_COLUMNS
        return ", ".join([self._summary(share, is_narrow), *time_left(share, self._display.seconds)])

    def _summary(self, share: float | None, is_narrow: bool = False) -> str:
        percent = "" if share is None else f" ({share:.0%})"
        seconds = max(self._display.seconds, 1e-9)
        rates = f"{format_size(int(self.bytes / seconds))}/s"
        if not (is_narrow and self._display.is_bar):
            rates = f"{self.records / seconds:,.0f} records/s, {rates}"
        if self.total:
            return f"{self.records:,} of {self.total:,}{percent} records, {format_size(self.bytes)}, {rates}"
        of_bytes = f" of {format_size(self.total_bytes)}{percent}" if self.total_bytes else ""
        return f"{self.records:,} records, {format_size(self.bytes)}{of_bytes}, {rates}"

    def _write(self, line: str) -> None:
        self._stream.write(line)
        self._stream.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._display.close()
        done, total = self._progress()
        summary = self._summary(min(done / total, 1.0) if total else None)
        if self._display.is_bar:
            self._write(f"{summary}\n")
        elif self._display.lines:
            self._write(f"stratalog: {summary}\n")


class OpeningProgress:
    """Shows how many partitions a starting broker has opened: call it with (done, total). In a pipe it writes to the
    log."""

    def __init__(self, stream: TextIO | None = None, clock: Clock | None = None) -> None:
        self._done = self._total = 0
        self._display = ProgressDisplay(self._describe, write_line=logger.info, stream=stream, clock=clock)

    def __call__(self, done: int, total: int) -> None:
        self._done, self._total, self._display.total = done, total, total
        if done == total:
            self._display.close()  # the line that says "ready" follows
        else:
            self._display.update(done)

    def _describe(self) -> str:
        seconds = self._display.seconds
        left = "".join(time_left(self._done / self._total, seconds))
        return f"opened {self._done:,} of {self._total:,} partitions in {seconds:.0f} s, {left}"


class VerifyProgress:
    """Shows how many bytes are verified, on a terminal only, and passes on what is found."""

    def __init__(self, report: Callable[[Finding], None], total: int) -> None:
        self.report = report
        self._done = 0
        self._display = ProgressDisplay(self._describe, in_pipe=False)
        self._display.total = max(total, 1)

    def advanced(self, size: int) -> None:
        self._done += size
        self._display.update(self._done)

    def _describe(self) -> str:
        total, seconds = self._display.total or 1, self._display.seconds
        sizes = f"verifying: {format_size(self._done)} of {format_size(int(total))}"
        rate = f"{format_size(int(self._done / max(seconds, 1e-9)))}/s"
        return ", ".join([sizes, rate, *time_left(min(self._done / total, 1.0), seconds)])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._display.close()


class JobProgress:
    """Shows the progress of a job on Spark; it is a `Progress` of stratalog.pipelines."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock
        self._display: ProgressDisplay | None = None
        self._step = ("", 0, "")
        self._done = 0

    def begin(self, what: str, total: int | None, unit: str) -> None:
        self.end()
        self._step, self._done = (what, total or 0, unit), 0
        self._display = ProgressDisplay(self._describe, clock=self._clock)
        self._display.total = total

    def reached(self, done: int) -> None:
        self.within(done)

    def within(self, done: int) -> None:
        if self._display is not None:
            self._done = done
            self._display.update(done)

    @contextmanager
    def of_query(self, spark: SparkSession) -> Iterator[None]:
        """Show how many records Spark has read, while it runs a query."""
        from stratalog.pipelines.job_watch import watched

        self.begin("query", None, "records read")
        try:
            with watched(spark, lambda counts: self.within(counts.read)):
                yield
        finally:
            self.end()

    def note(self, line: str) -> None:
        print_line(line)

    def end(self) -> None:
        """Remove what is shown of the step that began last."""
        if self._display is not None:
            self._display.close()
            self._display = None

    def _describe(self) -> str:
        what, total, unit = self._step
        if unit == "bytes":
            return f"{what}: {format_size(self._done)}" + (f" of {format_size(total)}" if total else "")
        return f"{what}: {self._done:,}" + (f" of {total:,}" if total else "") + f" {unit}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

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
    """Shows `describe()` on stderr every now and then, with a bar if `total` is known, until the `with` block ends.

    `on_terminal` and `in_pipe` switch it off in one of the two. With `slows_down`, the pauses between lines grow as
    long as the total is unknown.
    """

    def __init__(
        self,
        *,
        on_terminal: bool = True,
        in_pipe: bool = True,
        slows_down: bool = False,
        stream: TextIO | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.total: float | None = None
        self.lines = 0
        self._slows_down = slows_down
        self._stream = stream or sys.stderr
        self._clock = clock or SystemClock()
        is_terminal = self._stream.isatty()
        self.is_bar = is_terminal and on_terminal
        self._is_shown = self.is_bar or (not is_terminal and in_pipe)
        self._bar: Bar | None = None
        self.restart()

    def restart(self) -> None:
        """Remove the bar, and count the time from now."""
        self.close()
        self._started = self._clock.monotonic()
        self._due = self._started + (REDRAW_SECONDS if self.is_bar else LINE_SECONDS)
        self._done_in_line = 0.0

    def describe(self) -> str:
        """Return what is shown next to the bar, or in a line."""
        raise NotImplementedError

    def write_line(self, line: str) -> None:
        """Write a line if there is no terminal."""
        self._stream.write(f"{line}\n")
        self._stream.flush()

    @property
    def seconds(self) -> float:
        """The time since the start, never zero."""
        return max(self._clock.monotonic() - self._started, 1e-9)

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
            self.write_line(self.describe())

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            _shown.clear()
            self._bar.stop()
            self._bar = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _draw(self, done: float) -> None:
        if self._bar is None:
            self._bar = self._new_bar()
            self._bar.start()
            _shown[:] = [self._bar]
        self._bar.update(self._bar.task_ids[0], completed=done, total=self.total, description=self.describe())
        self._bar.refresh()

    def _new_bar(self) -> Bar:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
        from rich.table import Column

        bar = Progress(
            BarColumn(20) if self.total else SpinnerColumn(),
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
            console=Console(file=self._stream, highlight=False, markup=False, emoji=False),
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,  # stdout may be a file or a pipe
            redirect_stderr=False,
        )
        bar.add_task("", total=self.total)
        return bar


def time_left(share: float | None, seconds: float) -> list[str]:
    """Estimate the remaining time from the share that is done and the time it took."""
    return [f"about {seconds / share - seconds:,.0f} s left"] if share and share < 1 else []


class RecordProgress(ProgressDisplay):
    """Counts the records that `produce` and `consume` handle. Set `total_records` if it is known.

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
        super().__init__(on_terminal=on_terminal, in_pipe=in_pipe, slows_down=True, stream=stream, clock=clock)
        self.records = 0
        self.bytes = 0
        self.total_records: int | None = None
        self.total_bytes = total_bytes

    def add(self, records: int, size: int) -> None:
        self.records += records
        self.bytes += size
        self.total = self.total_records or self.total_bytes
        self.update(self.records if self.total_records else self.bytes)

    def describe(self) -> str:
        is_narrow = self.is_bar and shutil.get_terminal_size().columns < _WIDE_COLUMNS
        return ", ".join([self._summary(is_narrow=is_narrow), *time_left(self._share(), self.seconds)])

    def write_line(self, line: str) -> None:
        super().write_line(f"stratalog: {line}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if self.is_bar:
            super().write_line(self._summary())
        elif self.lines:
            self.write_line(self._summary())

    def _share(self) -> float | None:
        if self.total_records:
            return min(self.records / self.total_records, 1.0)
        return min(self.bytes / self.total_bytes, 1.0) if self.total_bytes else None

    def _summary(self, *, is_narrow: bool = False) -> str:
        share = self._share()
        percent = "" if share is None else f" ({share:.0%})"
        rates = f"{format_size(int(self.bytes / self.seconds))}/s"
        if not is_narrow:
            rates = f"{self.records / self.seconds:,.0f} records/s, {rates}"
        if self.total_records:
            return f"{self.records:,} of {self.total_records:,}{percent} records, {format_size(self.bytes)}, {rates}"
        of_bytes = f" of {format_size(self.total_bytes)}{percent}" if self.total_bytes else ""
        return f"{self.records:,} records, {format_size(self.bytes)}{of_bytes}, {rates}"


class OpeningProgress(ProgressDisplay):
    """Shows how many partitions a starting broker has opened: call it with (done, total). In a pipe it writes to the
    log."""

    def __init__(self, stream: TextIO | None = None, clock: Clock | None = None) -> None:
        super().__init__(stream=stream, clock=clock)
        self._done = 0

    def __call__(self, done: int, total: int) -> None:
        self._done, self.total = done, total
        if done == total:
            self.close()  # the line that says "ready" follows
        else:
            self.update(done)

    def describe(self) -> str:
        total = self.total or 1
        left = "".join(time_left(self._done / total, self.seconds))
        return f"opened {self._done:,} of {total:,} partitions in {self.seconds:.0f} s, {left}"

    def write_line(self, line: str) -> None:
        logger.info("%s", line)


class VerifyProgress(ProgressDisplay):
    """Shows how many bytes are verified, on a terminal only, and passes on findings."""

    def __init__(self, report: Callable[[Finding], None], total: int, *, on_terminal: bool = True) -> None:
        super().__init__(on_terminal=on_terminal, in_pipe=False)
        self.report = report
        self.total = max(total, 1)
        self._done = 0

    def advanced(self, size: int) -> None:
        self._done += size
        self.update(self._done)

    def describe(self) -> str:
        total = self.total or 1
        sizes = f"verifying: {format_size(self._done)} of {format_size(int(total))}"
        rate = f"{format_size(int(self._done / self.seconds))}/s"
        return ", ".join([sizes, rate, *time_left(min(self._done / total, 1.0), self.seconds)])


class JobProgress(ProgressDisplay):
    """Shows the progress of a job on Spark, step by step; it is a `Progress` of stratalog.pipelines."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock=clock)
        self._what = self._unit = ""
        self._done = 0
        self._has_begun = False

    def begin(self, what: str, total: int | None, unit: str) -> None:
        self._what, self.total, self._unit, self._done = what, total, unit, 0
        self._has_begun = True
        self.restart()

    def reached(self, done: int) -> None:
        self.within(done)

    def within(self, done: int) -> None:
        if self._has_begun:
            self._done = done
            self.update(done)

    @contextmanager
    def of_query(self, spark: SparkSession) -> Iterator[None]:
        """Show how many records Spark has read, while it runs a query."""
        from stratalog.pipelines.job_watch import watched

        self.begin("query", None, "records read")
        try:
            with watched(spark, lambda counts: self.within(counts.read)):
                yield
        finally:
            self._has_begun = False
            self.close()

    def note(self, line: str) -> None:
        print_line(line)

    def describe(self) -> str:
        is_bytes = self._unit == "bytes"
        amounts = [format_size(int(n)) if is_bytes else f"{n:,.0f}" for n in (self._done, self.total) if n is not None]
        return f"{self._what}: {' of '.join(amounts)}{'' if is_bytes else f' {self._unit}'}"

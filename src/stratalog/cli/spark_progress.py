"""How far a job on Spark is, on stderr: a bar at a terminal; elsewhere, in a service's log, a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from stratalog.cli import wording
from stratalog.cli.program import printable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LINE_SECONDS = 5.0  # between lines where there is no terminal; what takes less has none


class TerminalProgress:
    """A Progress of stratalog.pipelines."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = Console(stderr=True, highlight=False, markup=False, emoji=False)
        self._is_shown = sys.stderr.isatty()
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._clock = clock
        self._lines: _Lines | None = None

    def begin(self, what: str, total: int | None, unit: str) -> None:
        self.end()
        if not self._is_shown:
            self._lines = _Lines(what, total, unit, self._clock)
            return
        amount: list[ProgressColumn] = (
            [DownloadColumn(), TransferSpeedColumn()]
            if unit == "bytes"
            else [MofNCompleteColumn() if total else TextColumn("{task.completed:,.0f}"), TextColumn(unit)]
        )
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn(what),
            *([BarColumn()] if total else []),
            *amount,
            TimeRemainingColumn() if total else TimeElapsedColumn(),
            console=self._console,
            transient=True,
        )
        self._task = self._bar.add_task(what, total=total)
        self._bar.start()

    def reached(self, done: int) -> None:
        self.within(done)

    def within(self, done: int) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done)
        elif self._lines is not None and (line := self._lines.next(done)):
            self.note(line)

    @contextmanager
    def of_query(self, spark: SparkSession) -> Iterator[None]:
        """While Spark works on a query: how many records it has read."""
        from stratalog.pipelines.job_watch import watched

        self.begin("query", None, "records read")
        try:
            with watched(spark, lambda counts: self.within(counts.read)):
                yield
        finally:
            self.end()

    def note(self, text: str) -> None:
        self._console.print(printable(text), soft_wrap=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """What began last is over: nothing is shown of it any more."""
        if self._bar is not None:
            self._bar.stop()
        self._bar = self._task = self._lines = None


class _Lines:
    """Which lines are worth writing: of what takes long, one now and then, if it has got on."""

    def __init__(self, what: str, total: int | None, unit: str, clock: Callable[[], float]) -> None:
        self._what = what
        self._total = total
        self._unit = unit
        self._clock = clock
        self._next = clock() + LINE_SECONDS
        self._said = 0

    def next(self, done: int) -> str | None:
        if done == self._said or self._clock() < self._next:
            return None
        self._next = self._clock() + LINE_SECONDS
        self._said = done
        if self._unit == "bytes":
            share = f" of {wording.size(self._total)}" if self._total else ""
            return f"{self._what}: {wording.size(done)}{share}"
        share = f" of {self._total:,}" if self._total else ""
        return f"{self._what}: {done:,}{share} {self._unit}"

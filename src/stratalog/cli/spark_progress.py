"""How far a job on Spark is: a bar on stderr, for people; in a pipe nothing."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

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

from stratalog.cli.program import printable


class TerminalProgress:
    """A Progress of stratalog.pipelines."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False, markup=False, emoji=False)
        self._is_shown = sys.stderr.isatty()
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def begin(self, what: str, total: int | None, unit: str) -> None:
        self._end()
        if not self._is_shown:
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
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done)

    def note(self, text: str) -> None:
        self._console.print(printable(text), soft_wrap=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        if self._bar is not None:
            self._bar.stop()
        self._bar = self._task = None

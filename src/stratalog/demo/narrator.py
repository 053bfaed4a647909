"""The demo's output: a line for each step that is done, and a bar or a spinner while a step runs.

On a terminal it has colours. Elsewhere it is plain lines, which are never cut, without bars.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

_TITLE = 11


class Narrator:
    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False, markup=False, emoji=False)
        self._started = time.perf_counter()

    @property
    def seconds(self) -> float:
        """The time since the start."""
        return time.perf_counter() - self._started

    def headline(self, text: str) -> None:
        self._line(Text(text, "bold"))

    def report(self, title: str, text: str, figure: str = "", quiet: str = "") -> None:
        """Print a step that is done: its name, a description, its main figure, and details."""
        parts: list[str | tuple[str, str]] = [(f"{title:<{_TITLE}}", "bold cyan"), text]
        if figure:
            parts.append((f"  {figure}", "green"))
        if quiet:
            parts.append((f"  {quiet}", "bright_black"))
        self._line(Text.assemble(*parts))

    def warn(self, text: str) -> None:
        self._line(Text.assemble((f"{'warning':<{_TITLE}}", "bold yellow"), text))

    def confirm(self, title: str, text: str) -> None:
        self._line(Text.assemble((f"{title:<{_TITLE}}", "bold cyan"), ("✓ ", "bold green"), (text, "green")))

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table. Columns are on the right, except those whose name ends with a space."""
        table = Table(box=None, padding=(0, 2), pad_edge=False, header_style="bright_black")
        for name in columns:
            table.add_column(name.strip(), justify="left" if name.endswith(" ") else "right", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        with self._console.capture() as capture:
            self._console.print(table)
        for line in capture.get().rstrip("\n").splitlines():
            self._line(Text(" " * _TITLE) + Text.from_ansi(line))

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Show a spinner, for a step without a measure of progress."""
        with self._progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()) as progress:
            progress.add_task(what, total=None)
            yield

    @contextmanager
    def bar(self, what: str, total: int) -> Iterator[Callable[[int], None]]:
        """Show a bar, and yield the function that sets how much is done."""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with self._progress(*columns) as progress:
            task = progress.add_task(what, total=total)
            yield lambda done: progress.update(task, completed=done)

    def _progress(self, *columns: ProgressColumn) -> Progress:
        return Progress(*columns, console=self._console, transient=True, disable=not self._console.is_terminal)

    def _line(self, text: Text) -> None:
        self._console.print(text, soft_wrap=True)

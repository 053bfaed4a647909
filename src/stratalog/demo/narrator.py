"""How the demo talks: a line for what was done, with the time it took, and a bar while something is under way.

On a terminal with colours; elsewhere plain lines, never cut, and no bars.
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
        self._begun = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.perf_counter() - self._begun

    def headline(self, text: str) -> None:
        self._line(Text(text, "bold"))

    def said(self, title: str, text: str, figure: str = "", quiet: str = "") -> None:
        """One line of the story: what, in words, what it came to, and what is of interest to some."""
        parts: list[str | tuple[str, str]] = [(f"{title:<{_TITLE}}", "bold cyan"), text]
        if figure:
            parts.append((f"  {figure}", "green"))
        if quiet:
            parts.append((f"  {quiet}", "bright_black"))
        self._line(Text.assemble(*parts))

    def warn(self, text: str) -> None:
        self._line(Text.assemble((f"{'warning':<{_TITLE}}", "bold yellow"), text))

    def good(self, title: str, text: str) -> None:
        self._line(Text.assemble((f"{title:<{_TITLE}}", "bold cyan"), ("✓ ", "bold green"), (text, "green")))

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Columns of text left, of numbers right: those whose name ends with a space are text."""
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
        """A spinner for what can't say how far it is."""
        with self._progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()) as progress:
            progress.add_task(what, total=None)
            yield

    @contextmanager
    def bar(self, what: str, total: int) -> Iterator[Callable[[int], None]]:
        """Yields how to say how far it is."""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with self._progress(*columns) as progress:
            task = progress.add_task(what, total=total)
            yield lambda done: progress.update(task, completed=done)

    def _progress(self, *columns: ProgressColumn) -> Progress:
        return Progress(*columns, console=self._console, transient=True, disable=not self._console.is_terminal)

    def _line(self, text: Text) -> None:
        self._console.print(text, soft_wrap=True)

"""Everything that commands print on stdout: lines, and rows as a table, as JSON or as CSV.

A row is a dict of the fields that scripts read as JSON; a table is a view of it. On a terminal there are colours,
tables fold long cells, and a line may be cut at the edge. In a pipe, output is plain and complete. rich is imported
only for a terminal or a table.
"""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from stratalog.cli.program import writing_to_stdout
from stratalog.cli.wording import format_size, format_time, printable

if TYPE_CHECKING:
    from rich.console import Console

Part: TypeAlias = str | tuple[str, str]
"""A text, or a text with its style."""
Row: TypeAlias = Mapping[str, Any]
CellOf: TypeAlias = Callable[[Any], object]
"""A function of a row that returns a cell of the table."""
Columns: TypeAlias = Mapping[str, str | CellOf]
"""The titles of a table, each with the name of the row's field, or a function of the row."""

GOOD, BAD, DOUBTFUL, QUIET, STRONG, NAME = "green", "bold red", "yellow", "bright_black", "bold", "cyan"
_PIPE_WIDTH = 100  # for output that is drawn to a width
_UNLIMITED = 1_000_000


class Size(int):
    """A number of bytes, which a table shows with its unit."""


def text(field: str) -> CellOf:
    """Return the cell of an identifier: a number without commas, on the left."""
    return lambda row: None if row[field] is None else str(row[field])


def ids(field: str) -> CellOf:
    """Return the cell of a list of broker ids; an empty list is a dash."""
    return lambda row: ",".join(map(str, row[field])) or None


def size(field: str) -> CellOf:
    return lambda row: None if row[field] is None else Size(row[field])


def time(field: str) -> CellOf:
    return lambda row: None if row[field] is None or row[field] < 0 else format_time(row[field])


class Output:
    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json

    @cached_property
    def is_terminal(self) -> bool:
        return (sys.stdout.isatty() or bool(os.environ.get("FORCE_COLOR"))) and self.console.is_terminal

    @cached_property
    def console(self) -> Console:
        from rich.console import Console

        return Console(highlight=False, markup=False, emoji=False)

    @property
    def width(self) -> int:
        """The number of columns to draw to."""
        return self.console.width if self.is_terminal else _PIPE_WIDTH

    def line(self, *parts: Part, clip: bool = False) -> None:
        """Print one line. With `clip`, a terminal cuts it at the edge."""
        if not self.is_terminal:
            self._write("".join(part if isinstance(part, str) else part[0] for part in parts).rstrip() + "\n")
            return
        from rich.text import Text

        line = Text.assemble(*parts)
        if clip:
            self.console.print(line, no_wrap=True, overflow="ellipsis", crop=True)
        else:
            self.console.print(line, soft_wrap=True)

    def json(self, fields: Row) -> None:
        self._write(json.dumps(fields, ensure_ascii=True) + "\n")

    def rows(
        self, rows: Sequence[Row], columns: Columns, *, empty: str = "", indent: int = 0, clip: bool = False
    ) -> None:
        """Print rows of one kind: as JSON with all their fields, or as a table with `columns`, each under its title.
        Without rows, print the line `empty` instead of a table."""
        if self.as_json:
            for row in rows:
                self.json(row)
        elif rows:
            cells = [cell if callable(cell) else (lambda row, field=cell: row[field]) for cell in columns.values()]
            self.table(list(columns), [[cell(row) for cell in cells] for row in rows], indent, clip=clip)
        elif empty:
            self.line((empty, QUIET))

    def table(
        self, titles: Sequence[str], rows: Sequence[Sequence[object]], indent: int = 0, *, clip: bool = False
    ) -> None:
        """Print a table. Numbers are on the right, with commas; None is a dash; a cell may be (value, style). A
        terminal folds cells that are too long, or with `clip` cuts them."""
        from rich.console import Console
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style=QUIET)
        overflow: Literal["ellipsis", "fold"] = "ellipsis" if clip else "fold"
        for index, title in enumerate(titles):
            is_number = any(isinstance(_value(row[index]), int) for row in rows)
            table.add_column(title, justify="right" if is_number else "left", no_wrap=is_number, overflow=overflow)
        for row in rows:
            styled = (cell if isinstance(cell, tuple) else (cell, "") for cell in row)
            table.add_row(*(Text(_text_of(value), style) for value, style in styled))
        padded = Padding(table, (0, 0, 0, indent), expand=False)
        if self.is_terminal:
            self.console.print(padded)
            return
        lines = io.StringIO()
        Console(file=lines, width=_UNLIMITED, no_color=True, highlight=False, markup=False, emoji=False).print(padded)
        self._write("".join(f"{line.rstrip()}\n" for line in lines.getvalue().splitlines()))

    def csv(self, cells: Iterable[object]) -> None:
        """Print one line of CSV; None is an empty cell."""
        with writing_to_stdout():
            csv.writer(sys.stdout, lineterminator="\n").writerow(["" if cell is None else cell for cell in cells])

    def _write(self, content: str) -> None:
        with writing_to_stdout():
            sys.stdout.write(content)


def _value(cell: object) -> object:
    value = cell[0] if isinstance(cell, tuple) else cell
    return None if isinstance(value, bool) else value


def _text_of(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, Size):
        return format_size(value)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else printable(value)

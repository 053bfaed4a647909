"""The output of a benchmark: a table of rows with their targets. Also a temporary directory for its files."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Row:
    what: str
    measured: str
    target: str
    met: bool | None
    cpu: str = ""


@contextmanager
def directory(parent: Path | None) -> Iterator[Path]:
    """Create a temporary directory, and delete it with its content at the end."""
    path = Path(tempfile.mkdtemp(prefix="stratalog-bench-", dir=parent))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def report(title: str, rows: Iterable[Row], console: Console) -> bool:
    """Print the table, and return whether no target was missed."""
    table = Table(title=title)
    for column in ("what", "measured", "target", "", "CPU"):
        table.add_column(column)
    met = True
    for row in rows:
        mark = "" if row.met is None else "met" if row.met else "[red]missed[/red]"
        table.add_row(row.what, row.measured, row.target, mark, row.cpu)
        met = met and row.met is not False
    console.print(table)
    return met

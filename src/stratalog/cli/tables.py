"""Rows in columns that fit what is in them; numbers stand right, with commas, and what is None is a dash."""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.cli.output import QUIET, Output
from stratalog.cli.program import printable

_GAP = "  "


def print_table(output: Output, columns: Sequence[str], rows: Sequence[Sequence[object]], indent: str = "") -> None:
    texts = [[_text(cell) for cell in row] for row in rows]
    widths = [max(len(column), *(len(row[i]) for row in texts), 0) for i, column in enumerate(columns)]
    right = [any(_is_number(row[i]) for row in rows) for i in range(len(columns))]
    output.line((indent + _joined(columns, widths, right), QUIET))
    for row in texts:
        output.line(indent + _joined(row, widths, right))


def _joined(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    aligned = [
        cell.rjust(width) if is_right else cell.ljust(width)
        for cell, width, is_right in zip(cells, widths, right, strict=True)
    ]
    return _GAP.join(aligned).rstrip()


def _text(cell: object) -> str:
    if cell is None:
        return "-"
    return f"{cell:,}" if _is_number(cell) else printable(str(cell))


def _is_number(cell: object) -> bool:
    return isinstance(cell, int) and not isinstance(cell, bool)

"""stratalog page-cache: which parts of the files are in RAM, as a picture."""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratalog.cli.program import CommandError

if TYPE_CHECKING:
    from stratalog.cli.output import Output
    from stratalog.inspect.page_cache import Residency

HELP = """Show which parts of files are in RAM, that is, in the kernel's page cache.

Looking changes nothing: no page is read in. The bar is the file from its first byte to its last; each cell says how
much of its stretch is in RAM. Since Linux 5.2 this is told to who may write the files; others see everything as full.

\b
Examples:
  stratalog page-cache data/orders-0
  stratalog page-cache --sort size data
  stratalog page-cache --watch 1 data/orders-0/*.log
  stratalog page-cache --json data
"""

_CELLS = "·░▒▓█"
_NAME_MOST, _BAR_LEAST, _BAR_MOST = 48, 12, 80
_NUMBERS = 23  # columns between name and bar: size and percentage


class Order(StrEnum):
    NAME = "name"
    SIZE = "size"
    RESIDENT = "resident"


def command(
    paths: Annotated[
        list[Path], typer.Argument(metavar="DIR|FILE...", show_default=False, help="Files, or directories of them.")
    ],
    sort: Annotated[Order, typer.Option(help="Order of the files; the largest first.")] = Order.NAME,
    watch: Annotated[
        float | None, typer.Option(min=0.1, metavar="SECONDS", show_default=False, help="Look again and again.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")] = False,
) -> None:
    from stratalog.cli.output import Output

    output = Output(as_json=as_json)
    _show(output, paths, sort)
    while watch is not None:
        time.sleep(watch)
        if output.is_terminal:
            output.console.clear()
        elif not as_json:
            output.line()
        _show(output, paths, sort)


def _show(output: Output, paths: list[Path], sort: Order) -> None:
    found = _residencies(paths, sort)
    if not found:
        raise CommandError(f"{paths[0]}: has no files; give a partition's or a data directory")
    if output.as_json:
        for one in found:
            output.json(_as_json(one))
        output.json({"type": "total", **_total(found)})
    else:
        draw(output, found, _common_folder(paths))


def _residencies(paths: list[Path], sort: Order) -> list[Residency]:
    from stratalog.inspect.page_cache import regular_files, residency

    found = []
    named = set(paths)
    for path in regular_files(paths):
        try:
            found.append(residency(path, _BAR_MOST))
        except FileNotFoundError:
            if path in named:
                raise  # asked for by name; others may go while we look
    if sort is Order.SIZE:
        found.sort(key=lambda one: -one.size)
    elif sort is Order.RESIDENT:
        found.sort(key=lambda one: -one.resident_bytes)
    return found


def draw(output: Output, found: list[Residency], folder: Path | None) -> None:
    """A line a file and a total."""
    from stratalog.cli import wording
    from stratalog.cli.output import GOOD, QUIET, STRONG

    names = [wording.name(one.path if folder is None else one.path.relative_to(folder)) for one in found]
    name_width = min(max(map(len, [*names, "total"])), _NAME_MOST, max(output.width - _NUMBERS - _BAR_LEAST, 16))
    bar_width = max(min(output.width - name_width - _NUMBERS, _BAR_MOST), _BAR_LEAST)
    output.line((f"{'file':<{name_width}}  {'size':>10}  in RAM", QUIET))
    for name, one in zip(names, found, strict=True):
        output.line(
            f"{wording.fitted(name, name_width):<{name_width}}  {wording.size(one.size):>10}  ",
            (_percent(one.share) if one.pages else "    -", STRONG),
            "  ",
            (bar(one.parts, bar_width), GOOD),
        )
    total = _total(found)
    share = total["resident_pages"] / total["pages"] if total["pages"] else 0.0
    sizes = f"{wording.size(total['resident_bytes'])} of {wording.size(total['size'])}"
    output.line(
        (f"{'total':<{name_width}}  {wording.size(total['size']):>10}  {_percent(share)}", STRONG),
        (f"  {sizes}", QUIET),
    )


def _percent(share: float) -> str:
    """Rounded down: 100 % is all of it."""
    return f"{int(share * 100):>4}%"


def bar(parts: tuple[float, ...], width: int) -> str:
    """A cell for each stretch of the file; a file of few pages gets few cells."""
    if not parts:
        return ""
    cells = min(width, len(parts))
    shares = []
    for cell in range(cells):
        stretch = parts[cell * len(parts) // cells : (cell + 1) * len(parts) // cells]
        shares.append(sum(stretch) / len(stretch))
    return "".join(_cell(share) for share in shares)


def _cell(share: float) -> str:
    """Only nothing looks empty and only all of it full."""
    if share <= 0:
        return _CELLS[0]
    return _CELLS[-1] if share >= 1 else _CELLS[1 + min(int(share * 3), 2)]


def _common_folder(paths: list[Path]) -> Path | None:
    return paths[0] if len(paths) == 1 and paths[0].is_dir() else None


def _total(found: list[Residency]) -> dict[str, int]:
    return {
        "files": len(found),
        "size": sum(one.size for one in found),
        "pages": sum(one.pages for one in found),
        "resident_pages": sum(one.resident_pages for one in found),
        "resident_bytes": sum(one.resident_bytes for one in found),
    }


def _as_json(one: Residency) -> dict[str, Any]:
    from stratalog.cli import wording

    return {
        "type": "file",
        "file": wording.name(one.path),
        "size": one.size,
        "pages": one.pages,
        "resident_pages": one.resident_pages,
        "resident_bytes": one.resident_bytes,
        "parts": [round(share, 4) for share in one.parts],
    }

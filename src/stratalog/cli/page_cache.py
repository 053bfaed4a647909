"""stratalog page-cache: show which parts of files are in RAM, as a picture."""

from __future__ import annotations

import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from stratalog.cli.options import AsJson, CommandGroup, argument, option
from stratalog.cli.output import GOOD, QUIET, STRONG, Output, Size
from stratalog.cli.program import CommandError
from stratalog.cli.wording import format_size, printable, shorten
from stratalog.inspect.page_cache import Residency, regular_files, residency

_CELLS = "·░▒▓█"
_NAME_MOST, _BAR_LEAST, _BAR_MOST = 48, 12, 80
_NUMBERS = 25  # columns of size and percentage, with their gaps

app = CommandGroup()


class Order(StrEnum):
    NAME = "name"
    SIZE = "size"
    RESIDENT = "resident"


@app.add("page-cache")
def page_cache(
    paths: Annotated[list[Path], argument("DIR|FILE...", "Files, or directories of them.")],
    sort: Annotated[
        Order,
        option("--sort", "name|size|resident", "The order of the files; the largest is first.", show_default=True),
    ] = Order.NAME,
    watch: Annotated[
        float | None, option("--watch", "SECONDS", "Repeat after this pause, until interrupted.", min=0.1)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show which parts of files are in RAM, that is, in the kernel's page cache.

    The command changes nothing: it reads no page into RAM. The bar is the file from its first byte to its last; each
    cell shows how much of its part is in RAM. Since Linux 5.2, the kernel reports this only to users who may write the
    files; for others everything looks resident.

    \b
    Examples:
      stratalog page-cache stratalog-data/orders-0
      stratalog page-cache --sort size stratalog-data
      stratalog page-cache --watch 1 stratalog-data/orders-0/*.log
      stratalog page-cache --json stratalog-data
    """
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
    files = _residencies(paths, sort)
    if not files:
        raise CommandError(f"{paths[0]}: has no files; give a partition directory or a data directory")
    if not output.as_json:
        draw(output, files, paths[0] if len(paths) == 1 and paths[0].is_dir() else None)
        return
    for file in files:
        output.json(
            {
                "type": "file",
                "file": printable(file.path),
                "size": file.size,
                "pages": file.pages,
                "resident_pages": file.resident_pages,
                "resident_bytes": file.resident_bytes,
                "parts": [round(share, 4) for share in file.parts],
            }
        )
    output.json({"type": "total", **_total(files)})


def _residencies(paths: list[Path], sort: Order) -> list[Residency]:
    files = []
    for path in regular_files(paths):
        try:
            files.append(residency(path, _BAR_MOST))
        except FileNotFoundError:
            if path in paths:
                raise  # it was named; files of a directory may be deleted meanwhile
    if sort is Order.SIZE:
        files.sort(key=lambda file: -file.size)
    elif sort is Order.RESIDENT:
        files.sort(key=lambda file: -file.resident_bytes)
    return files


def draw(output: Output, files: Sequence[Residency], folder: Path | None) -> None:
    """Print a line for each file, and a total. Names are relative to `folder`."""
    names = [printable(file.path if folder is None else file.path.relative_to(folder)) for file in files]
    name_width = min(max(map(len, [*names, "total"])), _NAME_MOST, max(output.width - _NUMBERS - _BAR_LEAST, 16))
    bar_width = max(min(output.width - name_width - _NUMBERS, _BAR_MOST), _BAR_LEAST)
    rows: list[list[object]] = [
        [
            shorten(name, name_width),
            Size(file.size),
            (_percent(file.share) if file.pages else "   -", STRONG),
            (bar(file.parts, bar_width), GOOD),
        ]
        for name, file in zip(names, files, strict=True)
    ]
    total = _total(files)
    share = total["resident_pages"] / total["pages"] if total["pages"] else 0.0
    sizes = f"{format_size(total['resident_bytes'])} of {format_size(total['size'])}"
    rows.append([("total", STRONG), (Size(total["size"]), STRONG), (_percent(share), STRONG), (sizes, QUIET)])
    output.table(("file", "size", "in RAM", ""), rows)


def _percent(share: float) -> str:
    """Round down, so that 100% means all of it."""
    return f"{int(share * 100):>3}%"


def bar(parts: tuple[float, ...], width: int) -> str:
    """Return a cell for each part of the file. A file of few pages gets few cells."""
    if not parts:
        return ""
    cells = min(width, len(parts))
    shares = []
    for cell in range(cells):
        covered = parts[cell * len(parts) // cells : (cell + 1) * len(parts) // cells]
        shares.append(sum(covered) / len(covered))
    return "".join(_cell(share) for share in shares)


def _cell(share: float) -> str:
    """Look empty only if nothing is in RAM, and full only if all of it is."""
    if share <= 0:
        return _CELLS[0]
    return _CELLS[-1] if share >= 1 else _CELLS[1 + min(int(share * 3), 2)]


def _total(files: Sequence[Residency]) -> dict[str, int]:
    return {
        "files": len(files),
        "size": sum(file.size for file in files),
        "pages": sum(file.pages for file in files),
        "resident_pages": sum(file.resident_pages for file in files),
        "resident_bytes": sum(file.resident_bytes for file in files),
    }

"""stratalog dump-log: what is in a file of a log, row by row."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stratalog.cli.program import BAD_INPUT, FOUND_PROBLEMS, complain, describe
from stratalog.errors import StorageError

if TYPE_CHECKING:
    from stratalog.cli.output import Output
    from stratalog.inspect.dump import Options

HELP = """Show what is in a log's files: batches, records, index entries, producers, checkpoints.

Knows *.log (of magic 0, 1 and 2), *.index, *.timeindex, *.txnindex, *.snapshot, leader-epoch-checkpoint,
*-offset-checkpoint and partition.metadata. Exit code 1: a file is damaged; where and why is shown.

\b
Examples:
  stratalog dump-log data/orders-0/00000000000000000000.log
  stratalog dump-log --records --limit 20 data/orders-0/*.log
  stratalog dump-log data/orders-0/*.index data/orders-0/*.timeindex
  stratalog dump-log --json data/recovery-point-offset-checkpoint
"""


def command(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", show_default=False, help="Files to show.")],
    records: Annotated[bool, typer.Option("--records", "-r", help="Show the records of each batch.")] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=0, help="Show so many rows of each file.", show_default=False)
    ] = None,
    max_bytes: Annotated[
        int | None, typer.Option(min=0, help="Read so many bytes of each .log.", show_default=False)
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Do not shorten keys and values.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")] = False,
) -> None:
    from stratalog.cli.output import Output
    from stratalog.inspect.dump import Options

    output = Output(as_json=as_json)
    options = Options(records=records, max_bytes=max_bytes)
    code = 0
    for number, path in enumerate(files):
        code = max(code, _dump_one(output, path, options, limit, full=full, is_first=number == 0))
    raise typer.Exit(code)


def _dump_one(output: Output, path: Path, options: Options, limit: int | None, *, full: bool, is_first: bool) -> int:
    """Show one file; the exit code that it deserves. The others are shown whatever becomes of this one."""
    from stratalog.cli.row_lines import RowPrinter
    from stratalog.inspect.dump import dump

    try:
        if path.is_dir():
            raise StorageError(f"{path}: is a directory; give the files in it, like {path}/*.log")
        if not path.exists():
            raise StorageError(f"{path}: no such file; check the path")
        dumped = dump(path, options)
        if not is_first and not output.as_json:
            output.line()
        printer = RowPrinter(output, dumped, full=full)
        for row in dumped.rows:
            if limit is not None and printer.shown >= limit and row.type != "problem":
                printer.cut_short()
                break
            printer.row(row)
    except StorageError as error:
        return complain(str(error))
    except BrokenPipeError:
        raise
    except OSError as error:
        complain(describe(error))
        return BAD_INPUT
    printer.end()
    return FOUND_PROBLEMS if printer.problems else 0

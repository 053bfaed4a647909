"""stratalog verify: everything that can be wrong with a partition or a data directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stratalog.cli.program import FOUND_PROBLEMS, CommandError

if TYPE_CHECKING:
    from stratalog.inspect.verify import Report

HELP = """Check a partition, or all partitions of a data directory.

Every checksum, the framing, the offsets within and across segments, every record, every index entry, time indexes,
transaction indexes, snapshots, checkpoints and leader epochs. An ERROR is a damaged record; a WARNING is something
beside the records, that can be made again from them; a NOTE is worth knowing. Gaps between offsets are notes, as
compaction makes them. Exit code 1: there are errors or warnings (or, with --strict, gaps).

\b
Examples:
  stratalog verify data
  stratalog verify data/orders-0
  stratalog verify --no-deep data        checksums, but not every record
  stratalog verify --strict --json data/orders-0
"""


def command(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", show_default=False, help="A partition's or a data directory.")
    ],
    deep: Annotated[bool, typer.Option(help="Inflate batches and walk through every record.")] = True,
    strict: Annotated[
        bool, typer.Option("--strict/--allow-gaps", help="Whether gaps between offsets are problems.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")] = False,
) -> None:
    from stratalog.cli.output import Output
    from stratalog.cli.verify_report import Listener, show_report
    from stratalog.inspect.verify import total_log_bytes, verify

    if not directory.is_dir():
        problem = "is not a directory" if directory.exists() else "does not exist"
        raise CommandError(f"{directory}: {problem}; give a partition's or a data directory")
    output = Output(as_json=as_json)
    with Listener(output, total_log_bytes(directory)) as listener:
        report = verify(directory, listener, deep=deep)
    show_report(output, report, listener.findings)
    if report.problems or (strict and _gaps(report)):
        raise typer.Exit(FOUND_PROBLEMS)


def _gaps(report: Report) -> int:
    return sum(partition.gaps for partition in report.partitions)

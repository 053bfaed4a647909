"""stratalog verify: find everything that can be wrong with a partition or a data directory.

As JSON, findings are printed when they are made; the summaries come at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from stratalog.cli.options import AsJson, CommandGroup, argument, flag
from stratalog.cli.output import BAD, DOUBTFUL, GOOD, NAME, QUIET, STRONG, Output, Size
from stratalog.cli.program import FOUND_PROBLEMS, CommandError
from stratalog.cli.progress import VerifyProgress
from stratalog.cli.wording import is_internal, pluralize, printable, shorten
from stratalog.inspect.findings import Finding, Severity
from stratalog.inspect.verify import PartitionSummary, Report, total_log_bytes
from stratalog.inspect.verify import verify as verify_logs

_STYLES = {Severity.ERROR: BAD, Severity.WARNING: DOUBTFUL, Severity.NOTE: QUIET}
_NAME_WIDTH = 30

app = CommandGroup()


@app.add("verify")
def verify(
    directory: Annotated[Path, argument("DIR", "A partition directory or a data directory.")],
    deep: Annotated[
        bool, flag("--deep/--no-deep", "Decompress batches and read every record.", show_default=True)
    ] = True,
    strict: Annotated[
        bool, flag("--strict/--allow-gaps", "Whether gaps between offsets are problems.", show_default=True)
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check a partition, or all partitions of a data directory.

    Checks every checksum, the framing, the offsets within and across segments, every record, every index entry, time
    indexes, transaction indexes, snapshots, checkpoints and leader epochs. An ERROR is a damaged record; a WARNING is
    something that can be rebuilt from the records; a NOTE is worth knowing. Gaps between offsets are notes, because
    compaction makes them. Exit code 1: there are errors or warnings (or, with --strict, gaps).

    \b
    Examples:
      stratalog verify stratalog-data
      stratalog verify stratalog-data/orders-0
      stratalog verify --no-deep stratalog-data        checksums, but not every record
      stratalog verify --strict --json stratalog-data/orders-0
    """
    check_directory(directory, "give a partition directory or a data directory")
    output = Output(as_json=as_json)
    findings: list[Finding] = []

    def report_finding(finding: Finding) -> None:
        if as_json:
            output.json(finding_row(finding))
        else:
            findings.append(finding)

    with VerifyProgress(report_finding, total_log_bytes(directory), on_terminal=not as_json) as progress:
        report = verify_logs(directory, progress, deep=deep)
    show_report(output, report, findings)
    if report.problems or (strict and any(partition.gaps for partition in report.partitions)):
        raise typer.Exit(FOUND_PROBLEMS)


def check_directory(directory: Path, advice: str) -> None:
    if not directory.is_dir():
        problem = "is not a directory" if directory.exists() else "does not exist"
        raise CommandError(f"{directory}: {problem}; {advice}")


def finding_row(finding: Finding) -> dict[str, object]:
    return {
        "type": "finding",
        "severity": finding.severity.value,
        "file": printable(finding.file),
        "position": finding.position,
        "what": finding.what,
        "advice": finding.advice,
    }


def show_report(output: Output, report: Report, findings: Sequence[Finding]) -> None:
    """Print the summaries of the partitions; for people, after the findings."""
    if output.as_json:
        for partition in report.partitions:
            output.json({"type": "partition", **asdict(partition), "path": printable(partition.path)})
        counts = {"errors": report.errors, "warnings": report.warnings, "notes": report.notes}
        output.json({"type": "summary", "path": printable(report.path), "partitions": len(report.partitions), **counts})
        return
    for finding in findings:
        _show_finding(output, finding, report.path)
    if findings:
        output.line()
    _show_partitions(output, report.partitions)
    if report.problems:
        counts_in_words = [pluralize(report.errors, "error"), pluralize(report.warnings, "warning")]
        text = ", ".join([*counts_in_words, pluralize(report.notes, "note")])
        output.line((text, BAD if report.errors else DOUBTFUL))
    else:
        notes = f", {pluralize(report.notes, 'note')}" if report.notes else ""
        output.line((f"no problems{notes}", GOOD))


def _show_finding(output: Output, finding: Finding, folder: Path) -> None:
    file = finding.file.relative_to(folder) if finding.file.is_relative_to(folder) else finding.file
    position = "" if finding.position is None else f" at position {finding.position}"
    output.line((f"{finding.severity.name:<8}", _STYLES[finding.severity]), (printable(file), NAME), (position, QUIET))
    problem = printable(finding.what).removeprefix(f"{printable(finding.file)}: ")
    output.line(f"{'':8}{problem}")
    output.line((f"{'':8}→ {finding.advice}", QUIET))


def _show_partitions(output: Output, partitions: Sequence[PartitionSummary]) -> None:
    shown = [partition for partition in partitions if not _is_unused(partition)]
    rows: list[list[object]] = [
        [shorten(printable(partition.path.resolve().name), _NAME_WIDTH), *_numbers([partition]), _verdict(partition)]
        for partition in shown
    ]
    if len(partitions) > 1:
        rows.append([(cell, STRONG) for cell in ("total", *_numbers(partitions), "")])
    output.table(("partition", "segments", "batches", "records", "size", "result"), rows)
    if unused := len(partitions) - len(shown):
        output.line((f"not listed: {pluralize(unused, 'partition')} of internal topics, empty and valid", QUIET))


def _is_unused(partition: PartitionSummary) -> bool:
    """A broker creates dozens of internal partitions, and most never have a record."""
    is_valid = not (partition.errors or partition.warnings or partition.notes)
    return is_valid and not partition.bytes and is_internal(partition.path.resolve().name)


def _numbers(partitions: Sequence[PartitionSummary]) -> tuple[int, int, int, Size]:
    return (
        sum(partition.segments for partition in partitions),
        sum(partition.batches for partition in partitions),
        sum(partition.records for partition in partitions),
        Size(sum(partition.bytes for partition in partitions)),
    )


def _verdict(partition: PartitionSummary) -> tuple[str, str]:
    if partition.errors:
        return pluralize(partition.errors, "error"), BAD
    if partition.warnings:
        return pluralize(partition.warnings, "warning"), DOUBTFUL
    return (f"ok, {pluralize(partition.notes, 'note')}" if partition.notes else "ok"), GOOD

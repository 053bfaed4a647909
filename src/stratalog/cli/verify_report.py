"""A verification as it is shown: a progress bar on stderr while it runs, then the findings, then a table.

As JSON, findings are printed when they are made, and the summaries at the end.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from stratalog.cli import wording
from stratalog.cli.output import BAD, DOUBTFUL, GOOD, NAME, QUIET, STRONG, Output
from stratalog.inspect.findings import Finding, Severity
from stratalog.inspect.verify import PartitionSummary, Report

_STYLES = {Severity.ERROR: BAD, Severity.WARNING: DOUBTFUL, Severity.NOTE: QUIET}
_REDRAW_BYTES = 8 * 1024 * 1024


class Listener:
    """Hears of findings and progress. `findings` are kept for the end, unless they go out as JSON at once."""

    def __init__(self, output: Output, total: int) -> None:
        self.findings: list[Finding] = []
        self._output = output
        self._since_redraw = 0
        self._progress = Progress(
            TextColumn("verifying"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        self._task = self._progress.add_task("verifying", total=max(total, 1))

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def report(self, finding: Finding) -> None:
        if self._output.as_json:
            self._output.json(finding_as_json(finding))
        else:
            self.findings.append(finding)

    def advanced(self, size: int) -> None:
        self._since_redraw += size
        if self._since_redraw >= _REDRAW_BYTES:
            self._progress.advance(self._task, self._since_redraw)
            self._since_redraw = 0


def show_report(output: Output, report: Report, findings: list[Finding]) -> None:
    if output.as_json:
        for partition in report.partitions:
            output.json({"type": "partition", **_summary_as_json(partition)})
        counts = {"errors": report.errors, "warnings": report.warnings, "notes": report.notes}
        output.json(
            {"type": "summary", "path": wording.name(report.path), "partitions": len(report.partitions), **counts}
        )
        return
    for finding in findings:
        _show_finding(output, finding, report.path)
    if findings:
        output.line()
    _show_table(output, report)


def _show_finding(output: Output, finding: Finding, folder: Path) -> None:
    file = finding.file.relative_to(folder) if finding.file.is_relative_to(folder) else finding.file
    place = "" if finding.position is None else f" at position {finding.position}"
    output.line((f"{finding.severity.name:<8}", _STYLES[finding.severity]), (wording.name(file), NAME), (place, QUIET))
    what = wording.name(finding.what).removeprefix(f"{wording.name(finding.file)}: ")
    output.line(f"{'':8}{what}")
    output.line((f"{'':8}→ {finding.advice}", QUIET))


def _show_table(output: Output, report: Report) -> None:
    shown = [partition for partition in report.partitions if not _is_unused(partition)]
    names = [wording.name(partition.path.resolve().name) for partition in shown]
    width = max(9, min(max(map(len, names), default=0), 30))
    header = f"{'partition':<{width}} {'segments':>8} {'batches':>10} {'records':>13} {'size':>10}  result"
    output.line((header, QUIET))
    for name, partition in zip(names, shown, strict=True):
        output.line(_numbers(wording.fitted(name, width), width, [partition]), _verdict(partition))
    if unused := len(report.partitions) - len(shown):
        output.line((f"and {wording.plural(unused, 'partition')} of internal topics, empty and sound", QUIET))
    if len(report.partitions) > 1:
        output.line((_numbers("total", width, report.partitions), STRONG))
    if report.problems:
        found = f"{wording.plural(report.errors, 'error')}, {wording.plural(report.warnings, 'warning')}"
        output.line((f"{found}, {wording.plural(report.notes, 'note')}", BAD if report.errors else DOUBTFUL))
    else:
        notes = f", {wording.plural(report.notes, 'note')}" if report.notes else ""
        output.line((f"no problems{notes}", GOOD))


def _is_unused(partition: PartitionSummary) -> bool:
    """A broker makes dozens of these, and most never have a record."""
    is_sound = not (partition.errors or partition.warnings or partition.notes)
    return is_sound and not partition.bytes and wording.is_internal(partition.path.resolve().name)


def _numbers(name: str, width: int, partitions: list[PartitionSummary]) -> str:
    segments = sum(partition.segments for partition in partitions)
    batches = sum(partition.batches for partition in partitions)
    records = sum(partition.records for partition in partitions)
    size = wording.size(sum(partition.bytes for partition in partitions))
    return f"{name:<{width}} {segments:>8,} {batches:>10,} {records:>13,} {size:>10}  "


def _verdict(partition: PartitionSummary) -> tuple[str, str]:
    if partition.errors:
        return f"{wording.plural(partition.errors, 'error')}", BAD
    if partition.warnings:
        return f"{wording.plural(partition.warnings, 'warning')}", DOUBTFUL
    return ("ok", GOOD) if not partition.notes else (f"ok, {wording.plural(partition.notes, 'note')}", GOOD)


def finding_as_json(finding: Finding) -> dict[str, Any]:
    return {
        "type": "finding",
        "severity": finding.severity.value,
        "file": wording.name(finding.file),
        "position": finding.position,
        "what": finding.what,
        "advice": finding.advice,
    }


def _summary_as_json(partition: PartitionSummary) -> dict[str, Any]:
    return {**asdict(partition), "path": wording.name(partition.path)}

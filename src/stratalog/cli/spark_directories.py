"""stratalog spark verify and compact: data directories, whose partitions are distributed over Spark's tasks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stratalog.cli.options import AsJson, DryRun, argument, flag, option, parse_pairs
from stratalog.cli.output import QUIET, Output, Row, size
from stratalog.cli.program import FOUND_PROBLEMS, complain
from stratalog.cli.spark_session import CONTINUE, SparkOptions
from stratalog.cli.wording import format_size, is_internal, pluralize

if TYPE_CHECKING:
    from stratalog.inspect.findings import Finding
    from stratalog.pipelines.compact import CompactedPartition

_CONTINUE_VERIFYING = "with --resume-file, a run continues from where it was stopped"
_ADVICE = "give a data directory"


def verify(
    directories: Annotated[list[Path], argument("DIR...", "Data directories.")],
    on: SparkOptions,
    deep: Annotated[
        bool, flag("--deep/--no-deep", "Decompress batches and read every record.", show_default=True)
    ] = True,
    resume_file: Annotated[
        Path | None, option("--resume-file", "FILE", "Record in this file what is verified.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check whole data directories, many partitions at a time.

    Checks all that `stratalog verify` checks, and reports it in the same way. It only reads, and works while a broker
    is running. Exit code 1: there are errors or warnings. With --resume-file, a run that was stopped continues, and
    files that have not changed are not read again.

    \b
    Examples:
      stratalog spark verify stratalog-data
      stratalog spark verify disk1/data disk2/data --no-deep
      stratalog spark verify stratalog-data --resume-file verified.jsonl --master spark://master:7077
    """
    from stratalog.cli.verify import check_directory, finding_row, show_report
    from stratalog.pipelines.verify import verify as run

    for directory in directories:
        check_directory(directory, _ADVICE)
    output, listener = Output(as_json=as_json), _Findings()
    with on.session(_CONTINUE_VERIFYING if resume_file is None else CONTINUE) as (spark, progress):
        paths = [directory.absolute() for directory in directories]
        reports = run(spark, paths, listener, deep=deep, resume_file=resume_file, progress=progress)
    for report in reports:
        findings = [finding for finding in listener.findings if finding.file.is_relative_to(report.path)]
        if as_json:
            output.rows([finding_row(finding) for finding in findings], {})
        show_report(output, report, findings)
    if any(report.problems for report in reports):
        raise typer.Exit(FOUND_PROBLEMS)


class _Findings:
    """A listener that collects what a verification finds."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def report(self, finding: Finding) -> None:
        self.findings.append(finding)

    def advanced(self, size: int) -> None:
        pass


def compact(
    directory: Annotated[Path, argument("DIR", "A data directory.")],
    on: SparkOptions,
    topics: Annotated[list[str] | None, option("--topic -t", "TOPIC", "Only this topic. Repeatable.")] = None,
    settings: Annotated[
        list[str] | None, option("--set", "NAME=VALUE", "A setting that replaces that of the topics. Repeatable.")
    ] = None,
    force: Annotated[
        bool, flag("--force", "Include topics that are not compacted, and delete their older records.")
    ] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Compact a data directory that no broker has open.

    Keeps the last record of each key. No broker can open the directory meanwhile; a running broker compacts by itself.
    Sealed segments are rewritten as the broker does it, many partitions at a time; the last segment of each partition
    stays as it is. The command may be stopped at any time. It compacts topics with cleanup.policy=compact, or those
    named by --topic.

    \b
    Examples:
      stratalog spark compact backup --dry-run
      stratalog spark compact backup --topic accounts --topic sessions
      stratalog spark compact kafka-logs --topic accounts --set delete.retention.ms=0
    """
    from stratalog.cli.verify import check_directory
    from stratalog.pipelines.compact import compact as run

    check_directory(directory, _ADVICE)
    changes = parse_pairs("--set", settings, "delete.retention.ms=0")
    with on.session() as (spark, progress):
        results = run(spark, directory, topics or (), settings=changes, force=force, dry_run=dry_run, progress=progress)
    _show_compacted(Output(as_json=as_json), results, dry_run=dry_run)
    failures = [f"{result.partition}: {result.failure}" for result in results if result.failure]
    for failure in failures:
        complain(failure)
    if failures:
        raise typer.Exit(FOUND_PROBLEMS)


def _show_compacted(output: Output, results: list[CompactedPartition], *, dry_run: bool) -> None:
    rows: list[Row] = [
        {
            "topic": result.partition.topic,
            "partition": result.partition.partition,
            "bytes_before": result.bytes_before,
            "bytes_after": result.bytes_after,
            "segments_before": result.segments_before,
            "segments_after": result.segments_after,
            "failure": result.failure or None,
            "dry_run": dry_run,
        }
        for result in results
    ]
    if output.as_json:
        output.rows(rows, {})
        return
    if not rows:
        output.line("no topic here is compacted; name the topics to compact with --topic")
        return
    compacted = [row for row in rows if row["failure"] is None]
    used = [row for row in compacted if row["bytes_before"] or not is_internal(row["topic"])]
    titles = ("partition", "segments", "then", "size", "then")
    before, after = size("bytes_before"), size("bytes_after")
    cells = [
        (f"{row['topic']}-{row['partition']}", row["segments_before"], row["segments_after"], before(row), after(row))
        for row in used
    ]
    output.table(titles, cells)
    if unused := len(compacted) - len(used):
        output.line(
            (f"not listed: {pluralize(unused, 'partition')} of internal topics, with nothing to compact", QUIET)
        )
    saved = format_size(sum(result.bytes_saved for result in results if not result.failure))
    output.line(f"{saved} would be saved" if dry_run else f"{saved} saved")

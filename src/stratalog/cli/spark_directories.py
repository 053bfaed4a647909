"""stratalog spark verify and compact: whole data directories, their partitions shared out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stratalog.cli.cluster_options import AsJson, DryRun, parse_pairs
from stratalog.cli.option_groups import spread
from stratalog.cli.program import FOUND_PROBLEMS, CommandError, complain
from stratalog.cli.spark_options import GO_ON, SparkOptions

if TYPE_CHECKING:
    from stratalog.cli.output import Output
    from stratalog.inspect.findings import Finding
    from stratalog.pipelines.compact import CompactedPartition

VERIFY_HELP = """Check all partitions of data directories, many at a time.

Looks at everything that `stratalog verify` looks at, and says it in the same words; only reads, and works beside a
running broker. Exit code 1: there are errors or warnings. With --resume-file, a run that was stopped goes on behind
what it has verified, and files that have not changed are not read again.

\b
Examples:
  stratalog spark verify data
  stratalog spark verify disk1/data disk2/data --no-deep
  stratalog spark verify data --resume-file verified.jsonl --master spark://master:7077
"""
COMPACT_HELP = """Compact a cold data directory: of each key the last record stays.

Cold: no broker has it open, and none can open it meanwhile. A running broker compacts by itself. Sealed segments are
rewritten as the broker does it, many partitions at a time; the last segment of each is left as it is. May be stopped at
any time. Topics are those with cleanup.policy=compact, or those named by --topic.

\b
Examples:
  stratalog spark compact backup --dry-run
  stratalog spark compact backup --topic accounts --topic sessions
  stratalog spark compact kafka-logs --topic accounts --set delete.retention.ms=0
"""
_GO_ON_VERIFYING = "with --resume-file a run goes on where it was stopped"


def add_to(app: typer.Typer) -> None:
    app.command("verify", help=VERIFY_HELP, short_help="Check whole data directories.")(spread(verify))
    app.command("compact", help=COMPACT_HELP, short_help="Compact a data directory that no broker has open.")(
        spread(compact)
    )


def verify(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR...", show_default=False, help="Data directories.")],
    deep: Annotated[bool, typer.Option(help="Inflate batches and walk through every record.")] = True,
    resume_file: Annotated[
        Path | None,
        typer.Option("--resume-file", metavar="FILE", show_default=False, help="Keep what is verified in this file."),
    ] = None,
    as_json: AsJson = False,
    *,
    on: SparkOptions,
) -> None:
    from stratalog.cli.output import Output
    from stratalog.cli.verify_report import show_report
    from stratalog.pipelines.verify import verify as run

    for directory in directories:
        _check_directory(directory)
    output, heard = Output(as_json=as_json), _Heard()
    advice = _GO_ON_VERIFYING if resume_file is None else GO_ON
    with on.session(advice) as (spark, progress):
        paths = [directory.absolute() for directory in directories]
        reports = run(spark, paths, heard, deep=deep, resume_file=resume_file, progress=progress)
    for report in reports:
        heard.show(output, report.path)
        show_report(output, report, [] if as_json else heard.of(report.path))
    if any(report.problems for report in reports):
        raise typer.Exit(FOUND_PROBLEMS)


def compact(
    directory: Annotated[Path, typer.Argument(metavar="DIR", show_default=False, help="A data directory.")],
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", "-t", metavar="TOPIC", show_default=False, help="Only this topic. Repeatable."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting of the topics, on top of their own. Repeatable."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also topics that are not compacted: their older records go.")
    ] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    *,
    on: SparkOptions,
) -> None:
    from stratalog.cli.output import Output
    from stratalog.pipelines.compact import compact as run

    _check_directory(directory)
    given = parse_pairs("--set", settings, "delete.retention.ms=0")
    with on.session() as (spark, progress):
        done = run(spark, directory, topic or (), settings=given, force=force, dry_run=dry_run, progress=progress)
    _show_compacted(Output(as_json=as_json), done, dry_run=dry_run)
    failures = [f"{result.partition}: {result.failure}" for result in done if result.failure]
    for failure in failures:
        complain(failure)
    if failures:
        raise typer.Exit(FOUND_PROBLEMS)


class _Heard:
    def __init__(self) -> None:
        self._findings: list[Finding] = []

    def report(self, finding: Finding) -> None:
        self._findings.append(finding)

    def advanced(self, size: int) -> None:
        pass

    def of(self, directory: Path) -> list[Finding]:
        return [finding for finding in self._findings if finding.file.is_relative_to(directory)]

    def show(self, output: Output, directory: Path) -> None:
        from stratalog.cli.verify_report import finding_as_json

        if output.as_json:
            for finding in self.of(directory):
                output.json(finding_as_json(finding))


def _check_directory(directory: Path) -> None:
    if not directory.is_dir():
        problem = "is not a directory" if directory.exists() else "does not exist"
        raise CommandError(f"{directory}: {problem}; give a data directory")


def _show_compacted(output: Output, done: list[CompactedPartition], *, dry_run: bool) -> None:
    from stratalog.cli import wording
    from stratalog.cli.output import QUIET
    from stratalog.cli.tables import print_table

    if output.as_json:
        for result in done:
            output.json(
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
            )
        return
    if not done:
        output.line("no topic here is compacted; name those that are to be with --topic")
        return
    sound = [result for result in done if not result.failure]
    used = [one for one in sound if one.bytes_before or not wording.is_internal(one.partition.topic)]
    rows = [
        (
            str(result.partition),
            result.segments_before,
            result.segments_after,
            wording.size(result.bytes_before),
            wording.size(result.bytes_after),
        )
        for result in used
    ]
    print_table(output, ("partition", "segments", "then", "size", "then"), rows)
    if unused := len(sound) - len(used):
        output.line((f"and {wording.plural(unused, 'partition')} of internal topics, with nothing to compact", QUIET))
    saved = wording.size(sum(result.bytes_saved for result in sound))
    output.line(f"{saved} would be saved" if dry_run else f"{saved} saved")

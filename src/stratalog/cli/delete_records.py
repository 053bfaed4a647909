"""stratalog delete-records: the oldest records of partitions are deleted, up to an offset or a time."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from stratalog.cli.broker_names import complete_topic
from stratalog.cli.cluster_options import DEFAULT_SERVER, AsJson, BootstrapServer, DryRun, admin_config, end_with
from stratalog.cli.program import CommandError

HELP = """Delete the oldest records of a topic, or of some of its partitions.

All records before the offset, or before the first record that is not older than the time, are deleted. There is no way
back, so it asks first, unless --yes is given. Offsets: 42, -10 (ten before the end of each partition), end. Times:
2026-01-31T12:00:00Z, -1h (or s, m, d), milliseconds since 1970.

\b
Examples:
  stratalog delete-records orders:0 --before 1000
  stratalog delete-records orders:0,3 --before end --dry-run
  stratalog delete-records orders --before-time -7d --yes
"""


def command(
    topic: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC[:PARTITION]",
            show_default=False,
            autocompletion=complete_topic,
            help="Where; like orders, orders:0 or orders:0,3.",
        ),
    ],
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    before: Annotated[
        str | None,
        typer.Option(
            "--before", "--before-offset", metavar="OFFSET", show_default=False, help="Delete all before this offset."
        ),
    ] = None,
    before_time: Annotated[
        str | None,
        typer.Option(
            "--before-time", metavar="TIME", show_default=False, help="Delete all before the first record not older."
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    from stratalog.cli.bounds import AdminBounds
    from stratalog.cli.output import Output
    from stratalog.cli.partition_choice import parse_places
    from stratalog.cli.read_plan import Wanted
    from stratalog.cli.records_to_delete import RecordsToDelete
    from stratalog.client.admin import Admin

    if (before is None) == (before_time is None):
        raise CommandError("say what to delete: give --before or --before-time, one of them")
    wanted = Wanted.parse(before, before_time, start="--before")
    output = Output(as_json=as_json)
    with Admin.from_config(admin_config(bootstrap_server)) as admin:
        bounds = AdminBounds(admin)
        places = parse_places(admin, "TOPIC", topic)
        begins = {place: stretch.start for place, stretch in wanted.plan(bounds, places).items()}
        doomed = RecordsToDelete(dict(bounds.beginning_offsets(places)), begins)
        if doomed.count and not dry_run and not yes:
            _confirm(doomed.question())
        outcomes = admin.delete_records(doomed.changes()) if doomed.count and not dry_run else None
    doomed.show(output, {} if outcomes is None else outcomes.succeeded(), is_dry_run=dry_run)
    if outcomes is not None:
        end_with(outcomes.errors.values())


def _confirm(question: str) -> None:
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):
        sys.stderr.write("\n")  # the end of the input leaves the cursor behind the question
    if answer.strip().lower() not in ("y", "yes"):
        raise CommandError("nothing was deleted; --yes deletes without asking")

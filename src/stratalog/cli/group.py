"""stratalog group: consumer groups, looked at, moved and deleted."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from stratalog.cli.broker_names import complete_group, complete_topic
from stratalog.cli.cluster_options import (
    DEFAULT_SERVER,
    AsJson,
    BootstrapServer,
    DryRun,
    admin_config,
    end_with,
)
from stratalog.cli.program import CommandError, printable

HELP = """List consumer groups, show how far behind they are, move and delete them.

\b
Examples:
  stratalog group list
  stratalog group describe billing
  stratalog group reset billing --topic orders --to-time -1h --dry-run
"""
_LIST_HELP = """List the groups.

\b
Examples:
  stratalog group list
  stratalog group list --state Empty --json
"""
_DESCRIBE_HELP = """Show groups: what they have committed, how far that is behind (lag), and which member reads what.

All partitions of the topics that a group reads, or has committed in, are shown. Where it has committed nothing, the
committed offset is - and the lag counts from the start of the log: that is what a consumer with
auto.offset.reset=earliest still has to read. The broker does not know that setting of the group's consumers.

\b
Examples:
  stratalog group describe billing
  stratalog group describe billing --json
"""
_RESET_HELP = """Set where a group goes on: in all topics in which it has committed, or in those of --topic.

The group's consumers must be stopped. Offsets: 42, or -10 for ten before the end of each partition; one that a
partition does not have becomes the nearest. Times: 2026-01-31T12:00:00Z, -1h (or s, m, d), milliseconds since 1970.

\b
Examples:
  stratalog group reset billing --to-beginning --dry-run
  stratalog group reset billing --topic orders --to-time 2026-01-31T12:00:00Z
  stratalog group reset billing --topic orders:0,3 --to-offset 1000
  stratalog group reset billing --to-end
"""
_DELETE_HELP = """Delete groups, with all that they have committed. Their consumers must be stopped.

\b
Examples:
  stratalog group delete billing
  stratalog group delete billing shipping
"""

Names: TypeAlias = Annotated[
    list[str],
    typer.Argument(metavar="GROUP...", show_default=False, autocompletion=complete_group, help="Names of groups."),
]

app = typer.Typer(help=HELP, rich_markup_mode=None, add_completion=False)


@app.callback(invoke_without_command=True)
def group(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("list", help=_LIST_HELP, short_help="List the groups.")
def list_groups(
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    states: Annotated[
        list[str] | None, typer.Option("--state", help="Only in this state: Stable, Empty, ... Repeatable.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    from stratalog.cli.group_report import check_states, known_states, list_lines
    from stratalog.cli.output import Output
    from stratalog.client.admin import Admin

    with Admin.from_config(admin_config(bootstrap_server)) as admin:
        groups = admin.list_groups(states=known_states(states or ()))
        is_none_in_state = bool(states) and not groups
        if is_none_in_state:
            check_states(states or ())
        others = len(admin.list_groups()) if is_none_in_state else 0
    list_lines(Output(as_json=as_json), groups, states or (), others)


@app.command("describe", help=_DESCRIBE_HELP, short_help="Show committed offsets, lag and members.")
def describe(groups: Names, bootstrap_server: BootstrapServer = DEFAULT_SERVER, as_json: AsJson = False) -> None:
    from stratalog.cli.group_report import GroupReport
    from stratalog.cli.output import Output
    from stratalog.client.admin import Admin

    output = Output(as_json=as_json)
    with Admin.from_config(admin_config(bootstrap_server)) as admin:
        found = admin.describe_groups(groups)
        for description in found.succeeded().values():
            GroupReport.of(admin, description).show(output)
    end_with(found.errors.values())


@app.command("reset", help=_RESET_HELP, short_help="Set where a group goes on.")
def reset(
    group: Annotated[
        str, typer.Argument(metavar="GROUP", show_default=False, autocompletion=complete_group, help="Its name.")
    ],
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC[:PARTITIONS]",
            autocompletion=complete_topic,
            help="Only here, like orders:0,3. Repeatable.",
        ),
    ] = None,
    to_offset: Annotated[
        str | None, typer.Option("--to-offset", metavar="OFFSET", show_default=False, help="To this offset.")
    ] = None,
    to_time: Annotated[
        str | None,
        typer.Option("--to-time", metavar="TIME", show_default=False, help="To the first record that is not older."),
    ] = None,
    to_beginning: Annotated[bool, typer.Option("--to-beginning", help="To the first record there is.")] = False,
    to_end: Annotated[bool, typer.Option("--to-end", help="Behind the last record there is.")] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    from stratalog.cli.group_reset import GroupReset
    from stratalog.cli.output import Output
    from stratalog.cli.read_plan import Wanted
    from stratalog.client.admin import Admin

    if (to_offset is not None) + (to_time is not None) + to_beginning + to_end != 1:
        raise CommandError("give one of --to-offset, --to-time, --to-beginning and --to-end")
    edge = "beginning" if to_beginning else "end" if to_end else to_offset
    target = Wanted.parse(edge, to_time, start="--to")
    with Admin.from_config(admin_config(bootstrap_server)) as admin:
        moves = GroupReset(admin, group, topics or []).run(target, dry_run=dry_run)
    moves.show(Output(as_json=as_json))


@app.command("delete", help=_DELETE_HELP, short_help="Delete groups and their offsets.")
def delete(groups: Names, bootstrap_server: BootstrapServer = DEFAULT_SERVER) -> None:
    from stratalog.cli.output import Output
    from stratalog.client.admin import Admin

    with Admin.from_config(admin_config(bootstrap_server)) as admin:
        outcomes = admin.delete_groups(list(dict.fromkeys(groups)))
    for name in outcomes.succeeded():
        Output().line(f"deleted {printable(name)}")
    end_with(outcomes.errors.values())

"""stratalog transaction: transactions, looked at, and ended where nobody else will."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from stratalog.cli.broker_names import complete_topic
from stratalog.cli.cluster_options import (
    DEFAULT_SERVER,
    AsJson,
    BootstrapServer,
    DryRun,
    admin_config,
    end_with,
)

HELP = """List transactions, show what is open, find those that hang and end them.

\b
Examples:
  stratalog transaction list
  stratalog transaction list --hanging
  stratalog transaction describe payments
  stratalog transaction abort orders:0 --producer-id 4000
  stratalog transaction abort --id payments
"""
_LIST_HELP = """List the transactional ids, or with --hanging the open transactions that no coordinator will end.

One that is prepared waits for another process to end it: its producer is done with it, and its timeout does not count.

Where one hangs, readers of committed records wait for ever. --hanging looks in all partitions, or those of --topic.

\b
Examples:
  stratalog transaction list --state Ongoing --longer-than 60000
  stratalog transaction list --hanging --topic orders --json
"""
_DESCRIBE_HELP = """Show transactions: state, producer, since when it is open, and the partitions that are part of it.

\b
Examples:
  stratalog transaction describe payments
  stratalog transaction describe payments --json
"""
_ABORT_HELP = """End a transaction that nobody else ends: one that hangs in a partition, or with --id a prepared one.

What hangs is ended by a marker in that partition. A transaction that is open, and not prepared, is ended by its
coordinator, at the latest after transaction.timeout.ms. Who is about to commit a prepared one is refused from then on.

\b
Examples:
  stratalog transaction abort --id payments
  stratalog transaction abort orders:0 --producer-id 4000 --dry-run
  stratalog transaction abort orders:0 --producer-id 4000
"""

Ids: TypeAlias = Annotated[list[str], typer.Argument(metavar="ID...", show_default=False, help="Transactional ids.")]

app = typer.Typer(help=HELP, rich_markup_mode=None, add_completion=False)


@app.callback(invoke_without_command=True)
def transaction(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("list", help=_LIST_HELP, short_help="List the transactional ids, or what hangs.")
def list_transactions(
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    states: Annotated[
        list[str] | None, typer.Option("--state", help="Only in this state: Ongoing, CompleteCommit, ... Repeatable.")
    ] = None,
    longer_than: Annotated[
        int | None,
        typer.Option("--longer-than", metavar="MS", min=0, show_default=False, help="Only begun longer ago than this."),
    ] = None,
    hanging: Annotated[bool, typer.Option("--hanging", help="Open transactions that nobody will end.")] = False,
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", "-t", autocompletion=complete_topic, help="With --hanging: only in this topic. Repeatable."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    from stratalog.cli.output import Output
    from stratalog.cli.transaction_report import hanging_lines, list_lines, places_of, prepared_ids
    from stratalog.client.admin import Admin

    output = Output(as_json=as_json)
    with Admin.from_config(admin_config(bootstrap_server)) as admin:
        if hanging:
            hanging_lines(output, admin.find_hanging_transactions(places_of(admin, topics or ())))
        else:
            found = admin.list_transactions(states=states or (), longer_than_ms=longer_than)
            list_lines(output, found, prepared_ids(admin) if found else frozenset())


@app.command("describe", help=_DESCRIBE_HELP, short_help="Show state, producer and partitions.")
def describe(ids: Ids, bootstrap_server: BootstrapServer = DEFAULT_SERVER, as_json: AsJson = False) -> None:
    from stratalog.cli.output import Output
    from stratalog.cli.transaction_report import description_lines, prepared_ids
    from stratalog.client.admin import Admin

    output = Output(as_json=as_json)
    with Admin.from_config(admin_config(bootstrap_server)) as admin:
        found = admin.describe_transactions(ids)
        prepared = prepared_ids(admin) if found.succeeded() else frozenset()
    for one in found.succeeded().values():
        description_lines(output, one, is_prepared=one.transactional_id in prepared)
    end_with(found.errors.values())


@app.command("abort", help=_ABORT_HELP, short_help="End a transaction that hangs or is prepared.")
def abort(
    partition: Annotated[
        str | None,
        typer.Argument(metavar="[TOPIC:PARTITION]", show_default=False, help="Where it hangs, like orders:0."),
    ] = None,
    producer_id: Annotated[
        int | None, typer.Option("--producer-id", show_default=False, help="Whose it is; `list --hanging` says it.")
    ] = None,
    transactional_id: Annotated[
        str | None, typer.Option("--id", show_default=False, help="The transactional id of a prepared one.")
    ] = None,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    dry_run: DryRun = False,
) -> None:
    from stratalog.cli.output import Output
    from stratalog.cli.program import CommandError, printable
    from stratalog.cli.transaction_report import hanging_one, place_of, prepared_one
    from stratalog.client.admin import Admin

    done = "would abort" if dry_run else "aborted"
    if transactional_id is not None and partition is None and producer_id is None:
        with Admin.from_config(admin_config(bootstrap_server)) as admin:
            prepared = prepared_one(admin, transactional_id)
            if not dry_run:
                admin.finish_transactions([prepared], commit=False)
        whose = f"{printable(transactional_id)}, producer {prepared.producer_id}"
        Output().line(f"{done} the prepared transaction of {whose}")
        return
    if partition is None or producer_id is None or transactional_id is not None:
        raise CommandError("say what to abort: TOPIC:PARTITION and --producer-id, or --id for one that is prepared")
    place = place_of(partition)
    with Admin.from_config(admin_config(bootstrap_server)) as admin:
        one = hanging_one(admin, place, producer_id).producer
        if not dry_run:
            admin.abort_transaction(place, producer_id, one.producer_epoch, one.coordinator_epoch or 0)
    since = f"open since offset {one.transaction_start}"
    Output().line(f"{done} the transaction of producer {producer_id} in {place}, {since}")

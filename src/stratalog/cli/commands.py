"""The `stratalog` command and its subcommands."""

from __future__ import annotations

from typing import Annotated

import typer

from stratalog.cli import (
    broker,
    compaction,
    config,
    consume,
    delete_records,
    demo,
    dump_log,
    group,
    lookup,
    page_cache,
    produce,
    serve,
    spark,
    topic,
    transaction,
    verify,
)
from stratalog.cli.program import Program

HELP = """A Kafka-compatible commit log: a broker, commands for it and any other Kafka, and tools that show the disk.

The tools (dump-log, lookup, page-cache, verify) only read, and work on a directory that a running broker is writing.

Tab completes commands, options and the names of topics and groups, once `stratalog --install-completion` was run.

\b
Examples:
  stratalog demo
  stratalog serve --data-dir data --listen 127.0.0.1:9092
  echo tea | stratalog produce orders
  stratalog consume orders --follow
  stratalog topic describe orders
  stratalog group describe billing
  stratalog config get topic orders
  stratalog broker
  stratalog transaction list --hanging
  stratalog compaction status
  stratalog spark query 'SELECT count(*) FROM orders'
  stratalog dump-log --records data/orders-0/00000000000000000000.log
  stratalog lookup data/orders-0 123456
  stratalog verify data
  stratalog page-cache data
"""

# Without rich in the help: its imports would take longer than everything else together.
app = typer.Typer(
    cls=Program,
    context_settings={"help_option_names": ["-h", "--help"]},  # of all commands below, too
    help=HELP,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("serve", help=serve.HELP, short_help="Serve a data directory to Kafka clients.")(serve.command)
app.command("produce", help=produce.HELP, short_help="Send lines to a topic.")(produce.command)
app.command("consume", help=consume.HELP, short_help="Print the records of topics.")(consume.command)
app.add_typer(topic.app, name="topic", short_help="List, describe, create, change and delete topics.")
app.command("delete-records", help=delete_records.HELP, short_help="Delete a topic's oldest records.")(
    delete_records.command
)
app.add_typer(config.app, name="config", short_help="Show and change settings of topics, brokers and groups.")
app.command("broker", help=broker.HELP, short_help="Show the cluster and its brokers.")(broker.command)
app.add_typer(compaction.app, name="compaction", short_help="Show what is compacted, and what is not yet, and why.")
app.add_typer(group.app, name="group", short_help="List, describe, move and delete consumer groups.")
app.add_typer(transaction.app, name="transaction", short_help="List and describe transactions, end those that hang.")
app.add_typer(spark.app, name="spark", short_help="Export, load, query, copy, verify and compact topics with Spark.")
app.command("dump-log", help=dump_log.HELP, short_help="Show what is in a log's files.")(dump_log.command)
app.command("lookup", help=lookup.HELP, short_help="Show how an offset or a time is looked up.")(lookup.command)
app.command("page-cache", help=page_cache.HELP, short_help="Show which parts of files are in RAM.")(page_cache.command)
app.command("verify", help=verify.HELP, short_help="Check partitions for everything that can be wrong.")(verify.command)
app.command("demo", help=demo.HELP, short_help="See it work: a year of flights, to a chart.")(demo.command)


def _show_version(wanted: bool) -> None:
    if wanted:
        import stratalog

        typer.echo(f"stratalog {stratalog.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def program(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001 - its callback does it
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options of all commands. Without a command: what there is."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())

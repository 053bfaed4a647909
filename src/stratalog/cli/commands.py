"""The `stratalog` command: the names of its commands. The module of a command is imported when the command runs."""

from __future__ import annotations

from typing import Annotated

import typer

from stratalog.cli.program import Program

HELP = """A Kafka-compatible commit log: a broker, commands for it and any Kafka, and tools that inspect the disk.

The tools (dump-log, lookup, page-cache, verify) only read. They also work on a directory that a broker is writing to.

Tab completes commands, options and the names of topics and groups, after `stratalog --install-completion`.

\b
Examples:
  stratalog demo
  stratalog serve --listen 127.0.0.1:9092
  echo tea | stratalog produce orders
  stratalog consume orders --follow
  stratalog topic describe orders
  stratalog group describe billing
  stratalog config get topic orders
  stratalog broker
  stratalog cluster status
  stratalog transaction list --hanging
  stratalog compaction status
  stratalog spark query 'SELECT count(*) FROM orders'
  stratalog dump-log --records stratalog-data/orders-0/00000000000000000000.log
  stratalog lookup stratalog-data/orders-0 123456
  stratalog verify stratalog-data
  stratalog page-cache stratalog-data
"""
_COMMANDS = {
    "serve": "Serve a data directory to Kafka clients.",
    "produce": "Send lines to a topic.",
    "consume": "Print the records of topics.",
    "topic": "List, describe, create, change, move and delete topics.",
    "delete-records": "Delete a topic's oldest records.",
    "config": "Show and change settings of topics, brokers and groups.",
    "broker": "Show the brokers and their log directories.",
    "cluster": "Show the state of a cluster of several brokers, and elect leaders.",
    "compaction": "Show what compaction has done, and what it waits for.",
    "group": "List, describe, reset and delete consumer groups.",
    "transaction": "List and describe transactions, and abort those that hang.",
    "spark": "Export, query, copy, verify and compact topics with Spark.",
    "dump-log": "Show the content of a log's files.",
    "lookup": "Show how an offset or a time is looked up.",
    "page-cache": "Show which parts of files are in RAM.",
    "verify": "Check partitions for damage.",
    "demo": "Run a demo: from a year of flights to a chart.",
}

# The help is without rich, whose import would take longer than everything else.
app = typer.Typer(
    cls=Program,
    context_settings={"help_option_names": ["-h", "--help"]},  # of all commands below, too
    help=HELP,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _placeholder() -> None:
    """Stand for a command whose module is not imported yet."""


for _name, _summary in _COMMANDS.items():
    app.command(_name, help=_summary)(_placeholder)


def _show_version(is_given: bool) -> None:
    if is_given:
        import stratalog

        typer.echo(f"stratalog {stratalog.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def program(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001 - handled by its callback
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Show the help if no command is given."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())

"""stratalog compaction: what is compacted, what is not yet, and why."""

from __future__ import annotations

from typing import Annotated

import typer

from stratalog.cli.broker_names import complete_topic
from stratalog.cli.cluster_options import (
    DEFAULT_SERVER,
    PATIENCE_MS,
    AsJson,
    BootstrapServer,
    client_config,
    unescaped,
)

HELP = """Show what compaction has done, what it waits for, and why a record is still there.

Asks a running Stratalog broker.

\b
Examples:
  stratalog compaction status
  stratalog compaction status accounts --dry-run
  stratalog compaction explain accounts customer-7
"""
_STATUS_HELP = """Show how dirty each partition is, and what a run waits for. Without TOPIC: all that are compacted.

With --dry-run, what a run would save now; that reads the topic, and takes as long as compacting it.

\b
Examples:
  stratalog compaction status
  stratalog compaction status accounts --json
  stratalog compaction status accounts --dry-run
"""
_EXPLAIN_HELP = """Show each record of a key: why it is still there, from when it may go, and which setting decides.

\b
Examples:
  stratalog compaction explain accounts customer-7
  stratalog compaction explain accounts '\\x00\\x00\\x00\\x07' --partition 3
"""
_LONGEST_MS = 3_600_000  # whole logs are read

app = typer.Typer(help=HELP, rich_markup_mode=None, add_completion=False)


@app.callback(invoke_without_command=True)
def compaction(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("status", help=_STATUS_HELP, short_help="Show how dirty logs are, and what a run waits for.")
def status(
    topic: Annotated[
        str | None,
        typer.Argument(metavar="[TOPIC]", show_default=False, autocompletion=complete_topic, help="Only this topic."),
    ] = None,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what a run would save now.")] = False,
    show_all: Annotated[bool, typer.Option("--all", help="Show empty logs and internal topics too.")] = False,
    as_json: AsJson = False,
) -> None:
    from stratalog.cli.compaction_report import dry_run_lines, status_lines
    from stratalog.cli.output import Output
    from stratalog.client.admin import Admin

    output = Output(as_json=as_json)
    with Admin.from_config(_config(bootstrap_server)) as admin:
        rows = admin.compaction_status(topic, timeout=PATIENCE_MS / 1000)
        if topic is None and not show_all:
            rows = [row for row in rows if not row["topic"].startswith("__")]
        if not dry_run:
            status_lines(output, rows, show_empty=show_all or topic is not None)
            return
        for name in dict.fromkeys(row["topic"] for row in rows):
            dry_run_lines(output, admin.compaction_dry_run(name))


@app.command("explain", help=_EXPLAIN_HELP, short_help="Show a key's records, and why each is there.")
def explain(
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", show_default=False, autocompletion=complete_topic, help="The topic.")
    ],
    key: Annotated[str, typer.Argument(metavar="KEY", show_default=False, help=r"The key; \xff and the like count.")],
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", show_default=False, help="Only here; by default in all.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    from stratalog.cli.compaction_report import explain_lines
    from stratalog.cli.output import Output
    from stratalog.client.admin import Admin

    with Admin.from_config(_config(bootstrap_server)) as admin:
        admin.describe_cluster(timeout=PATIENCE_MS / 1000)  # or a broker that is not there would be waited for as long
        found = admin.explain_compaction(topic, unescaped("KEY", key), partition)
    explain_lines(Output(as_json=as_json), topic, key, found)


def _config(server: str) -> dict[str, object]:
    return client_config(server, {"default.api.timeout.ms": _LONGEST_MS, "request.timeout.ms": _LONGEST_MS}, None)

"""stratalog config: settings of topics, brokers and groups, looked at and changed."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, TypeAlias

import typer

from stratalog.cli.broker_names import complete_group, complete_topic
from stratalog.cli.cluster_options import DEFAULT_SERVER, AsJson, BootstrapServer, DryRun, admin_config, parse_pairs

HELP = """Show and change settings of topics, brokers and groups, by Kafka's names.

\b
Examples:
  stratalog config get topic orders
  stratalog config set topic orders retention.ms=3600000
  stratalog config delete topic orders retention.ms
"""
_GET_HELP = """Show settings: the value, where it comes from, and the default.

Only those that are not the default, if not told otherwise: --all shows all, and SETTING... those. A broker is named by
its number; `default` stands for what all brokers have in common.

\b
Examples:
  stratalog config get topic orders
  stratalog config get topic orders retention.ms cleanup.policy
  stratalog config get broker 1 --all --json
  stratalog config get group billing --all
"""
_SET_HELP = """Change settings; what is not named stays as it is.

\b
Examples:
  stratalog config set topic orders retention.ms=3600000 max.message.bytes=2000000
  stratalog config set broker default log.retention.ms=86400000 --dry-run
  stratalog config set group billing consumer.session.timeout.ms=60000
"""
_DELETE_HELP = """Reset settings: what a broker's settings or Kafka's defaults say counts again.

\b
Examples:
  stratalog config delete topic orders retention.ms
  stratalog config delete broker 1 log.retention.ms --dry-run
"""


class Kind(StrEnum):
    TOPIC = "topic"
    BROKER = "broker"
    GROUP = "group"


def _complete_name(context: typer.Context, incomplete: str) -> list[str]:
    kind = context.params.get("kind")
    if kind in (Kind.TOPIC, Kind.TOPIC.value):
        return complete_topic(context, incomplete)
    return complete_group(context, incomplete) if kind in (Kind.GROUP, Kind.GROUP.value) else []


Of: TypeAlias = Annotated[Kind, typer.Argument(metavar="topic|broker|group", show_default=False, help="Of what.")]
Name: TypeAlias = Annotated[
    str, typer.Argument(metavar="NAME", show_default=False, autocompletion=_complete_name, help="Its name.")
]

app = typer.Typer(help=HELP, rich_markup_mode=None, add_completion=False)


@app.callback(invoke_without_command=True)
def config(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("get", help=_GET_HELP, short_help="Show settings, and where they come from.")
def get(
    kind: Of,
    name: Name,
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[SETTING...]", show_default=False, help="Only these.")
    ] = None,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    show_all: Annotated[bool, typer.Option("--all", "-a", help="Also those that have their default.")] = False,
    as_json: AsJson = False,
) -> None:
    from stratalog.cli.config_report import ConfigReport, resource_of
    from stratalog.cli.output import Output
    from stratalog.client.admin import Admin

    with Admin.from_config(admin_config(bootstrap_server)) as admin:
        entries = admin.describe_config(resource_of(admin, kind.value, name))
    ConfigReport(kind.value, name, entries, settings or [], show_all).show(Output(as_json=as_json))


@app.command("set", help=_SET_HELP, short_help="Change settings.")
def set_settings(
    kind: Of,
    name: Name,
    settings: Annotated[
        list[str], typer.Argument(metavar="SETTING=VALUE...", show_default=False, help="What to change.")
    ],
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    dry_run: DryRun = False,
) -> None:
    _alter(kind, name, dict(parse_pairs("SETTING", settings, "retention.ms=86400000")), bootstrap_server, dry_run)


@app.command("delete", help=_DELETE_HELP, short_help="Reset settings to what counts without them.")
def delete(
    kind: Of,
    name: Name,
    settings: Annotated[list[str], typer.Argument(metavar="SETTING...", show_default=False, help="What to reset.")],
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    dry_run: DryRun = False,
) -> None:
    _alter(kind, name, dict.fromkeys(settings), bootstrap_server, dry_run)


def _alter(kind: Kind, name: str, changes: dict[str, str] | dict[str, None], server: str, dry_run: bool) -> None:
    from stratalog.cli.config_report import resource_of
    from stratalog.cli.output import Output
    from stratalog.cli.program import printable
    from stratalog.client.admin import Admin

    with Admin.from_config(admin_config(server)) as admin:
        admin.alter_config(resource_of(admin, kind.value, name), changes, validate_only=dry_run)
    output = Output()
    for setting, value in changes.items():
        done = f"{'would reset' if dry_run else 'reset'} {setting}"
        if value is not None:
            done = f"{'would set' if dry_run else 'set'} {setting}={value}"
        output.line(printable(f"{done} of {kind.value} {name}"))

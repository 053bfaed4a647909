"""stratalog topic: topics of a cluster, looked at and changed."""

from __future__ import annotations

import sys
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
    parse_pairs,
)
from stratalog.cli.program import CommandError

HELP = """List, describe, create, change and delete topics.

\b
Examples:
  stratalog topic list
  stratalog topic create orders --partitions 6 --set retention.ms=86400000
  stratalog topic describe orders
"""
_LIST_HELP = """List the topics.

\b
Examples:
  stratalog topic list
  stratalog topic list --internal --json
"""
_DESCRIBE_HELP = """Show topics: partitions with their offsets and sizes, and settings that are not the defaults.

\b
Examples:
  stratalog topic describe orders
  stratalog topic describe orders payments --bootstrap-server kafka.example:9092 --json
"""
_CREATE_HELP = """Create topics. Settings have Kafka's names.

\b
Examples:
  stratalog topic create orders
  stratalog topic create orders payments --partitions 6 --set cleanup.policy=compact
  stratalog topic create orders --if-not-exists
"""
_DELETE_HELP = """Delete topics with all their records. On a terminal it asks first.

\b
Examples:
  stratalog topic delete orders
  stratalog topic delete orders payments --yes --if-exists
"""
_ALTER_HELP = """Change a topic's settings; what is not named stays as it is.

\b
Examples:
  stratalog topic alter orders --set retention.ms=3600000 --set max.message.bytes=2000000
  stratalog topic alter orders --unset retention.ms
"""
_GROW_HELP = """Give a topic more partitions.

TOTAL is how many it has then. There is no way back, and keys may go to other partitions than before.

\b
Examples:
  stratalog topic add-partitions orders 12
  stratalog topic add-partitions orders 12 --dry-run
"""

Name: TypeAlias = Annotated[
    str, typer.Argument(metavar="TOPIC", show_default=False, autocompletion=complete_topic, help="The topic's name.")
]
Names: TypeAlias = Annotated[
    list[str],
    typer.Argument(metavar="TOPIC...", show_default=False, autocompletion=complete_topic, help="Names of topics."),
]
NewNames: TypeAlias = Annotated[
    list[str], typer.Argument(metavar="TOPIC...", show_default=False, help="Names of the new topics.")
]
Settings: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--set", "--config", metavar="NAME=VALUE", help="A setting, by Kafka's name. Repeatable."),
]

app = typer.Typer(help=HELP, rich_markup_mode=None, add_completion=False)


@app.callback(invoke_without_command=True)
def topic(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("list", help=_LIST_HELP, short_help="List the topics.")
def list_topics(
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    internal: Annotated[bool, typer.Option("--internal", help="The brokers' own as well.")] = False,
    as_json: AsJson = False,
) -> None:
    from stratalog.cli.output import Output
    from stratalog.cli.topic_report import list_lines
    from stratalog.client.admin import Admin

    with Admin.from_config(admin_config(bootstrap_server)) as admin:
        list_lines(Output(as_json=as_json), admin.list_topics(include_internal=internal))


@app.command("describe", help=_DESCRIBE_HELP, short_help="Show partitions, offsets, sizes and settings.")
def describe(topics: Names, bootstrap_server: BootstrapServer = DEFAULT_SERVER, as_json: AsJson = False) -> None:
    from stratalog.cli.output import Output
    from stratalog.cli.topic_report import TopicReport
    from stratalog.client.admin import Admin

    output = Output(as_json=as_json)
    with Admin.from_config(admin_config(bootstrap_server)) as admin:
        found = admin.describe_topics(topics)
        for info in found.succeeded().values():
            TopicReport.of(admin, info).show(output)
    end_with(found.errors.values())


@app.command("create", help=_CREATE_HELP, short_help="Create topics.")
def create(
    topics: NewNames,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, show_default="the broker's num.partitions")
    ] = None,
    replication_factor: Annotated[
        int | None, typer.Option("--replication-factor", "-r", min=1, show_default="the broker's default")
    ] = None,
    settings: Settings = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="One that exists is no error.")] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    from stratalog.cli.output import Output
    from stratalog.cli.wording import plural
    from stratalog.client.admin import Admin, NewTopic
    from stratalog.client.administration.topics import CHOSEN_BY_BROKER
    from stratalog.client.errors import TopicExistsError

    config = parse_pairs("--set", settings, "retention.ms=86400000")
    counts = (partitions or CHOSEN_BY_BROKER, replication_factor or CHOSEN_BY_BROKER)
    output = Output(as_json=as_json)
    with Admin.from_config(admin_config(bootstrap_server)) as admin:
        outcomes = admin.create_topics(
            [NewTopic(name, *counts, config) for name in dict.fromkeys(topics)], validate_only=dry_run
        )
    for made in outcomes.succeeded().values():
        if as_json:
            fields = {"topic": made.name, "partitions": made.partitions, "replication_factor": made.replication_factor}
            output.json({"type": "topic", **fields, "created": not dry_run})
        else:
            word = "would create" if dry_run else "created"
            output.line(f"{word} {made.name}: {plural(made.partitions, 'partition')}")
    end_with(error for error in outcomes.errors.values() if not (if_not_exists and isinstance(error, TopicExistsError)))


@app.command("delete", help=_DELETE_HELP, short_help="Delete topics with all their records.")
def delete(
    topics: Names,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="One that does not exist is no error.")] = False,
) -> None:
    from stratalog.cli.output import Output
    from stratalog.client.admin import Admin
    from stratalog.client.errors import UnknownTopicOrPartitionError

    names = list(dict.fromkeys(topics))
    if not yes and sys.stdin.isatty() and not typer.confirm(f"Delete {', '.join(names)} with all records?", err=True):
        raise CommandError("nothing was deleted")
    output = Output()
    with Admin.from_config(admin_config(bootstrap_server)) as admin:
        outcomes = admin.delete_topics(names)
    for name in outcomes.succeeded():
        output.line(f"deleted {name}")
    missing_is_fine = UnknownTopicOrPartitionError if if_exists else ()
    end_with((error for error in outcomes.errors.values() if not isinstance(error, missing_is_fine)), can_make=False)


@app.command("alter", help=_ALTER_HELP, short_help="Change a topic's settings.")
def alter(
    topic: Name,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    settings: Settings = None,
    unset: Annotated[
        list[str] | None, typer.Option("--unset", metavar="NAME", help="Back to the default. Repeatable.")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    from stratalog.cli.output import Output
    from stratalog.client.admin import Admin, ConfigResource

    changes: dict[str, object] = {**parse_pairs("--set", settings, "retention.ms=86400000")}
    for name in unset or ():
        if name in changes:
            raise CommandError(f"{name} is in --set and in --unset; leave out one of them")
        changes[name] = None
    if not changes:
        raise CommandError("nothing to change; give --set NAME=VALUE or --unset NAME")
    with Admin.from_config(admin_config(bootstrap_server)) as admin:
        admin.describe_topic(topic)  # its error names the topic, and says more than that of its settings
        admin.alter_config(ConfigResource.topic(topic), changes, validate_only=dry_run)
    output = Output()
    word = "would set" if dry_run else "set"
    for name, value in changes.items():
        output.line(f"{word} {name} of {topic} to {'its default' if value is None else value}")


@app.command("add-partitions", help=_GROW_HELP, short_help="Give a topic more partitions.")
def add_partitions(
    topic: Name,
    total: Annotated[int, typer.Argument(metavar="TOTAL", min=1, show_default=False, help="How many it has then.")],
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    dry_run: DryRun = False,
) -> None:
    from stratalog.cli.output import Output
    from stratalog.cli.wording import plural
    from stratalog.client.admin import Admin

    with Admin.from_config(admin_config(bootstrap_server)) as admin:
        before = len(admin.describe_topic(topic).partitions)
        admin.create_partitions({topic: total}, validate_only=dry_run).check()
    Output().line(f"{topic} {'would have' if dry_run else 'has'} {plural(total, 'partition')}; it had {before}")

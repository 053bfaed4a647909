"""stratalog config: show and change settings of topics, brokers and groups."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, TypeAlias

import typer

from stratalog.cli.broker_names import complete_group, complete_topic, nearest
from stratalog.cli.options import AsJson, BrokerAddress, CommandGroup, DryRun, argument, flag, parse_pairs
from stratalog.cli.output import Columns, Output
from stratalog.cli.program import CommandError
from stratalog.cli.wording import printable
from stratalog.client.admin import Admin, ConfigResource

ALL_BROKERS = "default"
_SOURCES = {
    "TOPIC": "topic",
    "DYNAMIC_BROKER": "broker (dynamic)",
    "DYNAMIC_DEFAULT_BROKER": "all brokers (dynamic)",
    "STATIC_BROKER": "broker (static)",
    "DEFAULT": "default",
    "GROUP": "group",
}


class Kind(StrEnum):
    TOPIC = "topic"
    BROKER = "broker"
    GROUP = "group"


def _complete_name(context: typer.Context, incomplete: str) -> list[str]:
    kind = context.params.get("kind")
    if kind == Kind.TOPIC:
        return complete_topic(context, incomplete)
    return complete_group(context, incomplete) if kind == Kind.GROUP else []


Of: TypeAlias = Annotated[Kind, argument("topic|broker|group", "What has the settings.")]
Name: TypeAlias = Annotated[
    str, argument("NAME", "Its name: a topic, a broker's number, a group.", autocompletion=_complete_name)
]

app = CommandGroup("""Show and change settings of topics, brokers and groups, by Kafka's names.

\b
Examples:
  stratalog config get topic orders
  stratalog config set topic orders retention.ms=3600000
  stratalog config delete topic orders retention.ms
""")


@app.add("get")
def get(
    kind: Of,
    name: Name,
    server: BrokerAddress,
    settings: Annotated[list[str] | None, argument("[SETTING...]", "Show only these settings.")] = None,
    show_all: Annotated[bool, flag("--all -a", "Include settings that have their default value.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show settings, where they come from, and their defaults.

    Shows the settings that differ from the default; --all shows all, and SETTING... those that are named. A broker is
    named by its number; `default` stands for the settings that all brokers have in common.

    \b
    Examples:
      stratalog config get topic orders
      stratalog config get topic orders retention.ms cleanup.policy
      stratalog config get broker 1 --all --json
      stratalog config get group billing --all
    """
    with server.admin() as admin:
        entries = admin.describe_config(_resource(admin, kind, name))
    for setting in settings or ():
        if setting not in entries:
            similar = nearest(setting, entries)
            advice = f"did you mean {similar!r}?" if similar else "--all shows all settings"
            raise CommandError(f"{kind.value} {name} has no setting {setting!r}; {advice}")
    differing = [setting for setting, entry in sorted(entries.items()) if show_all or not entry.is_default]
    rows = [
        {
            "type": "setting",
            "of": kind.value,
            "name": name,
            "setting": entry.name,
            "value": entry.value,
            "source": entry.source.name,
            "default": entry.default,
            "read_only": entry.is_read_only,
            "sensitive": entry.is_sensitive,
        }
        for entry in (entries[setting] for setting in dict.fromkeys(settings or differing))
    ]
    columns: Columns = {
        "setting": "setting",
        "value": lambda row: "(hidden)" if row["sensitive"] else row["value"],
        "from": lambda row: _SOURCES.get(row["source"], "unknown"),
        "default": "default",
    }
    hidden = f"; --all shows {len(entries)} settings" if entries else ""
    empty = f"{kind.value} {printable(name)} has no settings of its own{hidden}"
    Output(as_json=as_json).rows(rows, columns, empty=empty)


@app.add("set")
def set_settings(
    kind: Of,
    name: Name,
    settings: Annotated[list[str], argument("SETTING=VALUE...", "The settings to change.")],
    server: BrokerAddress,
    dry_run: DryRun = False,
) -> None:
    """Change settings. Other settings stay as they are.

    \b
    Examples:
      stratalog config set topic orders retention.ms=3600000 max.message.bytes=2000000
      stratalog config set broker default log.retention.ms=86400000 --dry-run
      stratalog config set group billing consumer.session.timeout.ms=60000
    """
    changes = parse_pairs("SETTING", settings, "retention.ms=86400000")
    _alter(server, kind, name, dict(changes), dry_run)


@app.add("delete")
def delete(
    kind: Of,
    name: Name,
    settings: Annotated[list[str], argument("SETTING...", "The settings to reset.")],
    server: BrokerAddress,
    dry_run: DryRun = False,
) -> None:
    """Reset settings to the broker's settings or Kafka's defaults.

    \b
    Examples:
      stratalog config delete topic orders retention.ms
      stratalog config delete broker 1 log.retention.ms --dry-run
    """
    _alter(server, kind, name, dict.fromkeys(settings), dry_run)


def _alter(server: BrokerAddress, kind: Kind, name: str, changes: dict[str, str | None], dry_run: bool) -> None:
    with server.admin() as admin:
        admin.alter_config(_resource(admin, kind, name), changes, validate_only=dry_run)
    for setting, value in changes.items():
        verb, assigned = ("reset", "") if value is None else ("set", f"={value}")
        Output().line(printable(f"{'would ' if dry_run else ''}{verb} {setting}{assigned} of {kind.value} {name}"))


def _resource(admin: Admin, kind: Kind, name: str) -> ConfigResource:
    """Raise if there is no topic or broker of that name. A group may have settings before it exists."""
    if kind is Kind.TOPIC:
        admin.describe_topic(name)  # a missing topic has a better error here than in describe_config
        return ConfigResource.topic(name)
    if kind is Kind.GROUP:
        return ConfigResource.group(name)
    if name == ALL_BROKERS:
        return ConfigResource.broker()
    ids = [str(node.id) for node in admin.describe_cluster().nodes]
    if name not in ids:
        raise CommandError(
            f"no broker has the number {name!r}; the brokers are {', '.join(ids)}, and {ALL_BROKERS!r} stands for all"
        )
    return ConfigResource.broker(int(name))

"""Settings as `config get` shows them, for people or as JSON."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stratalog.cli.output import QUIET, Output
from stratalog.cli.program import CommandError, printable
from stratalog.cli.tables import print_table
from stratalog.client.admin import Admin, ConfigEntry, ConfigResource, ConfigSource

ALL_BROKERS = "default"
_SOURCES = {
    ConfigSource.TOPIC: "topic",
    ConfigSource.DYNAMIC_BROKER: "broker (dynamic)",
    ConfigSource.DYNAMIC_DEFAULT_BROKER: "all brokers (dynamic)",
    ConfigSource.STATIC_BROKER: "broker (static)",
    ConfigSource.DEFAULT: "default",
    ConfigSource.GROUP: "group",
}


def resource_of(admin: Admin, kind: str, name: str) -> ConfigResource:
    """Raises where there is none of that name; of groups that are not there yet, settings may be set."""
    if kind == "topic":
        admin.describe_topic(name)  # its error names the topic, and says more than that of its settings
        return ConfigResource.topic(name)
    if kind == "group":
        return ConfigResource.group(name)
    if name == ALL_BROKERS:
        return ConfigResource.broker()
    ids = [node.id for node in admin.describe_cluster().nodes]
    if name not in map(str, ids):
        known = ", ".join(map(str, ids))
        raise CommandError(f"no broker has the number {name!r}; there is {known}, and {ALL_BROKERS!r} stands for all")
    return ConfigResource.broker(int(name))


@dataclass(frozen=True)
class ConfigReport:
    kind: str
    name: str
    entries: Mapping[str, ConfigEntry]
    wanted: Sequence[str]  # none: all that are not the default
    show_all: bool

    def show(self, output: Output) -> None:
        shown = self._shown()
        if output.as_json:
            for one in shown:
                output.json(
                    {
                        "type": "setting",
                        "of": self.kind,
                        "name": self.name,
                        "setting": one.name,
                        "value": one.value,
                        "source": one.source.name,
                        "default": one.default,
                        "read_only": one.is_read_only,
                        "sensitive": one.is_sensitive,
                    }
                )
        elif shown:
            rows = [(one.name, _value(one), _SOURCES.get(one.source, "unknown"), one.default) for one in shown]
            print_table(output, ("setting", "value", "from", "default"), rows)
        else:
            left = f"; --all shows {len(self.entries)} settings" if self.entries else ""
            output.line((f"{self.kind} {printable(self.name)} has no settings of its own{left}", QUIET))

    def _shown(self) -> list[ConfigEntry]:
        for name in self.wanted:
            if name not in self.entries:
                near = difflib.get_close_matches(name, self.entries, 1)
                advice = f"did you mean {near[0]!r}?" if near else "--all shows those there are"
                raise CommandError(f"{self.kind} {self.name} has no setting {name!r}; {advice}")
        if self.wanted:
            return [self.entries[name] for name in dict.fromkeys(self.wanted)]
        return [one for _, one in sorted(self.entries.items()) if self.show_all or not one.is_default]


def _value(entry: ConfigEntry) -> str | None:
    return "(hidden)" if entry.is_sensitive else entry.value

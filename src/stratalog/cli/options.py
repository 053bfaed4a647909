"""Options that several commands share, defined once, and the decorator that lets a command take them as a group.

A group is a dataclass whose fields are options. A command has it as one parameter.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, get_type_hints

import typer

from stratalog.cli.program import SERVER, BulkError, CommandError

if TYPE_CHECKING:
    from stratalog.client.admin import Admin

DEFAULT_SERVER = "localhost:9092"
TIMEOUT_MS = 10_000  # someone is waiting for the command, so it gives up sooner than a program would
_ESCAPES = {b"t": b"\t", b"n": b"\n", b"r": b"\r", b"0": b"\0", b"\\": b"\\"}


def option(names: str, metavar: str, description: str, **more: Any) -> Any:
    """Declare an option with a value. `names` are separated by blanks; without names, it has the parameter's."""
    return typer.Option(*names.split(), metavar=metavar, help=description, **{"show_default": False, **more})


def flag(names: str, description: str, **more: Any) -> Any:
    return typer.Option(*names.split(), help=description, **more)


def argument(metavar: str, description: str, **more: Any) -> Any:
    return typer.Argument(metavar=metavar, help=description, show_default=False, **more)


class CommandGroup(typer.Typer):
    """The commands of one module. With `overview`, they are a group, which shows its help if no command is given."""

    def __init__(self, overview: str | None = None) -> None:
        super().__init__(help=overview, rich_markup_mode=None, add_completion=False)
        if overview is not None:
            self.callback(invoke_without_command=True)(_show_help)

    def add(self, name: str, **attributes: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
        """Register the decorated function as a command. Its docstring is the help."""

        def register(command: Callable[..., None]) -> Callable[..., None]:
            self.command(name, **attributes)(expand_option_groups(command))
            return command

        return register


def _show_help(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def expand_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command as Typer takes it, with the fields of its option groups as parameters."""
    parameters = inspect.signature(command, eval_str=True).parameters
    groups: dict[str, Any] = {
        name: parameter.annotation for name, parameter in parameters.items() if is_dataclass(parameter.annotation)
    }
    fields = {name: _parameters_of(group) for name, group in groups.items()}

    def run(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field: values.pop(field) for field in fields[name]})
        command(**values)

    expanded = [part for name, parameter in parameters.items() for part in fields.get(name, {name: parameter}).values()]
    # Typer passes parameters by keyword, so one with a default may come before one without.
    by_keyword = [part.replace(kind=inspect.Parameter.KEYWORD_ONLY) for part in expanded]
    run.__signature__ = inspect.Signature(by_keyword)  # type: ignore[attr-defined]
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run


def _parameters_of(group: Any) -> dict[str, inspect.Parameter]:
    """Return the fields of a group, with those of its bases, which may be in other modules."""
    types = get_type_hints(group, include_extras=True)
    parameters = inspect.signature(group).parameters
    return {name: parameter.replace(annotation=types[name]) for name, parameter in parameters.items()}


def _note_server(context: typer.Context, server: str) -> str:
    """Note the broker, which can tell what a mistyped name may mean when an error is shown."""
    context.meta[SERVER] = server
    return server


BootstrapServer: TypeAlias = Annotated[
    str,
    option(
        "--bootstrap-server -b",
        "HOST:PORT",
        "A broker of the cluster, or several, separated by commas.",
        envvar="STRATALOG_BOOTSTRAP_SERVER",
        callback=_note_server,
        show_default=True,
    ),
]
ClientSettings: TypeAlias = Annotated[
    list[str] | None, option("--set", "NAME=VALUE", "A setting of the client, by Kafka's name. Repeatable.")
]
AsJson: TypeAlias = Annotated[bool, flag("--json", "Print JSON, one object per line.")]
DryRun: TypeAlias = Annotated[bool, flag("--dry-run", "Only show what would be done.")]
Yes: TypeAlias = Annotated[bool, flag("--yes -y", "Don't ask.")]


@dataclass(frozen=True)
class BrokerAddress:
    """The cluster that an administrative command talks to."""

    bootstrap_server: BootstrapServer = DEFAULT_SERVER

    def admin(self, timeout_ms: int | None = None) -> Admin:
        """Connect to the cluster. Requests may take `timeout_ms`, by default TIMEOUT_MS."""
        from stratalog.client.admin import Admin

        timeouts = {"default.api.timeout.ms": timeout_ms or TIMEOUT_MS}
        if timeout_ms is not None:
            timeouts["request.timeout.ms"] = timeout_ms
        return Admin.from_config(client_config(self.bootstrap_server, timeouts, None))


@dataclass(frozen=True)
class Client:
    """The cluster that a command talks to, and settings of its client."""

    bootstrap_server: BootstrapServer = DEFAULT_SERVER
    settings: ClientSettings = None

    def config(self, defaults: Mapping[str, object]) -> dict[str, object]:
        """Return the configuration of a client. The user's settings replace the command's `defaults`."""
        return client_config(self.bootstrap_server, defaults, self.settings)


def client_config(server: str, defaults: Mapping[str, object], settings: Sequence[str] | None) -> dict[str, object]:
    parsed = parse_pairs("--set", settings, "client.id=nightly")
    if "bootstrap.servers" in parsed:
        raise CommandError("--set gives bootstrap.servers; give --bootstrap-server instead")
    return {"bootstrap.servers": server, "client.id": "stratalog-cli", **defaults, **parsed}


def admin_part(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a producer or consumer that an admin client has too."""
    from stratalog.client.settings import AdminSettings

    names = set(AdminSettings.names())
    return {name: value for name, value in config.items() if name in names}


def confirm_deletion(question: str) -> None:
    """Ask on stderr. Raise CommandError if the answer is not yes."""
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):
        sys.stderr.write("\n")  # at the end of the input, the cursor is still in the line of the question
    if answer.strip().lower() not in ("y", "yes"):
        raise CommandError("nothing was deleted; --yes deletes without asking")


def report_errors(errors: Iterable[Exception], *, can_create: bool = True) -> None:
    """Raise BulkError if there are errors: the command has failed, even if it did part of its work."""
    failures = list(errors)
    if failures:
        raise BulkError(failures, can_create)


def parse_pairs(option_name: str, pairs: Sequence[str] | None, example: str) -> dict[str, str]:
    """Parse NAME=VALUE pairs. A name may be given once."""
    parsed: dict[str, str] = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise CommandError(f"{option_name} is {pair!r}; it must be like {example}")
        if name.strip() in parsed:
            raise CommandError(f"{option_name} gives {name.strip()} twice; give it once")
        parsed[name.strip()] = value.strip()
    return parsed


def unescape(option_name: str, text: str) -> bytes:
    r"""Return the bytes of a text in which \t, \n, \r, \0, \xff and \\ have their meaning in C."""

    def byte_of(match: re.Match[bytes]) -> bytes:
        code = match[1]
        if code in _ESCAPES:
            return _ESCAPES[code]
        if len(code) == 3:
            return bytes([int(code[1:], 16)])
        raise CommandError(rf"{option_name} is {text!r}; a backslash must begin \t, \n, \r, \0, \xff or \\")

    return re.sub(rb"\\(x[0-9a-fA-F]{2}|.?)", byte_of, text.encode(errors="surrogateescape"), flags=re.DOTALL)

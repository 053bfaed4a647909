"""Options that every command has which talks to a broker, and settings as they are given there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, TypeAlias

import typer

from stratalog.cli.program import SERVER, BulkError, CommandError

DEFAULT_SERVER = "localhost:9092"
_ESCAPES = {b"t": b"\t", b"n": b"\n", b"r": b"\r", b"0": b"\0", b"\\": b"\\"}
PATIENCE_MS = 10_000  # a person waits; programs have Kafka's minute


def _note_server(context: typer.Context, server: str) -> str:
    """For messages: the broker that a command asks is also who knows what a mistyped name could be."""
    context.meta[SERVER] = server
    return server


BootstrapServer: TypeAlias = Annotated[
    str,
    typer.Option(
        "--bootstrap-server",
        "-b",
        metavar="HOST:PORT",
        envvar="STRATALOG_BOOTSTRAP_SERVER",
        callback=_note_server,
        help="A broker of the cluster, or several with commas.",
    ),
]
ClientSettings: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting of the client, by Kafka's name. Repeatable."),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]

DryRun: TypeAlias = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]


def end_with(errors: Iterable[Exception], *, can_make: bool = True) -> None:
    """Each is a line on stderr; with any, the command has failed, whatever else it did. `can_make`: whether a topic
    that is not there may be made instead."""
    failed = list(errors)
    if failed:
        raise BulkError(failed, can_make)


def parse_pairs(option: str, pairs: Sequence[str] | None, example: str) -> dict[str, str]:
    """NAME=VALUE, each name once."""
    parsed: dict[str, str] = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise CommandError(f"{option} is {pair!r}; it must be like {example}")
        if name.strip() in parsed:
            raise CommandError(f"{option} gives {name.strip()} twice")
        parsed[name.strip()] = value.strip()
    return parsed


def admin_config(server: str) -> dict[str, object]:
    return client_config(server, {"default.api.timeout.ms": PATIENCE_MS}, None)


def client_config(server: str, own: Mapping[str, object], given: Sequence[str] | None) -> dict[str, object]:
    """For `from_config`: the command's own settings, and on top what the user gave with --set."""
    settings = parse_pairs("--set", given, "client.id=nightly")
    if "bootstrap.servers" in settings:
        raise CommandError("--set gives bootstrap.servers; give --bootstrap-server instead")
    return {"bootstrap.servers": server, "client.id": "stratalog-cli", **own, **settings}


def unescaped(option: str, text: str) -> bytes:
    r"""What a shell makes hard to type: \t, \n, \0, \xff and \\ count as in C."""

    def meant(match: re.Match[bytes]) -> bytes:
        code = match[1]
        if code in _ESCAPES:
            return _ESCAPES[code]
        if len(code) == 3:
            return bytes([int(code[1:], 16)])
        raise CommandError(rf"{option} is {text!r}; a backslash begins \t, \n, \0, \xff or \\")

    return re.sub(rb"\\(x[0-9a-fA-F]{2}|.?)", meant, text.encode(errors="surrogateescape"), flags=re.DOTALL)

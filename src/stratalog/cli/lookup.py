"""stratalog lookup: how a record is found, step by step."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stratalog.cli.program import CommandError

HELP = """Show how an offset or a timestamp is looked up, step by step, and what that costs.

Which segment and why, every comparison in its indexes, every batch that is stepped over, and the record. A timestamp
leads to the first record that is not older.

\b
Examples:
  stratalog lookup data/orders-0 123456
  stratalog lookup data/orders-0 --timestamp 2026-01-31T12:00:00Z
  stratalog lookup data/orders-0 --timestamp 1769860800000 --json
"""


def command(
    directory: Annotated[Path, typer.Argument(metavar="DIR", show_default=False, help="A partition's directory.")],
    offset: Annotated[
        int | None, typer.Argument(metavar="[OFFSET]", show_default=False, help="The offset to look up.")
    ] = None,
    timestamp: Annotated[
        str | None,
        typer.Option(
            "--timestamp", "-t", metavar="T", show_default=False, help="A time instead: milliseconds or ISO 8601."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")] = False,
) -> None:
    if (offset is None) == (timestamp is None):
        raise CommandError("give either an OFFSET or --timestamp T, like: stratalog lookup data/orders-0 42")
    from stratalog.cli.look_up_story import tell_as_json, tell_story
    from stratalog.cli.output import Output
    from stratalog.cli.wording import parse_timestamp

    if offset is not None:
        from stratalog.inspect.lookup import explain_offset

        wanted, explanation = offset, explain_offset(directory, offset)
    else:
        from stratalog.inspect.lookup_time import explain_timestamp

        wanted = parse_timestamp(timestamp or "")
        explanation = explain_timestamp(directory, wanted)
    output = Output(as_json=as_json)
    if as_json:
        tell_as_json(output, explanation)
    else:
        tell_story(output, explanation, wanted, is_time=offset is None)

"""A command as it was given, to be named in a message: with its options by their long names, quoted for a shell."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from enum import Enum
from typing import Any

import typer


def repeated(context: typer.Context, *, without: str) -> str:
    """The command line of this context, but for one parameter. What the environment says stays there."""
    words = [*context.command_path.split()]
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if name != without and source is not None and source.name == "COMMANDLINE":
            words += _words(parameter, context.params[name])
    return shlex.join(words)


def _words(parameter: Any, value: object) -> Iterator[str]:
    values = value if isinstance(value, list | tuple) else [value]
    for one in values:
        text = str(one.value if isinstance(one, Enum) else one)
        if parameter.param_type_name == "argument":
            yield text
        elif isinstance(one, bool):
            yield from (max(parameter.opts, key=len),) if one else ()
        else:
            yield max(parameter.opts, key=len)
            yield text

"""Help in words: what an option takes is COUNT or DIR, as its command says, or TEXT and NUMBER: never a Python type."""

from __future__ import annotations

from functools import partial
from typing import Any

from typer.core import TyperArgument, TyperGroup

_WORDS = {"int": "NUMBER", "float": "NUMBER", "str": "TEXT", "Path": "PATH", "path": "PATH", "file": "FILE"}


def say_it_in_words(command: Any) -> None:
    """The command, and all below it."""
    for parameter in command.params:
        if isinstance(parameter, TyperArgument):
            parameter.display_type_rich = _nothing  # type: ignore[method-assign]
            parameter._usage_display_name = partial(_name, parameter)  # type: ignore[method-assign]
        elif parameter.metavar is None:
            parameter.display_type = partial(_word, parameter.display_type)
    if isinstance(command, TyperGroup):
        for below in command.commands.values():
            say_it_in_words(below)


def _nothing(*_: object, **__: object) -> str:
    return ""


def _name(argument: TyperArgument) -> str:
    """In the line of usage, where brackets are what may be left out."""
    name = argument.display_name_raw
    return name if argument.required or name.startswith("[") else f"[{name}]"


def _word(display_type: Any, ctx: Any) -> str:
    shown = str(display_type(ctx)).strip("<>").removesuffix(" range")
    return _WORDS.get(shown.removeprefix("list[").removesuffix("]"), shown)

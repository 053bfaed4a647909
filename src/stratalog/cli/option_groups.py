"""Options that several commands have, said once: a dataclass whose fields are options, as a parameter of each."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """The command as Typer takes it: a parameter whose type is a dataclass stands for its fields."""
    own = inspect.signature(command, eval_str=True).parameters
    groups: dict[str, Any] = {name: one.annotation for name, one in own.items() if is_dataclass(one.annotation)}
    fields = {name: inspect.signature(group, eval_str=True).parameters for name, group in groups.items()}

    def run(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field: given.pop(field) for field in fields[name]})
        command(**given)

    parameters = [part for name, one in own.items() for part in (fields[name].values() if name in fields else [one])]
    # By keyword, as Typer gives them: so one with a default may stand before one without.
    by_keyword = [part.replace(kind=inspect.Parameter.KEYWORD_ONLY) for part in parameters]
    run.__signature__ = inspect.Signature(by_keyword)  # type: ignore[attr-defined]
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run

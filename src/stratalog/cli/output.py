"""Lines on stdout: with colours on a terminal, plain elsewhere, or JSON, one object a line.

A line is made of parts, each text or (text, style). On a terminal a line may be clipped at its edge; in a pipe never.
"""

from __future__ import annotations

import json
import sys
from typing import Any, TypeAlias

from rich.console import Console
from rich.text import Text

from stratalog.cli.program import writing

Part: TypeAlias = str | tuple[str, str]

GOOD, BAD, DOUBTFUL, QUIET, STRONG, NAME = "green", "bold red", "yellow", "bright_black", "bold", "cyan"


class Output:
    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        self.console = Console(highlight=False, markup=False, emoji=False)

    @property
    def is_terminal(self) -> bool:
        return self.console.is_terminal

    @property
    def width(self) -> int:
        """Columns of the terminal; in a pipe, what reads well."""
        return self.console.width if self.is_terminal else 100

    def line(self, *parts: Part, clip: bool = False) -> None:
        if not self.is_terminal:
            with writing():
                sys.stdout.write("".join(part if isinstance(part, str) else part[0] for part in parts).rstrip() + "\n")
            return
        text = Text.assemble(*parts)
        if clip:
            self.console.print(text, no_wrap=True, overflow="ellipsis", crop=True)
        else:
            self.console.print(text, soft_wrap=True)

    def json(self, value: dict[str, Any]) -> None:
        with writing():
            sys.stdout.write(json.dumps(value, ensure_ascii=True) + "\n")

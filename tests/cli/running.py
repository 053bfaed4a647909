"""Run the command: in this process for speed, or in its own if exit, pipes or signals matter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from typer.testing import CliRunner, Result

from stratalog.cli.commands import app

COMMAND = [sys.executable, "-m", "stratalog"]


def invoke(*arguments: object, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin, prog_name="stratalog")


def json_of(*arguments: object) -> list[dict[str, Any]]:
    result = invoke(*arguments, "--json")
    assert result.exit_code in (0, 1), result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=60, env=os.environ | environment
    )


def one_line_error(result: Result) -> str:
    """Return stderr, which must be one line of ours without a traceback."""
    assert result.exit_code == 2
    assert result.stderr.startswith("stratalog: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


def error_with_a_note(result: Result) -> tuple[str, str]:
    """Return the two lines of stderr: the error, and how far the command got."""
    assert result.exit_code == 2
    error, note = result.stderr.splitlines()
    assert error.startswith("stratalog: ")
    assert note.startswith("stratalog: ")
    return error, note.removeprefix("stratalog: ")

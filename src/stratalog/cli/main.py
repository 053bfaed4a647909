"""The entry point of the `stratalog` command. It imports next to nothing: from its first moment on, an interrupt is one
line and no traceback of whatever was being imported."""

from __future__ import annotations

import sys

INTERRUPTED = 130


def run() -> None:
    try:
        from stratalog.cli.commands import app

        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")  # a terminal that lacks a character is no reason to fail
        app(prog_name="stratalog")  # also as `python -m stratalog`: help and completion go by it
    except KeyboardInterrupt:
        sys.stderr.write("stratalog: interrupted\n")
        sys.exit(INTERRUPTED)

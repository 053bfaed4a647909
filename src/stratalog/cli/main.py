"""The entry point of the `stratalog` command. It imports almost nothing at the top, so that an interrupt at any moment
ends in one line, without the traceback of an import."""

from __future__ import annotations

import sys

INTERRUPTED = 130


def run() -> None:
    try:
        from stratalog.cli.commands import app

        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")  # a terminal may lack a character
        app(prog_name="stratalog")  # also as `python -m stratalog`, because help and completion show this name
    except KeyboardInterrupt:
        sys.stderr.write("stratalog: interrupted\n")
        sys.exit(INTERRUPTED)

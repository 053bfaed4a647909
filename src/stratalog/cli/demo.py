"""stratalog demo: a million records written, looked up, read back, verified, and saved from a crash."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from stratalog.cli.program import CommandError

HELP = """See it work: write records, look some up, read all back as Arrow, verify, crash and recover.

Takes some seconds and, for a million records, 130 MB of disk. Without --data-dir in a temporary directory, which is
removed at the end; with it, the files stay, for the other commands to be tried on them.

\b
Examples:
  stratalog demo
  stratalog demo --records 100000 --data-dir /tmp/stratalog-demo
"""


def command(
    records: Annotated[int, typer.Option("--records", "-n", min=1, help="How many records to write.")] = 1_000_000,
    data_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", show_default=False, help="Write here, and leave the files.")
    ] = None,
) -> None:
    from stratalog.cli.demo_story import PARTITIONS, DemoStory
    from stratalog.cli.output import Output

    output = Output()
    if data_dir is None:
        with tempfile.TemporaryDirectory(prefix="stratalog-demo-") as folder:
            DemoStory(output, Path(folder), records).run()
        return
    for partition in PARTITIONS:
        if (data_dir / partition).exists():
            raise CommandError(f"{data_dir / partition}: exists already; give another --data-dir, or remove it")
    DemoStory(output, data_dir, records).run()
    output.line()
    output.line(f"The files are in {data_dir}. Try: stratalog lookup {data_dir / PARTITIONS[0]} {records // 2}")

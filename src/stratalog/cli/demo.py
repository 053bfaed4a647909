"""stratalog demo: a year of flights through broker, Spark and SQL; or, with --log, what the log below them does."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from typing import Annotated

import typer

from stratalog.cli.program import FOUND_PROBLEMS, CommandError, complain

ALL_FLIGHTS, DEFAULT_RECORDS = 336_776, 1_000_000
HELP = """See it work: a year of flights, from events to a chart.

Starts a broker on a free port, replays the 336,776 flights that left New York in 2013 as events, has a Spark stream
compute delays per carrier and hour into a compacted topic and a Parquet table, asks the topic in SQL, checks all of it
against pandas, and draws a chart. Takes a minute or two. What is left is the output directory, with chart and table;
results of an earlier run in it are replaced. Exit code 1: the result is not what pandas computes.

With --log: write records to a log without a broker, look some up, read all back as Arrow, verify, crash and recover.
Takes some seconds and, for a million records, 130 MB of disk. Without --data-dir in a temporary directory, which is
removed at the end; with it, the files stay, for the other commands to be tried on them.

\b
Examples:
  stratalog demo
  stratalog demo --flights 20000 --output /tmp/flights
  stratalog demo --log --records 100000 --data-dir /tmp/stratalog-log
"""


def command(
    flights: Annotated[int | None, typer.Option(min=1, max=ALL_FLIGHTS, help="Only the first so many flights.")] = None,
    output: Annotated[Path | None, typer.Option(metavar="DIR", help="For chart and table. [stratalog-demo]")] = None,
    log: Annotated[bool, typer.Option("--log", help="The log alone, without broker and Spark.")] = False,
    records: Annotated[int | None, typer.Option("--records", "-n", min=1, help="With --log. [1000000]")] = None,
    data_dir: Annotated[Path | None, typer.Option(metavar="DIR", help="With --log: leave the files, here.")] = None,
) -> None:
    for name, value, is_of_log in (
        ("--flights", flights, False),
        ("--output", output, False),
        ("--records", records, True),
        ("--data-dir", data_dir, True),
    ):
        if value is not None and is_of_log != log:
            raise CommandError(f"{name} is for the demo {'of the log; add --log' if is_of_log else 'without --log'}")
    if log:
        _show_log(records or DEFAULT_RECORDS, data_dir)
    else:
        _show_flights(flights or ALL_FLIGHTS, output or Path("stratalog-demo"))


def _show_flights(flights: int, output: Path) -> None:
    try:
        from stratalog.demo.errors import WrongResultError
        from stratalog.demo.narrator import Narrator
        from stratalog.demo.story import tell
    except ImportError as error:
        raise CommandError(f"the demo needs {error.name}: pip install 'stratalog[demo]'") from None
    # PySpark 4.3 warns of pandas 3 in general; what is used of it here is checked at the end.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    try:
        tell(output, flights, Narrator())
    except WrongResultError as error:
        complain(str(error), "this is a fault in Stratalog, please report it")
        raise typer.Exit(FOUND_PROBLEMS) from None


def _show_log(records: int, data_dir: Path | None) -> None:
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

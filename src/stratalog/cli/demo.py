"""stratalog demo: a year of flights through broker, Spark and SQL; with --log, only the log below them."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from typing import Annotated

import typer

from stratalog.cli.options import CommandGroup, flag, option
from stratalog.cli.program import FOUND_PROBLEMS, CommandError, complain

ALL_FLIGHTS, DEFAULT_RECORDS = 336_776, 1_000_000

app = CommandGroup()


@app.add("demo")
def demo(
    flights: Annotated[
        int | None, option("--flights", "COUNT", "Use only the first flights.", min=1, max=ALL_FLIGHTS)
    ] = None,
    output: Annotated[Path | None, option("--output", "DIR", "For chart and table. [stratalog-demo]")] = None,
    log: Annotated[bool, flag("--log", "Show only the log, without broker and Spark.")] = False,
    records: Annotated[int | None, option("--records -n", "COUNT", "With --log. [1000000]", min=1)] = None,
    data_dir: Annotated[Path | None, option("--data-dir", "DIR", "With --log: keep the files here.")] = None,
) -> None:
    """Run a demo: a year of flights, from events to a chart.

    Starts a broker on a free port, sends the 336,776 flights that left New York in 2013 as events, computes delays per
    carrier and hour in a Spark stream, into a compacted topic and a Parquet table, queries the topic in SQL, checks
    everything against pandas, and draws a chart. It takes a minute or two. Only the output directory is kept, with
    chart and table; it replaces the results of an earlier run. Exit code 1: the result is not what pandas computes.

    With --log: write records to a log without a broker, read them back as Arrow, look one up, verify all, kill a
    process that appends, and recover its log. It takes some seconds and, for a million records, 130 MB of disk. With
    --data-dir the files are kept, to try the other commands on them.

    \b
    Examples:
      stratalog demo
      stratalog demo --flights 20000 --output /tmp/flights
      stratalog demo --log --records 100000 --data-dir /tmp/stratalog-log
    """
    if not log and (records is not None or data_dir is not None):
        raise CommandError("--records and --data-dir are for the demo of the log; add --log, or leave them out")
    if log and (flights is not None or output is not None):
        raise CommandError("--flights and --output are for the demo without --log; leave them out, or --log")
    if not log:
        _run_flights(flights or ALL_FLIGHTS, output or Path("stratalog-demo"))
        return
    from stratalog.cli.log_demo import run_log_demo

    if data_dir is not None:
        run_log_demo(data_dir, records or DEFAULT_RECORDS)
        typer.echo(f"\nThe files are in {data_dir}. Try: stratalog verify {data_dir}")
        return
    with tempfile.TemporaryDirectory(prefix="stratalog-demo-") as folder:
        run_log_demo(Path(folder), records or DEFAULT_RECORDS)


def _run_flights(flights: int, output: Path) -> None:
    try:
        from stratalog.demo.errors import WrongResultError
        from stratalog.demo.narrator import Narrator
        from stratalog.demo.story import run_demo
    except ImportError as error:
        raise CommandError(f"the demo needs {error.name}: pip install 'stratalog[demo]'") from None
    # PySpark 4.3 warns about pandas 3 in general. The results are checked at the end.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    try:
        run_demo(output, flights, Narrator())
    except WrongResultError as error:
        complain(str(error), "this is a bug in Stratalog, please report it")
        raise typer.Exit(FOUND_PROBLEMS) from None

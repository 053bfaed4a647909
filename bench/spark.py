"""Compare the data source with Spark's own Kafka connector, on the same broker and in one Spark session.

    python -m bench.spark [--only read] [--records 1000000] [--rounds 3] [--keep DIRECTORY]

The connector is fetched from Maven Central. Ten million records and five rounds take about a quarter of an hour on two
quiet cores. Progress goes to stderr, the table to stdout. spark_first_read, spark_read, spark_stream and
spark_write describe their measurements.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from bench import spark_first_read, spark_read, spark_stream, spark_write
from bench.measure import ROUNDS
from bench.report import Row, directory, report
from bench.spark_sides import Workbench, workbench

RECORDS = 10_000_000
PARTS: dict[str, Callable[[Workbench], list[Row]]] = {
    "first": spark_first_read.rows,
    "read": spark_read.rows,
    "stream": spark_stream.rows,
    "write": spark_write.rows,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(PARTS), help="run one part")
    parser.add_argument("--records", type=int, default=RECORDS, help=f"records in the topic (default: {RECORDS:,})")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"rounds, of which the median counts ({ROUNDS})")
    parser.add_argument("--directory", type=Path, help="directory for temporary files")
    parser.add_argument(
        "--keep", type=Path, help="directory for the broker's data, which is kept and used again by the next run"
    )
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 140)
    chosen = [PARTS[options.only]] if options.only else list(PARTS.values())
    rows: list[Row] = []
    with (
        directory(options.directory) as scratch,
        workbench(options.keep or scratch, scratch, options.records, options.rounds) as bench,
    ):
        for part in chosen:
            rows += part(bench)
    title = f"Spark, {options.records:,} records of 100 bytes, median of {options.rounds}"
    return 0 if report(title, rows, console) else 1


if __name__ == "__main__":
    sys.exit(main())

"""A user's first read: a new program starts a session, loads a topic and counts it.

    python -m bench.spark_first_read [--records 1000000] [--rounds 5]

The peer is a Python data source with the same columns and partitions that yields no rows (spark_empty_source.py): the
ratio shows what Stratalog adds to Spark. Both programs use `stratalog.spark.session`. They alternate, and each has a
process and a JVM of its own (spark_first_program.py). CPU is that of the program, its JVM and all Python processes that
Spark starts; the broker is not part of it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from bench.measure import ROUNDS, Cost, median
from bench.report import Row, directory, report
from bench.spark_first_program import COUNT, LOAD, SESSION
from bench.spark_sides import TOPIC, fill, in_rotation, say
from stratalog.testing.broker_process import BrokerProcess

if TYPE_CHECKING:
    from bench.spark_sides import Workbench

RECORDS = 1_000_000
MOST = 1.5  # times the cost of the empty source, for load and first count together
_FIRST_READ = "load and first count"

Phases = dict[str, Cost]


def rows(bench: Workbench) -> list[Row]:
    bench.topic()
    return first_read_rows(bench.broker.bootstrap_servers, bench.records, bench.rounds)


def first_read_rows(servers: str, records: int, rounds: int) -> list[Row]:
    sides = {"ours": lambda: _run(records, servers), "empty source": lambda: _run(0)}
    costs: dict[str, list[Phases]] = {name: [] for name in sides}
    for number, round_costs in enumerate(in_rotation(sides, rounds)):
        shown = ", ".join(f"{name} {_shown(phases[_FIRST_READ])}" for name, phases in round_costs.items())
        say(f"round {number} of {rounds}: {shown}{'' if number else ' (does not count)'}")
        if number:
            for name, phases in round_costs.items():
                costs[name].append(phases)
    return [_row(phase, costs["ours"], costs["empty source"]) for phase in (SESSION, LOAD, COUNT, _FIRST_READ)]


def _run(records: int, *arguments: str) -> Phases:
    """Run the program, and return its costs by phase."""
    command = [sys.executable, "-m", "bench.spark_first_program", *arguments]
    reported = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    if reported["records"] != records:
        raise SystemExit(f"the program counted {reported['records']} records, not {records}")
    phases = {phase: Cost(*cost) for phase, cost in reported["phases"].items()}
    load, count = phases[LOAD], phases[COUNT]
    return phases | {_FIRST_READ: Cost(load.wall + count.wall, load.cpu + count.cpu)}


def _row(phase: str, ours: list[Phases], empty: list[Phases]) -> Row:
    mine, peer = (median([phases[phase] for phases in side]) for side in (ours, empty))
    is_goal = phase == _FIRST_READ
    return Row(
        f"first read: {phase}, against an empty source",
        f"{mine.wall / peer.wall:.2f}x ({mine.wall:.2f} s, {peer.wall:.2f} s)",
        f"at most {MOST}x" if is_goal else "",
        mine.cpu <= MOST * peer.cpu if is_goal else None,
        f"{mine.cpu:.2f} s, {peer.cpu:.2f} s: {mine.cpu / peer.cpu:.2f}x",
    )


def _shown(cost: Cost) -> str:
    return f"{cost.wall:.2f} s ({cost.cpu:.2f} s of CPU)"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=RECORDS, help=f"in the topic; {RECORDS:,} by default")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of which the median counts; {ROUNDS} by default")
    parser.add_argument("--directory", type=Path, help="for temporary files")
    options = parser.parse_args()
    with directory(options.directory) as path, BrokerProcess(path / "broker") as broker:
        fill(broker, TOPIC, options.records)
        table = first_read_rows(broker.bootstrap_servers, options.records, options.rounds)
    console = Console(width=None if sys.stdout.isatty() else 140)
    title = f"The first read of a Spark program, {options.records:,} records, median of {options.rounds}"
    return 0 if report(title, table, console) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Compare three brokers and ZooKeeper with three nodes of Apache Kafka on this machine. `make bench-cluster` runs this.

`make compat` must have fetched Kafka before. Both sides take turns, and the results are medians of rounds. The clients
are Kafka's ProducerPerformance and librdkafka. CPU time is that of the brokers, from /proc; that of ZooKeeper is
reported separately.
"""

from __future__ import annotations

import argparse
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console

from bench import cluster_failover, cluster_produce
from bench.report import Row, report

PARTS: dict[str, Callable[[argparse.Namespace], Iterator[Row]]] = {
    "produce": lambda options: cluster_produce.produce(options.dir, options.mib, options.rounds),
    "catch-up": lambda options: cluster_produce.catch_up(options.dir, options.mib, options.rounds),
    "failover": lambda options: cluster_failover.failover(options.dir, options.kills),
    "many": lambda options: cluster_failover.many(options.dir),
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--only", choices=list(PARTS), action="append", help="run one part; can be repeated")
    parser.add_argument("--dir", type=Path, help="directory for the files; if None, the system's temporary directory")
    parser.add_argument("--mib", type=int, default=300, help="MiB that a round produces")
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds of produce; the result is their median")
    parser.add_argument("--kills", type=int, default=2, help="how often each broker is killed")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no broker outlives this program
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 65_536)), hard))
    with Console(stderr=True).status("measuring ..."):
        rows = [row for part in options.only or PARTS for row in PARTS[part](options)]
    return 0 if report("cluster", rows, Console()) else 1


if __name__ == "__main__":
    sys.exit(main())

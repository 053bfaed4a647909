"""Batch reads: straight off the files and over the wire beside Spark's own connector, and what filters spare.

    python -m bench.spark_read [--records 1000000] [--rounds 3]

local[2], all columns to a sink that does nothing, both sides in turn. A filter's row compares with the same scan
without it. Memory is the largest Python worker's after scans of a topic of a tenth of the size, and of all of it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from rich.console import Console

from bench.measure import Comparison, Cost, compare
from bench.report import Row, directory, report
from bench.spark_sides import DAY_MS, arguments, cost_of_all, fill, reading, spark_session, to_nowhere, workers_peak_mb
from stratalog.testing.broker_process import BrokerProcess

TOPIC, SMALL_TOPIC = "measured", "measured-tenth"
HOUR_MS = 3_600_000
MOST_GROWTH = 1.25
FEWEST = 500_000  # of the small topic: some portions for each task, or a worker has not reached its size


class Scans:
    """Each method is one query, and what it cost."""

    def __init__(self, spark: SparkSession, broker: BrokerProcess, first_ms: int) -> None:
        self._spark = spark
        self._broker = broker
        self._noon = first_ms + DAY_MS // 2

    def stock(self) -> Cost:
        return self._cost(lambda: reading(self._spark, "kafka", self._broker, TOPIC).load())

    def wire(self) -> Cost:
        return self._cost(
            lambda: reading(self._spark, "stratalog", self._broker, TOPIC).option("log.dirs", "none").load()
        )

    def direct(self, topic: str = TOPIC) -> Cost:
        return self._cost(lambda: self._direct(topic))

    def one_hour(self) -> Cost:
        first, end = (f.timestamp_millis(f.lit(self._noon + hours * HOUR_MS)) for hours in (0, 1))
        return self._cost(lambda: self._pushing().where((f.col("timestamp") >= first) & (f.col("timestamp") < end)))

    def one_key(self) -> Cost:
        return self._cost(lambda: self._pushing().where(f.col("key") == f.lit(b"00000777")))

    def _pushing(self) -> DataFrame:
        return self._direct(TOPIC, pushFilters="true")

    def _direct(self, topic: str, **options: str) -> DataFrame:
        reader = reading(self._spark, "stratalog", self._broker, topic)
        return reader.options(**options).option("log.dirs", str(self._broker.data_dir)).load()

    def _cost(self, query: Callable[[], DataFrame]) -> Cost:
        """From load() to the last row."""
        return cost_of_all(lambda: to_nowhere(query()), self._broker.pid)


def main() -> int:
    given = arguments(__doc__).parse_args()
    console = Console()
    first_ms = int(time.time() * 1000) - DAY_MS
    with directory(given.directory) as place, BrokerProcess(place) as broker, spark_session() as spark:
        fill(broker, SMALL_TOPIC, max(given.records // 10, FEWEST), first_ms)
        fill(broker, TOPIC, given.records, first_ms)
        scans = Scans(spark, broker, first_ms)
        rows = [memory_row(scans)]
        for scan in (scans.stock, scans.wire, scans.one_hour, scans.one_key) * 2:
            scan()  # Java compiles what it has seen often: first queries cost several times as much
        for what, mine, other, target in (
            ("direct, against Spark's connector", scans.direct, scans.stock, 2.0),
            ("over the wire, against Spark's connector", scans.wire, scans.stock, 1.0),
            ("one hour of a day, against all of it", scans.one_hour, scans.direct, 10.0),
            ("WHERE key = ..., against all keys", scans.one_key, scans.direct, 5.0),
        ):
            rows.append(speed_row(what, compare(mine, other, given.rounds), given.records, target))
            console.print(rows[-1])
    return 0 if report(f"Spark, reading {given.records:,} records of 100 bytes", rows, console) else 1


def memory_row(scans: Scans) -> Row:
    for _ in range(3):
        scans.direct(SMALL_TOPIC)
    before = workers_peak_mb()
    scans.direct()
    after = workers_peak_mb()
    measured = f"{before:.0f} -> {after:.0f} MB"
    return Row(
        "a worker's memory, topic ten times as large", measured, f"{MOST_GROWTH}x", after <= MOST_GROWTH * before
    )


def speed_row(what: str, found: Comparison, records: int, target: float) -> Row:
    rate = records / found.ours.wall / 1e6
    return Row(
        what,
        f"{found.ratio:.2f}x ({found.ours.wall:.2f} s, {found.peer.wall:.2f} s; {rate:.1f} M/s)",
        f"{target:g}x",
        found.ratio >= target,
        f"{found.ours.cpu:.1f} s, {found.peer.cpu:.1f} s: {found.cpu_ratio:.1f}x",
    )


if __name__ == "__main__":
    sys.exit(main())

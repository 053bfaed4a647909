"""Batch reads: directly from the files and over the wire, compared with Spark's own connector, and what filters save.

The session is local[2]. A read takes all columns into a sink that does nothing, from load() to the last row. The row of
a filter compares it with the same scan without the filter, in the same round. Memory is measured after scans of a tenth
of the topic, and again after a scan of all of it: the peak of the largest Python worker, and the driver's heap after a
collection.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from bench.measure import Cost
from bench.report import Row
from bench.spark_sides import (
    DAY_MS,
    FIRST_MS,
    PARTITIONS,
    TOPIC,
    Workbench,
    compared,
    driver_heap_mb,
    in_turn,
    say,
    speed_row,
    to_nowhere,
    workers_peak_mb,
)

HOUR_MS = 3_600_000
NOON_MS = FIRST_MS + DAY_MS // 2
MOST_GROWTH = 1.25
FEWEST = 500_000  # several portions for each task; with fewer, a worker does not reach its full size


class Scans:
    """Each method runs one query and returns its cost."""

    def __init__(self, bench: Workbench) -> None:
        self._bench = bench

    def stock(self) -> Cost:
        return self._cost(lambda: self._bench.reading("kafka").load())

    def wire(self) -> Cost:
        return self._cost(lambda: self._bench.reading("stratalog").option("log.dirs", "none").load())

    def direct(self) -> Cost:
        return self._cost(self._direct)

    def one_hour(self) -> Cost:
        first, end = (f.timestamp_millis(f.lit(NOON_MS + hours * HOUR_MS)) for hours in (0, 1))
        return self._cost(
            lambda: self._direct(pushFilters="true").where((f.col("timestamp") >= first) & (f.col("timestamp") < end))
        )

    def one_hour_by_options(self) -> Cost:
        """Run the same query without push-down, whose planning takes Spark some time."""
        hour = {"filterFromTimestamp": str(NOON_MS), "filterUntilTimestamp": str(NOON_MS + HOUR_MS)}
        return self._cost(lambda: self._direct(**hour))

    def one_key(self) -> Cost:
        return self._cost(lambda: self._direct(pushFilters="true").where(f.col("key") == f.lit(b"00000777")))

    def first(self, records: int) -> Cost:
        ends = {TOPIC: {str(index): records // PARTITIONS for index in range(PARTITIONS)}}
        return self._cost(lambda: self._direct(endingOffsets=json.dumps(ends)))

    def _direct(self, **options: str) -> DataFrame:
        reader = self._bench.reading("stratalog").options(**options)
        return reader.option("log.dirs", str(self._bench.broker.data_dir)).load()

    def _cost(self, query: Callable[[], DataFrame]) -> Cost:
        return self._bench.cost(lambda: to_nowhere(query()))


def rows(bench: Workbench) -> list[Row]:
    bench.topic()
    scans = Scans(bench)
    table = memory_rows(bench, scans)
    say("reading: queries before the first round, as Java compiles what it has seen often")
    for scan in (scans.wire, scans.direct, *(scans.one_hour, scans.one_hour_by_options, scans.one_key) * 10):
        scan()
    sides = {
        "Spark's connector": scans.stock,
        "over the wire": scans.wire,
        "direct": scans.direct,
        "one hour": scans.one_hour,
        "one hour by options": scans.one_hour_by_options,
        "one key": scans.one_key,
    }
    costs = in_turn(sides, bench.rounds)
    for what, mine, other, target in (
        ("direct, against Spark's connector", "direct", "Spark's connector", 2.0),
        ("over the wire, against Spark's connector", "over the wire", "Spark's connector", 1.0),
        ("WHERE timestamp in one hour of a day, against all of it", "one hour", "direct", 10.0),
        ("the same hour by filterFromTimestamp, filterUntilTimestamp", "one hour by options", "direct", 10.0),
        ("WHERE key = ..., against all keys", "one key", "direct", 5.0),
    ):
        table.append(speed_row(what, compared(costs[mine], costs[other]), bench.records, target))
    return table


def memory_rows(bench: Workbench, scans: Scans) -> list[Row]:
    say("memory: a tenth of the topic, then all of it")
    for _ in range(3):
        scans.first(max(bench.records // 10, min(FEWEST, bench.records)))
    worker, driver = workers_peak_mb(), driver_heap_mb(bench.spark)
    scans.direct()
    return [
        _memory_row("a worker's memory, for a tenth and for all", worker, workers_peak_mb()),
        _memory_row("the driver's heap, for a tenth and for all", driver, driver_heap_mb(bench.spark)),
    ]


def _memory_row(what: str, before: float, after: float) -> Row:
    return Row(what, f"{before:.0f} MB, {after:.0f} MB", f"{MOST_GROWTH}x", after <= MOST_GROWTH * before)

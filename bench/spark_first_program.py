"""The program that spark_first_read measures: it starts a session, loads a topic and counts it.

It prints one JSON object: for each phase its wall seconds, and the CPU seconds of the program, its JVM and all Python
processes that Spark started. Without an argument it reads the empty source, otherwise the topic at these brokers.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from bench.spark_processes import tree_cpu_seconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SESSION, LOAD, COUNT = "session", "load", "first count"
TOPIC, PARTITIONS = "measured", 2

T = TypeVar("T")


class Stopwatch:
    def __init__(self) -> None:
        self.phases: dict[str, tuple[float, float]] = {}

    def measure(self, phase: str, work: Callable[[], T]) -> T:
        cpu, wall = tree_cpu_seconds(os.getpid()), time.perf_counter()
        result = work()
        self.phases[phase] = time.perf_counter() - wall, tree_cpu_seconds(os.getpid()) - cpu
        return result


def start() -> SparkSession:
    from stratalog.spark import session

    return session("local[2]", "first read")


def load(spark: SparkSession, servers: str | None) -> DataFrame:
    if servers is not None:
        reader = spark.read.format("stratalog").option("kafka.bootstrap.servers", servers).option("subscribe", TOPIC)
        return reader.load()
    from bench.spark_empty_source import EmptyDataSource

    spark.dataSource.register(EmptyDataSource)
    return spark.read.format(EmptyDataSource.name()).option("partitions", str(PARTITIONS)).load()


def main() -> None:
    servers = sys.argv[1] if len(sys.argv) > 1 else None
    watch = Stopwatch()
    spark = watch.measure(SESSION, start)
    frame = watch.measure(LOAD, lambda: load(spark, servers))
    records = watch.measure(COUNT, frame.count)
    print(json.dumps({"records": records, "phases": watch.phases}))
    spark.stop()


if __name__ == "__main__":
    main()

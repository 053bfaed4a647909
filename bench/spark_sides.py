"""The shared parts of the Spark benchmarks: a broker with a topic to read, a session that also has Spark's own
connector, running both sides in turn, and the cost of a query: its time, and the CPU of driver, JVM, Python workers and
broker."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from tests.compat.fetch_spark_kafka import connector_jars

from bench.measure import Comparison, Cost, median
from bench.report import Row
from bench.spark_processes import cpu_seconds, descendants, tree_cpu_seconds
from stratalog.client import Admin, Producer
from stratalog.client.admin import OffsetSpec
from stratalog.client.metadata import TopicPartition
from stratalog.spark.session import session
from stratalog.testing.broker_process import BrokerProcess

TOPIC = "measured"
FIRST_MS = 1_767_225_600_000  # 2026-01-01: constant, so that a kept topic can be reused
DAY_MS = 86_400_000
VALUE_BYTES = 100
KEYS = 1_000_000
PARTITIONS = 2
_AT_ONCE = 500_000
_BEGAN = time.monotonic()

R = TypeVar("R")


@dataclass(frozen=True)
class Workbench:
    """The input of each part. `topic()` fills the topic when it is first called."""

    spark: SparkSession
    broker: BrokerProcess
    scratch: Path
    records: int
    rounds: int

    def topic(self) -> str:
        fill(self.broker, TOPIC, self.records)
        return TOPIC

    def reading(self, format: str, topic: str = TOPIC) -> DataFrameReader:
        reader = self.spark.read.format(format).option("kafka.bootstrap.servers", self.broker.bootstrap_servers)
        return reader.option("subscribe", topic)

    def cost(self, work: Callable[[], object]) -> Cost:
        """Return the time, and the CPU of this process, its descendants and the broker."""
        before, wall = self._cpu(), time.perf_counter()
        work()
        return Cost(time.perf_counter() - wall, self._cpu() - before)

    def _cpu(self) -> float:
        return tree_cpu_seconds(os.getpid()) + cpu_seconds(self.broker.pid)


@contextmanager
def workbench(data: Path, scratch: Path, records: int, rounds: int) -> Iterator[Workbench]:
    """Start a broker in `data` and Spark. `scratch` is for temporary files."""
    say("starting a broker, and Spark with its own connector")
    settings = {"log.segment.delete.delay.ms": "1000"}  # deleted topics free their space soon: 1.2 GB each
    with BrokerProcess(data / "broker", settings) as broker, spark_session() as spark:
        yield Workbench(spark, broker, scratch, records, rounds)


@contextmanager
def spark_session() -> Iterator[SparkSession]:
    jars = ",".join(str(path) for path in connector_jars())
    settings = {"spark.jars": jars, "spark.driver.memory": "1g", "spark.sql.session.timeZone": "UTC"}
    spark = session("local[2]", "stratalog benchmark", **settings)
    try:
        yield spark
    finally:
        spark.stop()


def say(what: str) -> None:
    """Print to stderr, because stdout is for the table."""
    print(f"[{time.monotonic() - _BEGAN:6.0f} s] {what}", file=sys.stderr, flush=True)


# The topic


def fill(broker: BrokerProcess, topic: str, records: int) -> None:
    """Fill the topic with records of 100 bytes and recurring keys, spread evenly over a day.

    An existing topic with as many records is kept. With any other number it is created again.
    """
    with Admin(broker.bootstrap_servers) as admin:
        if topic in admin.list_topics():
            specs = {TopicPartition(topic, index): OffsetSpec.LATEST for index in range(PARTITIONS)}
            if sum(end.offset for end in admin.list_offsets(specs).check().values()) == records:
                return
            broker.delete_topic(topic)
        config = {"retention.ms": "-1", "message.timestamp.before.max.ms": str(2**62)}
        admin.create_topic(topic, PARTITIONS, config=config)
    with Producer(broker.bootstrap_servers) as producer:
        for start in range(0, records, _AT_ONCE):
            say(f"filling the topic: {start:,} of {records:,} records")
            producer.send_arrow(topic, _table(start, min(start + _AT_ONCE, records), records))
        producer.flush()
    say(f"the topic has {records:,} records")


def _table(start: int, end: int, records: int) -> pa.Table:
    numbers = pa.array(range(start, end), pa.int64())
    keys = pa.array([number % KEYS for number in range(start, end)], pa.int64())
    return pa.table(
        {
            "key": _padded(keys, 8),
            "value": _padded(numbers, VALUE_BYTES),
            "timestamp": pc.add(pc.divide(pc.multiply(numbers, DAY_MS), records), FIRST_MS),
            "partition": pa.array([number % PARTITIONS for number in range(start, end)], pa.int32()),
        }
    )


def _padded(numbers: pa.Array, width: int) -> pa.Array:
    return pc.utf8_lpad(numbers.cast(pa.string()), width, "0").cast(pa.binary())


def to_nowhere(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


# Rounds


def in_rotation(sides: Mapping[str, Callable[[], R]], rounds: int) -> Iterator[dict[str, R]]:
    """Run each side once per round, in rotating order. The first of `rounds` + 1 results is a warm-up."""
    names = list(sides)
    for number in range(rounds + 1):
        first = number % len(names)
        yield {name: sides[name]() for name in names[first:] + names[:first]}


def in_turn(sides: Mapping[str, Callable[[], Cost]], rounds: int) -> dict[str, list[Cost]]:
    """Run each side once per round, in rotating order, after one round that does not count."""
    results: dict[str, list[Cost]] = {name: [] for name in sides}
    for number, costs in enumerate(in_rotation(sides, rounds)):
        seconds = ", ".join(f"{name} {costs[name].wall:.2f} s" for name in sides)
        say(f"round {number} of {rounds}: {seconds}{'' if number else ' (does not count)'}")
        for name in sides if number else ():
            results[name].append(costs[name])
    return results


def compared(mine: list[Cost], other: list[Cost]) -> Comparison:
    """Compare the costs round by round, as bench.measure does."""
    pairs = list(zip(mine, other, strict=True))
    return Comparison(
        median(mine),
        median(other),
        statistics.median(peer.wall / ours.wall for ours, peer in pairs),
        statistics.median(peer.cpu / max(ours.cpu, 1e-9) for ours, peer in pairs),
    )


def speed_row(what: str, costs: Comparison, records: int, target: float) -> Row:
    rate = records / costs.ours.wall / 1e6
    return Row(
        what,
        f"{costs.ratio:.2f}x ({costs.ours.wall:.2f} s, {costs.peer.wall:.2f} s; {rate:.1f} M/s)",
        f"{target:g}x",
        costs.ratio >= target,
        f"{costs.ours.cpu:.1f} s, {costs.peer.cpu:.1f} s: {costs.cpu_ratio:.1f}x",
    )


# Processes


def workers_peak_mb() -> float:
    """Return the highest peak memory of a Python worker of this session."""
    peaks = [0.0]
    for pid in descendants(os.getpid()):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        if b"pyspark" in command and b"java" not in command and "VmHWM:" in status:
            peaks.append(int(status.partition("VmHWM:")[2].split()[0]) / 1024)
    return max(peaks)


def driver_heap_mb(spark: SparkSession) -> float:
    """Return the heap of the driver's JVM after a garbage collection."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    jvm.java.lang.System.gc()
    runtime = jvm.java.lang.Runtime.getRuntime()
    return float(runtime.totalMemory() - runtime.freeMemory()) / 2**20

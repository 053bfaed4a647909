"""What the Spark benchmarks share: a topic to read, a session that has Spark's own connector too, and what a query
costs: its time, and the CPU of driver, JVM, Python workers and broker together."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from tests.compat.fetch_spark_kafka import connector_jars

from bench.measure import ROUNDS, Cost
from stratalog.client import Admin, Producer
from stratalog.spark.session import session
from stratalog.testing.broker_process import BrokerProcess

DAY_MS = 86_400_000
VALUE_BYTES = 100
KEYS = 1_000_000
PARTITIONS = 2
_TICKS = os.sysconf("SC_CLK_TCK")


def arguments(description: str | None, records: int = 10_000_000) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=records, help="in the topic")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of which the median counts")
    parser.add_argument("--directory", type=Path, help="where the broker's data goes meanwhile")
    return parser


@contextmanager
def spark_session() -> Iterator[SparkSession]:
    jars = ",".join(str(path) for path in connector_jars())
    settings = {"spark.jars": jars, "spark.driver.memory": "1g", "spark.sql.session.timeZone": "UTC"}
    spark = session("local[2]", "stratalog benchmark", **settings)
    try:
        yield spark
    finally:
        spark.stop()


def fill(broker: BrokerProcess, topic: str, records: int, first_ms: int) -> None:
    """Records of 100 bytes with keys that come back, spread evenly over a day."""
    with Admin(broker.bootstrap_servers) as admin:
        admin.create_topic(
            topic, PARTITIONS, config={"retention.ms": "-1", "message.timestamp.before.max.ms": str(2**62)}
        )
    with Producer(broker.bootstrap_servers) as producer:
        for start in range(0, records, 100_000):
            numbers = range(start, min(start + 100_000, records))
            table = pa.table(
                {
                    "key": pa.array([b"%08d" % (number % KEYS) for number in numbers], pa.binary()),
                    "value": pa.array([b"%0*d" % (VALUE_BYTES, number) for number in numbers], pa.binary()),
                    "timestamp": pa.array([first_ms + number * DAY_MS // records for number in numbers], pa.int64()),
                    "partition": pa.array([number % PARTITIONS for number in numbers], pa.int32()),
                }
            )
            producer.send_arrow(topic, table)
        producer.flush()


def reading(spark: SparkSession, format: str, broker: BrokerProcess, topic: str) -> DataFrameReader:
    return (
        spark.read.format(format).option("kafka.bootstrap.servers", broker.bootstrap_servers).option("subscribe", topic)
    )


def to_nowhere(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def cost_of_all(work: Callable[[], object], *others: int) -> Cost:
    """Time, and the CPU of this process, all that descend from it, and `others`."""
    before, wall = _cpu(others), time.perf_counter()
    work()
    return Cost(time.perf_counter() - wall, _cpu(others) - before)


def descendants(pid: int) -> list[int]:
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            children = (task / "children").read_text().split()
        except OSError:
            continue  # the thread ended
        for child in children:
            try:
                found += descendants(int(child))
            except FileNotFoundError:
                continue
    return found


def _cpu(others: tuple[int, ...]) -> float:
    ticks = 0
    for pid in {*descendants(os.getpid()), *others}:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(int(fields[at]) for at in (11, 12, 13, 14))  # own, and that of children that ended
    return ticks / _TICKS


def workers_peak_mb() -> float:
    """The most that a Python worker of this session ever held."""
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

"""Batch writes: ours, all or nothing and plain, beside Spark's own connector, which is plain.

    python -m bench.spark_write [--records 1000000] [--rounds 3]

local[2], rows of an 8-byte key and a 100-byte value that Spark makes from their number, into a topic of its own each
time. Counted is what readers of committed records find there at the end.
"""

from __future__ import annotations

import itertools
import sys

from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

from bench.measure import Cost, compare
from bench.report import directory, report
from bench.spark_read import speed_row
from bench.spark_sides import PARTITIONS, VALUE_BYTES, arguments, cost_of_all, spark_session
from stratalog.client import Admin
from stratalog.client.admin import OffsetSpec
from stratalog.client.metadata import TopicPartition
from stratalog.testing.broker_process import BrokerProcess


class Writes:
    """Each method is one write, and what it cost."""

    def __init__(self, spark: SparkSession, broker: BrokerProcess, records: int) -> None:
        self._spark = spark
        self._broker = broker
        self._records = records
        self._numbers = itertools.count()

    def stock(self) -> Cost:
        return self._write("kafka")

    def exactly_once(self) -> Cost:
        return self._write("stratalog", delivery="exactly-once")

    def at_least_once(self) -> Cost:
        return self._write("stratalog", delivery="at-least-once")

    def _rows(self) -> DataFrame:
        return self._spark.range(0, self._records, 1, 2).selectExpr(
            "cast(lpad(cast(id as string), 8, '0') as binary) as key",
            f"cast(lpad(cast(id as string), {VALUE_BYTES}, '0') as binary) as value",
        )

    def _write(self, format: str, **options: str) -> Cost:
        topic = f"written-{next(self._numbers)}"
        self._broker.create_topic(topic, PARTITIONS)
        writer = self._rows().write.format(format).mode("append").options(**options).option("topic", topic)
        writer = writer.option("kafka.bootstrap.servers", self._broker.bootstrap_servers)
        cost = cost_of_all(writer.save, self._broker.pid)
        self._check(topic)
        self._broker.delete_topic(topic)
        return cost

    def _check(self, topic: str) -> None:
        places = {TopicPartition(topic, index): OffsetSpec.LATEST for index in range(PARTITIONS)}
        with Admin(self._broker.bootstrap_servers) as admin:
            ends = admin.list_offsets(places, read_committed=True).check()
        found = sum(end.offset for end in ends.values())
        markers = found - self._records  # of transactions: each has an offset too
        assert 0 <= markers <= 100, f"{found} records of {self._records}"


def main() -> int:
    given = arguments(__doc__).parse_args()
    console = Console()
    with directory(given.directory) as place, BrokerProcess(place) as broker, spark_session() as spark:
        writes = Writes(spark, broker, given.records)
        rows = []
        for what, mine in (
            ("exactly once, against Spark's connector", writes.exactly_once),
            ("at least once, against Spark's connector", writes.at_least_once),
        ):
            rows.append(speed_row(what, compare(mine, writes.stock, given.rounds), given.records, 1.0))
            console.print(rows[-1])
    return 0 if report(f"Spark, writing {given.records:,} records of 100 bytes", rows, console) else 1


if __name__ == "__main__":
    sys.exit(main())

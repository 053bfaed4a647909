"""Batch writes: ours, atomic and plain, compared with Spark's own connector, which is plain.

The session is local[2]. Spark generates rows with an 8-byte key and a 100-byte value, and writes them to a new topic
each time. At the end, readers of committed records count them.
"""

from __future__ import annotations

import itertools

from pyspark.sql import DataFrame

from bench.measure import Cost
from bench.report import Row
from bench.spark_sides import PARTITIONS, VALUE_BYTES, Workbench, compared, in_turn, say, speed_row
from stratalog.client import Admin
from stratalog.client.admin import OffsetSpec
from stratalog.client.metadata import TopicPartition


class Writes:
    """Each method runs one write and returns its cost."""

    def __init__(self, bench: Workbench) -> None:
        self._bench = bench
        self._numbers = itertools.count()

    def stock(self) -> Cost:
        return self._write("kafka")

    def exactly_once(self) -> Cost:
        return self._write("stratalog", delivery="exactly-once")

    def at_least_once(self) -> Cost:
        return self._write("stratalog", delivery="at-least-once")

    def _rows(self) -> DataFrame:
        return self._bench.spark.range(0, self._bench.records, 1, 2).selectExpr(
            "cast(lpad(cast(id as string), 8, '0') as binary) as key",
            f"cast(lpad(cast(id as string), {VALUE_BYTES}, '0') as binary) as value",
        )

    def _write(self, format: str, **options: str) -> Cost:
        broker = self._bench.broker
        topic = f"written-{next(self._numbers)}"
        broker.delete_topic(topic, if_exists=True)  # left by an interrupted run whose data was kept
        broker.create_topic(topic, PARTITIONS)
        writer = self._rows().write.format(format).mode("append").options(**options).option("topic", topic)
        cost = self._bench.cost(writer.option("kafka.bootstrap.servers", broker.bootstrap_servers).save)
        self._check(topic)
        broker.delete_topic(topic)
        return cost

    def _check(self, topic: str) -> None:
        partitions = {TopicPartition(topic, index): OffsetSpec.LATEST for index in range(PARTITIONS)}
        with Admin(self._bench.broker.bootstrap_servers) as admin:
            ends = admin.list_offsets(partitions, read_committed=True).check()
        records = sum(end.offset for end in ends.values())
        markers = records - self._bench.records  # transaction markers have offsets too
        assert 0 <= markers <= 100, f"{records} records of {self._bench.records}"


def rows(bench: Workbench) -> list[Row]:
    say(f"writing: {bench.records:,} records each time")
    writes = Writes(bench)
    sides = {
        "Spark's connector": writes.stock,
        "exactly once": writes.exactly_once,
        "at least once": writes.at_least_once,
    }
    costs = in_turn(sides, bench.rounds)
    stock = costs.pop("Spark's connector")
    return [
        speed_row(f"writing {name}, against Spark's connector", compared(mine, stock), bench.records, 1.0)
        for name, mine in costs.items()
    ]

"""What a micro-batch costs: small batches of a topic beside those of Spark's own rate source, both to a sink that does
nothing. The target is within 1.5 times.

    python -m bench.spark_stream [--rounds 5]

A round runs each stream for some batches one behind the other, and takes the median of their times as Spark's progress
has them (triggerExecution: planning, offsets, the log of the checkpoint, the tasks).
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console

from bench.measure import Comparison, Cost, compare
from bench.report import Row, directory, report
from bench.spark_sides import DAY_MS, arguments, cost_of_all, fill, spark_session
from stratalog.testing.broker_process import BrokerProcess

TOPIC = "measured"
ROWS = 100  # a batch
WARM, BATCHES = 10, 30
MOST = 1.5


class Streams:
    def __init__(self, spark: SparkSession, broker: BrokerProcess, place: Path) -> None:
        self._spark = spark
        self._broker = broker
        self._place = place
        self._runs = 0

    def topic(self) -> Cost:
        frame = (
            self._spark.readStream.format("stratalog")
            .option("kafka.bootstrap.servers", self._broker.bootstrap_servers)
            .option("subscribe", TOPIC)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", ROWS)
            .load()
        )
        return self._run(frame)

    def rate(self) -> Cost:
        frame = self._spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).load()
        return self._run(frame)

    def _run(self, frame: DataFrame) -> Cost:
        """A batch's time, and its CPU."""
        self._runs += 1
        checkpoint = str(self._place / f"checkpoint-{self._runs}")
        query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
        try:
            _wait_for(query, WARM)
            cost = cost_of_all(lambda: _wait_for(query, WARM + BATCHES), self._broker.pid)
            times = [
                progress["durationMs"]["triggerExecution"] / 1000
                for progress in _progress(query)
                if progress["batchId"] >= WARM and progress["numInputRows"]
            ]
        finally:
            query.stop()
        return Cost(statistics.median(times), cost.cpu / BATCHES)


def _progress(query: StreamingQuery) -> list[dict[str, Any]]:
    return [dict(progress) for progress in query.recentProgress]


def _wait_for(query: StreamingQuery, batches: int) -> None:
    while (failure := query.exception()) is None:
        last = query.lastProgress
        if last is not None and last["batchId"] >= batches:
            return
        time.sleep(0.01)
    raise failure


def main() -> int:
    given = arguments(__doc__, records=200_000).parse_args()
    console = Console()
    with directory(given.directory) as place, BrokerProcess(place) as broker, spark_session() as spark:
        spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", str(10 * BATCHES))
        fill(broker, TOPIC, given.records, int(time.time() * 1000) - DAY_MS)
        streams = Streams(spark, broker, place)
        row = micro_batch_row(compare(streams.topic, streams.rate, given.rounds))
    return 0 if report(f"Spark, micro-batches of {ROWS} rows", [row], console) else 1


def micro_batch_row(found: Comparison) -> Row:
    overhead = 1 / found.ratio
    return Row(
        "a micro-batch, against the rate source's",
        f"{overhead:.2f}x ({found.ours.wall * 1000:.0f} ms, {found.peer.wall * 1000:.0f} ms)",
        f"{MOST}x at most",
        overhead <= MOST,
        f"{found.ours.cpu * 1000:.0f} ms, {found.peer.cpu * 1000:.0f} ms",
    )


if __name__ == "__main__":
    sys.exit(main())

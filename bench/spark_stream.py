"""Measure a micro-batch: small batches of a topic compared with those of Spark's own rate source, both into a sink that
does nothing. The target is at most 1.5 times.

A round runs each stream for several batches and takes the median of their times from Spark's progress
(triggerExecution: planning, offsets, the checkpoint's log, the tasks).
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from bench.measure import Comparison, Cost
from bench.report import Row
from bench.spark_sides import Workbench, compared, in_turn, say

ROWS = 100  # per batch
WARM, BATCHES = 10, 30
MOST = 1.5


class Streams:
    """Each method runs a stream for a while and returns the cost of one batch."""

    def __init__(self, bench: Workbench, topic: str) -> None:
        self._bench = bench
        self._topic = topic
        self._runs = 0

    def topic(self) -> Cost:
        frame = (
            self._bench.spark.readStream.format("stratalog")
            .option("kafka.bootstrap.servers", self._bench.broker.bootstrap_servers)
            .option("subscribe", self._topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", ROWS)
            .load()
        )
        return self._run(frame)

    def rate(self) -> Cost:
        return self._run(self._bench.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).load())

    def _run(self, frame: DataFrame) -> Cost:
        self._runs += 1
        checkpoint = str(self._bench.temporary / f"checkpoint-{self._runs}")
        query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
        try:
            _wait_for(query, WARM)
            cost = self._bench.cost(lambda: _wait_for(query, WARM + BATCHES))
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


def rows(bench: Workbench) -> list[Row]:
    bench.spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", str(10 * BATCHES))
    streams = Streams(bench, bench.topic())
    say(f"streams: {WARM + BATCHES} micro-batches of {ROWS} rows each time")
    costs = in_turn({"topic": streams.topic, "rate source": streams.rate}, bench.rounds)
    return [micro_batch_row(compared(costs["topic"], costs["rate source"]))]


def micro_batch_row(comparison: Comparison) -> Row:
    overhead = 1 / comparison.ratio
    return Row(
        f"a micro-batch of {ROWS} rows, against the rate source's",
        f"{overhead:.2f}x ({comparison.ours.wall * 1000:.0f} ms, {comparison.peer.wall * 1000:.0f} ms)",
        f"{MOST}x at most",
        overhead <= MOST,
        f"{comparison.ours.cpu * 1000:.0f} ms, {comparison.peer.cpu * 1000:.0f} ms: {comparison.cpu_ratio:.1f}x",
    )

"""Runs a stream once over all existing input, or continuously. It reports progress and keeps its state in a folder.

The state is Spark's checkpoint. A job that was stopped continues from it, and writes nothing twice.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from stratalog.pipelines.cluster import FORMAT, ClusterAddress
from stratalog.pipelines.job_watch import counts_of
from stratalog.pipelines.progress import Progress
from stratalog.pipelines.spark_errors import failures_explained

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_POLL_SECONDS = 1
_MOST_STARTS = 3
# Spark's message if a worker takes more than ten seconds to start. The machine is busy; nothing has been written yet.
_SLOW_START = "Python worker failed to connect back"
_TIME = "timestamp"
_ROWS_PER_BATCH = 10_000


def run_stream(
    frame: DataFrame,
    cluster: ClusterAddress,
    topic: str,
    state: str,
    progress: Progress,
    *,
    every: float | None = None,
    stop: threading.Event | None = None,
) -> int:
    """Write a streaming frame to a topic, once, or every `every` seconds until `stop`. Return the number of records.

    If a Python worker starts too slowly, the stream is started again, up to three times. Raises SparkFailedError for
    known failures of Spark, and Spark's errors for others.
    """
    options = {**cluster.options(), "topic": topic, "checkpointLocation": state}
    writer = frame.writeStream.format(FORMAT).options(**options)
    writer = writer.trigger(availableNow=True) if every is None else writer.trigger(processingTime=f"{every} seconds")
    rows = _Rows(frame.sparkSession, progress)
    with failures_explained():
        for start in range(_MOST_STARTS):
            try:
                _wait(writer.start(), rows, stop)
                break
            except Exception as error:
                if _SLOW_START not in str(error) or start == _MOST_STARTS - 1:
                    raise
    return rows.total


def _wait(query: StreamingQuery, rows: _Rows, stop: threading.Event | None) -> None:
    try:
        while not query.awaitTermination(_POLL_SECONDS) and not (stop is not None and stop.is_set()):
            rows.add(query)
            rows.add_running(query)
    finally:
        # Also on an interrupt: the running micro-batch is not committed, so the next run repeats it.
        query.stop()
        rows.add(query)


class _Rows:
    """The sum of the rows that a query reports for its micro-batches. Spark keeps the last hundred reports. It reports
    a micro-batch several times, and once more with 0 rows when it becomes idle."""

    def __init__(self, spark: SparkSession, progress: Progress) -> None:
        self.total = 0
        self._spark = spark
        self._progress = progress
        self._by_batch: dict[int, int] = {}

    def add(self, query: StreamingQuery) -> None:
        for report in query.recentProgress:
            batch, rows = report["batchId"], int(report["numInputRows"])
            self._by_batch[batch] = max(rows, self._by_batch.get(batch, 0))
        self.total = sum(self._by_batch.values())
        self._progress.reached(self.total)

    def add_running(self, query: StreamingQuery) -> None:
        """Report also the rows that the running micro-batch has read so far."""
        running = counts_of(self._spark, str(query.runId), only_running=True)
        if running.read:
            self._progress.within(self.total + running.read)


def in_order_of_time(frame: DataFrame) -> DataFrame:
    """Sort the rows of each key by timestamp within a micro-batch; rows with equal timestamps keep their order.

    Spark does not sort streams, so each task sorts its share of a micro-batch in memory. All rows of a key go to one
    task.
    """
    tasks = frame.sparkSession.sparkContext.defaultParallelism
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of a pandas newer than PySpark; this uses none
        return frame.repartition(tasks, "key").mapInArrow(_sorted_by_time, frame.schema)


def _sorted_by_time(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rows = list(batches)
    if rows:
        yield from pa.Table.from_batches(rows).sort_by(_TIME).combine_chunks().to_batches(_ROWS_PER_BATCH)


def option_texts(options: Mapping[str, object]) -> dict[str, str]:
    """Return option values as the strings that Spark expects."""
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}

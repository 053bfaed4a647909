"""A stream that reads all there is, or goes on for ever, with its progress told and its state in a folder.

The state is Spark's checkpoint: a job that was stopped goes on from it, and what it wrote before counts once.
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

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_POLL_SECONDS = 1
_MOST_STARTS = 3
# Of Spark's, where a worker takes more than ten seconds to start: the machine is busy, and nothing has happened yet.
_SLOW_START = "Python worker failed to connect back"
_TIME = "timestamp"
_ROWS_A_BATCH = 10_000


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
    """Write a streaming frame to a topic, once or `every` so many seconds until `stop`; the records written."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    options = {**cluster.options(), "topic": topic, "checkpointLocation": state}
    writer = frame.writeStream.format(FORMAT).options(**options)
    writer = writer.trigger(availableNow=True) if every is None else writer.trigger(processingTime=f"{every} seconds")
    rows = _Rows(frame.sparkSession, progress)
    for start in range(_MOST_STARTS):
        try:
            _wait(writer.start(), rows, stop)
            break
        except (PySparkException, Py4JJavaError) as error:
            if _SLOW_START not in str(error) or start == _MOST_STARTS - 1:
                raise
    return rows.total


def _wait(query: StreamingQuery, rows: _Rows, stop: threading.Event | None) -> None:
    try:
        while not query.awaitTermination(_POLL_SECONDS) and not (stop is not None and stop.is_set()):
            rows.add(query)
            rows.add_running(query)
    finally:
        # Also on an interrupt: the step under way is not committed, and is done again by the next run.
        query.stop()
        rows.add(query)


class _Rows:
    """Adds up the rows that a query reports for its steps. Spark keeps the last hundred reports. It reports a step
    several times, and once more with 0 rows when it has become idle."""

    def __init__(self, spark: SparkSession, progress: Progress) -> None:
        self.total = 0
        self._spark = spark
        self._progress = progress
        self._by_step: dict[int, int] = {}

    def add(self, query: StreamingQuery) -> None:
        for report in query.recentProgress:
            step, rows = report["batchId"], int(report["numInputRows"])
            self._by_step[step] = max(rows, self._by_step.get(step, 0))
        self.total = sum(self._by_step.values())
        self._progress.reached(self.total)

    def add_running(self, query: StreamingQuery) -> None:
        """And what the step under way has read so far."""
        running = counts_of(self._spark, str(query.runId), only_running=True)
        if running.read:
            self._progress.within(self.total + running.read)


def in_order_of_time(frame: DataFrame) -> DataFrame:
    """All rows of a key of one step in one task, in the order of their timestamps; rows of one time as they come.

    Spark sorts no streams, so tasks do it, each its share of a step in memory.
    """
    tasks = frame.sparkSession.sparkContext.defaultParallelism
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of a pandas that is newer than PySpark; none is used here
        return frame.repartition(tasks, "key").mapInArrow(_sorted_by_time, frame.schema)


def _sorted_by_time(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    found = list(batches)
    if found:
        yield from pa.Table.from_batches(found).sort_by(_TIME).combine_chunks().to_batches(_ROWS_A_BATCH)


def options_text(options: Mapping[str, object]) -> dict[str, str]:
    """As Spark takes them."""
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}

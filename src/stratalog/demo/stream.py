"""The Spark streams: delays per carrier and scheduled hour into a compacted topic, and the topic into a table.

An hour is written to the topic once the watermark has passed it, so that no more of its flights can come (append mode;
Spark has no update mode for sources in Python). Each hour is written exactly once, even if processes are killed. The
second stream reads the committed records of the topic, and writes them as Parquet.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as f
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType

from stratalog.demo import flights as flight_data
from stratalog.demo.errors import DemoError
from stratalog.demo.expectation import LATE_MINUTES
from stratalog.demo.replay import DELAYS, FLIGHTS
from stratalog.pipelines.spark_errors import first_line
from stratalog.spark.decode import from_stratalog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_BATCHES = 5  # several, so that the watermark moves
_POLL_SECONDS = 0.2
_ATTEMPTS = 4

EVENT = StructType(
    [
        StructField("carrier", StringType()),
        StructField("flight", IntegerType()),
        StructField("scheduled", TimestampType()),
        StructField("delay", IntegerType()),
    ]
)
DELAY = StructType(
    [
        StructField("carrier", StringType()),
        StructField("hour", TimestampType()),
        *(StructField(name, LongType()) for name in ("flights", "cancelled", "late", "minutes", "worst")),
    ]
)


def delays(spark: SparkSession, bootstrap_servers: str, events: int) -> DataFrame:
    """Return the stream of delays of each carrier and hour, computed from the stream of flights."""
    records = (
        spark.readStream.format("stratalog")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("subscribe", FLIGHTS)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", max(events // _BATCHES, 1000))
        .load()
    )
    flights = from_stratalog(records, "json", EVENT, mode="FAILFAST").select("value.*")
    return (
        flights.withWatermark("scheduled", flight_data.LATEST)
        .groupBy("carrier", f.window("scheduled", "1 hour"))
        .agg(
            f.count("flight").alias("flights"),
            f.count_if(f.col("delay").isNull()).alias("cancelled"),
            f.count_if(f.col("delay") >= LATE_MINUTES).alias("late"),
            f.coalesce(f.sum("delay"), f.lit(0)).alias("minutes"),
            f.max("delay").cast("long").alias("worst"),
        )
        # The event at the end has no flight: it only moves the watermark.
        .where("flights > 0")
        .withColumn("hour", f.col("window.start"))
        .select(*DELAY.names)
    )


def to_topic(stream: DataFrame, bootstrap_servers: str, directory: Path) -> StreamingQuery:
    key = f.concat_ws(" ", "carrier", f.date_format("hour", "yyyy-MM-dd'T'HH'Z'"))
    return (
        stream.select(key.alias("key"), f.to_json(f.struct(*DELAY.names)).alias("value"))
        .writeStream.format("stratalog")
        .outputMode("append")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("topic", DELAYS)
        .option("delivery", "exactly-once")
        .option("checkpointLocation", str(directory / "checkpoints" / "topic"))
        .trigger(availableNow=True)
        .start()
    )


def to_table(spark: SparkSession, bootstrap_servers: str, table: Path, directory: Path) -> StreamingQuery:
    records = (
        spark.readStream.format("stratalog")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("subscribe", DELAYS)
        .option("startingOffsets", "earliest")
        .option("isolation.level", "read_committed")
        .load()
    )
    return (
        from_stratalog(records, "json", DELAY, mode="FAILFAST")
        .select("value.*")
        .writeStream.format("parquet")
        .option("path", str(table))
        .option("checkpointLocation", str(directory / "checkpoints" / "table"))
        .trigger(availableNow=True)
        .start()
    )


def run(start: Callable[[], StreamingQuery], show: Callable[[int], None], warn: Callable[[str], None]) -> int:
    """Run a query until it has read everything, and return the number of micro-batches. `show` is called with the
    number of rows that are read.

    A query that fails is started again from its checkpoint, a few times, and writes nothing twice; `warn` is called
    with the reason. On a very busy machine, Spark gives up Python workers that take more than ten seconds to start.
    """
    rows = batches = 0
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            query = start()
        except (PySparkException, Py4JJavaError) as error:
            reason = first_line(error)
        else:
            while query.isActive:
                time.sleep(_POLL_SECONDS)
                show(rows + _rows_read(query))
            failure = query.exception()
            rows, batches = rows + _rows_read(query), batches + len(query.recentProgress)
            if failure is None:
                break
            reason = first_line(failure)
        if attempt == _ATTEMPTS:
            raise DemoError(f"a stream failed {_ATTEMPTS} times; the last error is: {reason}")
        warn(f"a stream failed ({reason}); it continues from its checkpoint")
    return batches


def _rows_read(query: StreamingQuery) -> int:
    return sum(progress.numInputRows for progress in query.recentProgress)

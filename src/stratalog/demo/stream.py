"""The Spark streams: delays per carrier and scheduled hour, with a watermark, to a compacted topic; that to a table.

An hour goes into the topic when it is over: when the watermark has passed it, so that no flight of it can come any more
(append mode; Spark lets no source in Python have update mode). Each is there exactly once, whatever dies meanwhile. The
second stream reads the topic as it grows, only what is committed, and keeps it as Parquet.
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

_BATCHES = 5  # so that there is a stream to see, and a watermark that moves
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
    """The stream of flights, as the stream of what is known of each carrier and hour."""
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
        # The event at the end has no flight: it moved the watermark, and is not of interest here.
        .where("flights > 0")
        .withColumn("hour", f.col("window.start"))
        .select(*DELAY.names)
    )


def to_topic(found: DataFrame, bootstrap_servers: str, directory: Path) -> StreamingQuery:
    key = f.concat_ws(" ", "carrier", f.date_format("hour", "yyyy-MM-dd'T'HH'Z'"))
    return (
        found.select(key.alias("key"), f.to_json(f.struct(*DELAY.names)).alias("value"))
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
    """Run a query until it is through; how many micro-batches it took. `show` is told how many rows were read so far.

    One that fails is started again, a few times, from its checkpoint, and nothing is written twice by it; `warn` is
    told why. On a machine that is very busy Spark gives up Python workers that take more than ten seconds to start.
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
            raise DemoError(f"a stream failed {_ATTEMPTS} times, at last with: {reason}")
        warn(f"a stream failed ({reason}); it goes on from its checkpoint")
    return batches


def _rows_read(query: StreamingQuery) -> int:
    return sum(progress.numInputRows for progress in query.recentProgress)

"""SQL over the compacted topic: which carriers leave late, and at which hour of the day."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from stratalog.demo.expectation import in_order
from stratalog.demo.flights import package_file
from stratalog.demo.replay import DELAYS
from stratalog.demo.stream import DELAY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

from pyspark.sql import functions as f

from stratalog.spark.decode import from_stratalog

BY_CARRIER = """
SELECT   carrier, name, sum(flights) AS flights, sum(cancelled) AS cancelled,
         sum(minutes) / nullif(sum(flights - cancelled), 0) AS mean,
         sum(late) / nullif(sum(flights - cancelled), 0) AS late_share
FROM     delays JOIN airlines USING (carrier)
GROUP BY carrier, name
ORDER BY mean DESC NULLS LAST, carrier
"""
BY_HOUR = """
SELECT   carrier, hour(from_utc_timestamp(hour, 'America/New_York')) AS local_hour,
         sum(flights) AS flights, sum(minutes) / nullif(sum(flights - cancelled), 0) AS mean
FROM     delays
GROUP BY ALL
ORDER BY carrier, local_hour
"""


def make_views(spark: SparkSession, bootstrap_servers: str) -> None:
    """Create the views `delays`, the last value of each key of the topic, and `airlines`, the carriers' names."""
    records = (
        spark.read.format("stratalog")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", DELAYS)
        .load()
    )
    # Before compaction, older values of a key are still there. A key is in one partition.
    latest = records.groupBy("key").agg(f.max_by("value", "offset").alias("value"))
    from_stratalog(latest, "json", DELAY, mode="FAILFAST").select("value.*").cache().createOrReplaceTempView("delays")
    airlines = pd.read_csv(package_file("airlines.csv"))
    spark.createDataFrame(airlines).createOrReplaceTempView("airlines")


def latest_delays(spark: SparkSession) -> pd.DataFrame:
    return in_order(spark.table("delays").toPandas())


def run_query(spark: SparkSession, sql: str) -> pd.DataFrame:
    result: pd.DataFrame = spark.sql(sql).toPandas()
    return result

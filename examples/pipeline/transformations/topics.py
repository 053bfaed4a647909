"""The topics `orders` and `payments` as tables that grow: each run of the pipeline adds the new records."""

from __future__ import annotations

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import IntegerType, LongType, StringType, StructType

from stratalog.spark import from_stratalog

SERVERS = os.environ.get("STRATALOG_BOOTSTRAP_SERVER", "localhost:9092")


ORDER = StructType().add("id", LongType()).add("customer", StringType()).add("cups", IntegerType())
PAYMENT = StructType().add("order_id", LongType()).add("cents", IntegerType())


def topic(name: str, schema: StructType) -> DataFrame:
    records = (
        SparkSession.active()
        .readStream.format("stratalog")
        .option("kafka.bootstrap.servers", SERVERS)
        .option("subscribe", name)
        .option("startingOffsets", "earliest")
        .load()
    )
    return from_stratalog(records, "json", schema).select("value.*", "timestamp")


@dp.table
def orders() -> DataFrame:
    return topic("orders", ORDER)


@dp.table
def payments() -> DataFrame:
    return topic("payments", PAYMENT)

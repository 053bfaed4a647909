"""The topics `orders` and `payments` as tables that grow: each run of the pipeline adds what has come since."""

from __future__ import annotations

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from stratalog.spark import from_stratalog

SERVERS = os.environ.get("STRATALOG_BOOTSTRAP_SERVER", "localhost:9092")


def topic(name: str, schema: str) -> DataFrame:
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
    return topic("orders", "id bigint, customer string, cups int")


@dp.table
def payments() -> DataFrame:
    return topic("payments", "order_id bigint, cents int")

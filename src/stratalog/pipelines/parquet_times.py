"""Times in the Parquet files that Spark writes: microseconds in UTC. Spark's default is INT96, which names no time
zone: other readers give such times without one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTING = "spark.sql.parquet.outputTimestampType"


@contextmanager
def utc_times(spark: SparkSession) -> Iterator[None]:
    """Around a write. It is a setting of the session; there is no option of a write for it."""
    before = spark.conf.get(_SETTING)
    spark.conf.set(_SETTING, "TIMESTAMP_MICROS")
    try:
        yield
    finally:
        if before is not None:
            spark.conf.set(_SETTING, before)

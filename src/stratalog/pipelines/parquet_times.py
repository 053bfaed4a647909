"""Makes Spark write timestamps to Parquet as microseconds in UTC. Its default, INT96, has no time zone, so other
readers return such timestamps without one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTING = "spark.sql.parquet.outputTimestampType"


@contextmanager
def utc_times(spark: SparkSession) -> Iterator[None]:
    """Write with UTC timestamps inside the block. This is a setting of the session; a write has no option for it."""
    before = spark.conf.get(_SETTING)
    spark.conf.set(_SETTING, "TIMESTAMP_MICROS")
    try:
        yield
    finally:
        if before is not None:
            spark.conf.set(_SETTING, before)

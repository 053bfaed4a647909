"""Is Delta Lake in a session, and is it one that was made for its Spark?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from stratalog.errors import ConfigError
from stratalog.pipelines.spark_errors import first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def check(spark: SparkSession) -> None:
    """Raises ConfigError, with what to add."""
    jvm: Any = spark._jvm
    try:
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        jvm.java.lang.Class.forName("io.delta.sql.DeltaSparkSessionExtension", True, loader)
    except Exception as error:  # py4j's, whatever the JVM has thrown
        spark_line = ".".join(spark.version.split(".")[:2])
        raise ConfigError(
            "Delta is not in this Spark session; start it (--conf) with "
            f"spark.jars.packages=io.delta:delta-spark_{spark_line}_2.13:VERSION and "
            "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension, where Delta has a version for this Spark, "
            "or export to parquet"
        ) from error


@contextmanager
def of_this_spark(spark: SparkSession) -> Iterator[None]:
    """Delta is made for one line of Spark's. Another's is found out when a class or a method of Spark's is missing."""
    from py4j.protocol import Py4JJavaError

    try:
        yield
    except Py4JJavaError as error:
        jvm: Any = spark._jvm
        kind = error.java_exception.getClass().getName()
        if not jvm.java.lang.Class.forName("java.lang.LinkageError").isInstance(error.java_exception):
            raise
        raise ConfigError(
            f"the Delta in this session is not made for Spark {spark.version} ({kind}: {first_line(error)}); give a "
            "version of it that is (spark.jars.packages), or export to parquet"
        ) from error

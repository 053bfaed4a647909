"""Brings Spark's own Kafka connector into .cache/, to compare ours with: `python -m tests.compat.fetch_spark_kafka`.

Only the jars that PySpark lacks, each by name: what the connector asks for beside them (Scala, Hadoop, logging) comes
with PySpark, and its own build file sends Maven to repositories that not every network reaches. Connectors are
published later than PySpark, so this is the newest that was there; it runs in the newer Spark.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.compat.fetch_kafka import CannotFetchError, fetch

CONNECTOR_VERSION = "4.2.0"
ARTIFACTS = (
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{CONNECTOR_VERSION}",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
)


def fetch_spark_kafka() -> Path:
    return fetch(f"spark-kafka-{CONNECTOR_VERSION}", ARTIFACTS, alone=True)


def connector_jars() -> list[Path]:
    """Return the value of `spark.jars`: the jars, separated by commas."""
    return sorted(fetch_spark_kafka().glob("*.jar"))


def main() -> int:
    try:
        jars = connector_jars()
    except CannotFetchError as error:
        print(f"fetch_spark_kafka: {error}", file=sys.stderr)
        return 1
    where = os.path.relpath(jars[0].parent)
    print(f"Spark's Kafka connector {CONNECTOR_VERSION}: {len(jars)} jars in {where}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

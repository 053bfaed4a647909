"""A streaming query in a process of its own, until its input is closed: numbered rows into a topic, ten a batch.

Run by stream_rounds.py: `python -m tests.spark.stream_driver SERVERS TOPIC CHECKPOINT SINK_ID`.
"""

from __future__ import annotations

import os
import sys
import threading

ROWS = 10  # a batch, and the same ones when it comes again
MASTER = "STRATALOG_TEST_MASTER"
_DEFAULT_MASTER = "local[2,8]"  # a task may fail seven times, as its worker is killed


def main(servers: str, topic: str, checkpoint: str, sink_id: str) -> None:
    from pyspark.sql import SparkSession

    from tests.spark.dying_sink import DyingDataSource

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master(os.environ.get(MASTER, _DEFAULT_MASTER))
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "512m")
        .config("spark.executor.memory", "512m")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.warehouse.dir", f"{checkpoint}-warehouse")
        .config("spark.local.dir", f"{checkpoint}-local")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(DyingDataSource)
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).option("numPartitions", 2).load()
    query = (
        rows.selectExpr("cast(value as string) as value")
        .writeStream.format("dying")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", topic)
        .option("sinkId", sink_id)
        .option("delivery", "exactly-once")
        .option("checkpointLocation", checkpoint)
        .start()
    )

    def stop_when_told() -> None:
        sys.stdin.read()
        query.stop()

    threading.Thread(target=stop_when_told, daemon=True).start()
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])

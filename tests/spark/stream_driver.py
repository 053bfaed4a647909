"""A streaming query from topic to topic, ten rows per batch, in a process of its own, until its stdin is closed.

Run by stream_rounds.py: main(SERVERS, SOURCE, TOPIC, CHECKPOINT, SINK_ID).
"""

from __future__ import annotations

from tests.spark.driver_session import dying_session, when_stdin_closes

ROWS = 10  # per batch; a repeated batch has the same rows, by the offsets in the checkpoint
TASKS = 2


def main(servers: str, source: str, topic: str, checkpoint: str, sink_id: str) -> None:
    spark = dying_session(checkpoint)
    rows = (
        spark.readStream.format("stratalog")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", ROWS)
        .option("minPartitions", TASKS)
        .load()
    )
    query = (
        rows.select("value")
        .writeStream.format("dying")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", topic)
        .option("sinkId", sink_id)
        .option("delivery", "exactly-once")
        .option("checkpointLocation", checkpoint)
        .start()
    )
    when_stdin_closes(query.stop)
    query.awaitTermination()

"""`df.writeStream.format("stratalog")` in one session: batches, restarts from the checkpoint, refused options."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stratalog.client.admin import Admin
from stratalog.testing import BrokerProcess
from tests.spark.committed import nothing_is_open, values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PARTITIONS = 2
ROWS = 10  # per batch
pytestmark = pytest.mark.stratalog_topic(PARTITIONS)


def start(spark: SparkSession, broker: BrokerProcess, topic: str, checkpoint: Path, **options: str) -> StreamingQuery:
    """Stream numbered rows, ten per batch, through a stateful operator. A repeated batch has the same rows."""
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).option("numPartitions", 2).load()
    writer = (
        rows.selectExpr("cast(value as string) as value")
        .dropDuplicates(["value"])
        .writeStream.format("stratalog")
        .option("kafka.bootstrap.servers", broker.bootstrap_servers)
        .option("topic", topic)
        .option("checkpointLocation", str(checkpoint))
    )
    for name, value in options.items():
        writer = writer.option(name, value)
    return writer.start()


def wait_for(query: StreamingQuery, batch: int) -> None:
    while query.isActive and (query.lastProgress is None or query.lastProgress["batchId"] < batch):
        time.sleep(0.05)
    error = query.exception()
    if error is not None:
        raise error


def numbers(count: int) -> list[str]:
    return sorted(map(str, range(count)))


def test_batches_are_written_once_over_restarts_and_repetitions(
    spark: SparkSession, stratalog_broker: BrokerProcess, stratalog_topic: str, tmp_path: Path
) -> None:
    servers = stratalog_broker.bootstrap_servers
    checkpoint = tmp_path / "checkpoint"
    query = start(spark, stratalog_broker, stratalog_topic, checkpoint)
    wait_for(query, 1)
    query.stop()
    group = f"stratalog-spark-{query.id}"
    with Admin(servers) as admin:
        (noted,) = admin.list_group_offsets(group).values()
    assert values(servers, stratalog_topic, PARTITIONS) == numbers(noted.offset * ROWS)

    # Simulates a driver that died after the decision: Spark does not know that the batch is written.
    for commit in (checkpoint / "commits").glob(f"*{noted.offset - 1}*"):
        commit.unlink()
    query = start(spark, stratalog_broker, stratalog_topic, checkpoint)
    wait_for(query, noted.offset)
    query.stop()
    with Admin(servers) as admin:
        (again,) = admin.list_group_offsets(group).values()
    assert again.offset > noted.offset
    assert values(servers, stratalog_topic, PARTITIONS) == numbers(again.offset * ROWS)
    assert nothing_is_open(servers, stratalog_topic, PARTITIONS)


def test_sink_id_of_another_query_is_refused(
    spark: SparkSession, stratalog_broker: BrokerProcess, stratalog_topic: str, tmp_path: Path
) -> None:
    """Its batches start at 0 again, and would count as written already."""
    query = start(spark, stratalog_broker, stratalog_topic, tmp_path / "one", sinkId="the-sink")
    wait_for(query, 0)
    query.stop()
    other = start(spark, stratalog_broker, stratalog_topic, tmp_path / "other", sinkId="the-sink")
    with pytest.raises(Exception, match="sinkId 'the-sink' belongs to query"):
        wait_for(other, 0)


def test_at_least_once_stream_writes_its_rows(
    spark: SparkSession, stratalog_broker: BrokerProcess, stratalog_topic: str, tmp_path: Path
) -> None:
    query = start(spark, stratalog_broker, stratalog_topic, tmp_path / "one", delivery="at-least-once")
    wait_for(query, 0)
    query.stop()
    actual = values(stratalog_broker.bootstrap_servers, stratalog_topic, PARTITIONS)
    assert set(numbers(ROWS)) <= set(actual)
    with Admin(stratalog_broker.bootstrap_servers) as admin:
        assert not [each for each in admin.list_transactions() if query.id in each.transactional_id]

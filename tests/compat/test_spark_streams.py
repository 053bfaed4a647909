"""Streams of our Spark source and of Apache's connector over one topic, with restarts: the same rows, offsets of one
form, so that ours goes on from their checkpoint. That connector streams from and to our broker unmodified."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from stratalog.client import Producer
from stratalog.testing import BrokerProcess
from tests.compat.spark_rows import Rows, read, rows_of, spark_with_both
from tests.spark.queries import started

pytestmark = pytest.mark.compat

__all__ = ["spark_with_both"]  # a fixture

TOPIC = "streamed"
CONNECTORS = ("kafka", "stratalog")


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess() as one:
        one.create_topic(TOPIC, 2)
        yield one


def send(broker: BrokerProcess, first: int, count: int) -> None:
    with Producer(broker.bootstrap_servers) as producer:
        for index in range(first, first + count):
            producer.send(TOPIC, key=b"%d" % index, value=b"v%d" % index, partition=index % 2)


def stream(spark: SparkSession, connector: str, broker: BrokerProcess, directory: Path, **options: str) -> None:
    """All that is available now, into files."""
    given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": TOPIC, "startingOffsets": "earliest"}

    def start() -> StreamingQuery:
        frame = spark.readStream.format(connector).options(**given, **options).load()
        return (
            frame.writeStream.format("parquet")
            .option("path", str(directory / "rows"))
            .option("checkpointLocation", str(directory / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    started(start)


def written(spark: SparkSession, directory: Path) -> Rows:
    return rows_of(spark.read.parquet(str(directory / "rows")))


def last_offsets(directory: Path) -> object:
    log = directory / "checkpoint" / "offsets"
    last = max(int(file.name) for file in log.iterdir() if file.name.isdigit())
    return json.loads((log / str(last)).read_text().splitlines()[-1])


def test_streams_with_restarts_and_with_each_others_checkpoints(
    spark_with_both: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    spark = spark_with_both
    send(broker, 0, 100)
    for connector in CONNECTORS:
        stream(spark, connector, broker, tmp_path / connector, maxOffsetsPerTrigger="64")
    send(broker, 100, 50)
    for connector in CONNECTORS:
        stream(spark, connector, broker, tmp_path / connector)
    theirs = written(spark, tmp_path / "kafka")
    assert len(theirs) == 150
    assert written(spark, tmp_path / "stratalog") == theirs
    assert last_offsets(tmp_path / "kafka") == last_offsets(tmp_path / "stratalog") == {TOPIC: {"0": 75, "1": 75}}

    # Ours goes on where theirs ended.
    send(broker, 150, 10)
    stream(spark, "stratalog", broker, tmp_path / "kafka")
    rows = written(spark, tmp_path / "kafka")
    assert [row for row in rows if row[4] < 75] == theirs
    assert [row[4] for row in rows if row[4] >= 75] == [75, 76, 77, 78, 79] * 2


def test_their_stream_writes_to_our_broker(
    spark_with_both: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    spark = spark_with_both
    broker.create_topic("copy", 1)
    options = {"kafka.bootstrap.servers": broker.bootstrap_servers}
    query = (
        spark.readStream.format("kafka")
        .options(**options, subscribe=TOPIC, startingOffsets="earliest")
        .load()
        .select("key", "value")
        .writeStream.format("kafka")
        .options(**options, topic="copy", checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(240)
    copied = {row[:2] for row in rows_of(read(spark, "stratalog", broker.bootstrap_servers, subscribe="copy"))}
    assert copied == {row[:2] for row in rows_of(read(spark, "kafka", broker.bootstrap_servers, subscribe=TOPIC))}
    assert copied

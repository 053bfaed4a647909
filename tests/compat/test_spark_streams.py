"""Streams of our Spark source and of Apache's connector over one topic, with restarts: the same rows, offsets of one
form, so that ours goes on from their checkpoint. That connector streams from and to our broker unmodified."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from stratalog.client import Admin, Producer
from stratalog.testing import BrokerProcess
from tests.compat.kafka import KafkaServer
from tests.compat.spark_rows import read, rows_of, spark_with_both, stream, streamed
from tests.spark.compacting import COMPACTED, EAGER_BROKER, wait_until_compacted, write_with_gaps

pytestmark = pytest.mark.compat

__all__ = ["spark_with_both"]  # a fixture

TOPIC = "streamed"
CONNECTORS = ("kafka", "stratalog")


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess(settings=EAGER_BROKER) as one:
        one.create_topic(TOPIC, 2)
        yield one


def send(servers: str, first: int, count: int) -> None:
    with Producer(servers) as producer:
        for index in range(first, first + count):
            producer.send(TOPIC, key=b"%d" % index, value=b"v%d" % index, partition=index % 2)


def last_offsets(directory: Path) -> object:
    log = directory / "checkpoint" / "offsets"
    last = max(int(file.name) for file in log.iterdir() if file.name.isdigit())
    return json.loads((log / str(last)).read_text().splitlines()[-1])


def test_streams_with_restarts_and_with_each_others_checkpoints(
    spark_with_both: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    spark = spark_with_both
    send(broker.bootstrap_servers, 0, 100)
    for connector in CONNECTORS:
        stream(spark, connector, broker.bootstrap_servers, TOPIC, tmp_path / connector, maxOffsetsPerTrigger="64")
    send(broker.bootstrap_servers, 100, 50)
    for connector in CONNECTORS:
        stream(spark, connector, broker.bootstrap_servers, TOPIC, tmp_path / connector)
    theirs = streamed(spark, tmp_path / "kafka")
    assert len(theirs) == 150
    assert streamed(spark, tmp_path / "stratalog") == theirs
    assert last_offsets(tmp_path / "kafka") == last_offsets(tmp_path / "stratalog") == {TOPIC: {"0": 75, "1": 75}}

    # Our stream continues from their checkpoint.
    send(broker.bootstrap_servers, 150, 10)
    stream(spark, "stratalog", broker.bootstrap_servers, TOPIC, tmp_path / "kafka")
    rows = streamed(spark, tmp_path / "kafka")
    assert [row for row in rows if row[4] < 75] == theirs
    assert [row[4] for row in rows if row[4] >= 75] == [75, 76, 77, 78, 79] * 2


def test_streams_over_the_gaps_of_transactions_and_compaction(
    spark_with_both: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    """Each stream runs twice, and micro-batches end in gaps."""
    servers = broker.bootstrap_servers
    broker.create_topic("gaps", 1, COMPACTED)
    options = {"maxOffsetsPerTrigger": "90", "kafka.isolation.level": "read_committed"}
    for turn in range(2):
        write_with_gaps(servers, "gaps", turn)
        wait_until_compacted(servers, "gaps")
        for connector in CONNECTORS:
            stream(spark_with_both, connector, servers, "gaps", tmp_path / connector, **options)
    theirs = streamed(spark_with_both, tmp_path / "kafka")
    assert 0 < len(theirs) < 100
    assert streamed(spark_with_both, tmp_path / "stratalog") == theirs
    assert last_offsets(tmp_path / "kafka") == last_offsets(tmp_path / "stratalog")


def test_our_stream_reads_apache_kafka(spark_with_both: SparkSession, tmp_path: Path) -> None:
    with KafkaServer(tmp_path / "server") as kafka:
        with Admin(kafka.bootstrap) as admin:
            admin.create_topic(TOPIC, 2)
        for first in (0, 50):
            send(kafka.bootstrap, first, 50)
            for connector in CONNECTORS:
                stream(spark_with_both, connector, kafka.bootstrap, TOPIC, tmp_path / connector)
        theirs = streamed(spark_with_both, tmp_path / "kafka")
        assert len(theirs) == 100
        assert streamed(spark_with_both, tmp_path / "stratalog") == theirs


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

"""Batches of our Spark source, row for row those of Apache's connector, against our broker; and over the wire against
Apache Kafka. That connector reads and writes our broker unmodified."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from stratalog.client import Admin, Producer, TopicPartition
from stratalog.testing import BrokerProcess
from tests.compat.kafka import KafkaServer
from tests.compat.spark_rows import read, rows_of, same_rows, spark_with_both

pytestmark = pytest.mark.compat

__all__ = ["spark_with_both"]  # a fixture

FIRST_TIME = 1_700_000_000_000


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    settings = {"log.cleaner.backoff.ms": "100", "log.cleaner.min.cleanable.ratio": "0.01"}
    with BrokerProcess(settings=settings) as started:
        started.create_topic("plain", 3)
        started.create_topic("empty", 2)
        write_plain(started.bootstrap_servers, "plain")
        started.create_topic("transactions")
        write_transactions(started.bootstrap_servers, "transactions")
        yield started


def write_plain(servers: str, topic: str) -> None:
    """Produce keys and values that are null, empty and large, headers with repeated names, and falling timestamps."""
    with Producer(servers, compression_type="zstd", linger_ms=5) as producer:
        for index in range(300):
            producer.send(
                topic,
                key=None if index % 7 == 0 else b"key-%d" % index,
                value=None if index % 11 == 0 else b"" if index % 13 == 0 else b"value-%d" % index * (index % 50),
                headers=[("a", b"1"), ("a", b"2"), ("none", None)] if index % 3 == 0 else [],
                timestamp=FIRST_TIME + index * 1000 - (5000 if index % 10 == 0 else 0),
                partition=index % 3,
            )


def write_transactions(servers: str, topic: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "transactional.id": f"t-{topic}"})
    producer.init_transactions(30)
    for round_number in range(4):
        producer.begin_transaction()
        for index in range(20):
            producer.produce(topic, key=b"%d" % round_number, value=b"%d" % index, partition=0)
        producer.flush(30)
        (producer.abort_transaction if round_number % 2 else producer.commit_transaction)(30)


def offsets(topic: str, *each: int) -> str:
    return json.dumps({topic: {str(partition): offset for partition, offset in enumerate(each)}})


def test_all_rows_with_headers(spark_with_both: SparkSession, broker: BrokerProcess) -> None:
    rows = same_rows(spark_with_both, broker.bootstrap_servers, subscribe="plain", includeHeaders="true")
    assert len(rows) == 300
    assert {row[-1] for row in rows} == {None, (("a", b"1"), ("a", b"2"), ("none", None))}


def test_ranges_of_offsets(spark_with_both: SparkSession, broker: BrokerProcess) -> None:
    options = {
        "assign": json.dumps({"plain": [0, 1, 2]}),
        "startingOffsets": offsets("plain", 10, -2, 99),
        "endingOffsets": offsets("plain", 20, 5, -1),
    }
    rows = same_rows(spark_with_both, broker.bootstrap_servers, **options)
    assert [(row[3], row[4]) for row in rows] == [(0, n) for n in range(10, 20)] + [(1, n) for n in range(5)] + [
        (2, 99)
    ]


def test_tasks_smaller_than_partitions(spark_with_both: SparkSession, broker: BrokerProcess) -> None:
    rows = same_rows(spark_with_both, broker.bootstrap_servers, subscribePattern="pl.*", minPartitions="7")
    assert len(rows) == 300


def test_ranges_of_times(spark_with_both: SparkSession, broker: BrokerProcess) -> None:
    one = {"startingTimestamp": str(FIRST_TIME + 100_000), "endingTimestamp": str(FIRST_TIME + 200_000)}
    assert 50 < len(same_rows(spark_with_both, broker.bootstrap_servers, subscribe="plain", **one)) < 200
    each = {
        "startingOffsetsByTimestamp": offsets("plain", FIRST_TIME, FIRST_TIME + 290_000, FIRST_TIME + 1),
        "endingOffsetsByTimestamp": offsets("plain", FIRST_TIME + 9_000, FIRST_TIME + 10**9, FIRST_TIME + 60_000),
    }
    assert same_rows(spark_with_both, broker.bootstrap_servers, subscribe="plain", **each)
    late = {"startingTimestamp": str(FIRST_TIME + 10**9), "startingOffsetsByTimestampStrategy": "latest"}
    assert same_rows(spark_with_both, broker.bootstrap_servers, subscribe="plain", **late) == []


@pytest.mark.parametrize("connector", ["kafka", "stratalog"])
def test_a_time_after_the_end_is_an_error_of_both(
    spark_with_both: SparkSession, broker: BrokerProcess, connector: str
) -> None:
    late = {"startingTimestamp": str(FIRST_TIME + 10**9), "subscribe": "plain", "fetchOffset__numRetries": "1"}
    with pytest.raises((PySparkException, Exception), match=r"(?i)no (offset|record)"):
        rows_of(read(spark_with_both, connector, broker.bootstrap_servers, **late))


def test_empty_topics(spark_with_both: SparkSession, broker: BrokerProcess) -> None:
    assert same_rows(spark_with_both, broker.bootstrap_servers, subscribe="empty") == []


@pytest.mark.parametrize(("isolation", "count"), [("read_uncommitted", 80), ("read_committed", 40)])
def test_transactions(spark_with_both: SparkSession, broker: BrokerProcess, isolation: str, count: int) -> None:
    options = {"subscribe": "transactions", "kafka.isolation.level": isolation}
    assert len(same_rows(spark_with_both, broker.bootstrap_servers, **options)) == count


def test_compacted_topics(spark_with_both: SparkSession, broker: BrokerProcess) -> None:
    config = {"cleanup.policy": "compact", "segment.bytes": 2000, "min.cleanable.dirty.ratio": 0.01}
    broker.create_topic("compacted", 1, config)
    with Producer(broker.bootstrap_servers) as producer:
        for index in range(600):
            producer.send("compacted", key=b"%d" % (index % 10), value=b"%d" % index)
            if index % 20 == 19:
                producer.flush()
    with Admin(broker.bootstrap_servers) as admin:
        # Compacted when there are fewer bytes than were written: the cleaner runs every 100 ms.
        place = TopicPartition("compacted", 0)
        for _ in range(600):
            sizes = [one.replicas[place].size for one in next(iter(admin.describe_log_dirs().values())).values()]
            if sizes[0] < 5000:
                break
            broker.clock.advance(seconds=20)
        assert sizes[0] < 5000
    rows = same_rows(spark_with_both, broker.bootstrap_servers, subscribe="compacted")
    assert len(rows) < 600
    assert [row[4] for row in rows][-1] == 599


def test_their_sink_writes_to_our_broker(spark_with_both: SparkSession, broker: BrokerProcess) -> None:
    broker.create_topic("from-spark", 2)
    frame = spark_with_both.range(1000).selectExpr("cast(id as string) as key", "cast(id * 2 as string) as value")
    writer = frame.write.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap_servers)
    writer.option("topic", "from-spark").save()
    rows = same_rows(spark_with_both, broker.bootstrap_servers, subscribe="from-spark")
    assert {(row[0], row[1]) for row in rows} == {(b"%d" % n, b"%d" % (2 * n)) for n in range(1000)}


def test_our_source_reads_apache_kafka(spark_with_both: SparkSession, tmp_path: Path) -> None:
    with KafkaServer(tmp_path) as kafka:
        with Admin(kafka.bootstrap) as admin:
            admin.create_topic("plain", 3)
            admin.create_topic("transactions", 1)
        write_plain(kafka.bootstrap, "plain")
        write_transactions(kafka.bootstrap, "transactions")
        assert len(same_rows(spark_with_both, kafka.bootstrap, subscribe="plain", includeHeaders="true")) == 300
        committed = {"subscribe": "transactions", "kafka.isolation.level": "read_committed"}
        assert len(same_rows(spark_with_both, kafka.bootstrap, **committed)) == 40

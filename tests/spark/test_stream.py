"""Streams: what each micro-batch reads, over restarts and changes of the topics.

The last tests run a real Spark. The others call the reader in Spark's order, without Java.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import IntegerType, LongType, StructType

from stratalog.client import Admin, Producer, TopicPartition
from stratalog.client.errors import ClientError
from stratalog.spark import broker_client
from stratalog.spark.data_loss import DataLossError
from stratalog.spark.options import stream_options
from stratalog.spark.stream import StratalogStreamReader
from stratalog.testing import BrokerProcess
from tests.spark import committed
from tests.spark.compacting import COMPACTED, EAGER_BROKER, wait_until_compacted, write_with_gaps
from tests.spark.queries import going, started

Json = dict[str, dict[str, int]]
LEVELS = ("read_uncommitted", "read_committed")


@pytest.fixture(autouse=True)
def _connections_end_with_the_test() -> Iterator[None]:
    yield
    broker_client.close_all()


def schema() -> StructType:
    return (
        StructType()
        .add("topic", "string")
        .add("partition", IntegerType())
        .add("offset", LongType())
        .add("value", "binary")
    )


class StreamRun:
    """Calls a reader like Spark's micro-batch execution. `log` is the offset log of the checkpoint."""

    def __init__(self, broker: BrokerProcess, log: list[Json] | None = None, **options: str) -> None:
        defaults = {
            "kafka.bootstrap.servers": broker.bootstrap_servers,
            "kafka.retry.backoff.ms": "10",
            "log.dirs": "none",
        }
        parsed = stream_options(defaults | {name.replace("__", "."): value for name, value in options.items()})
        self.reader = StratalogStreamReader(parsed, schema())
        self.log = [] if log is None else log
        self.rows: list[tuple[str, int, int]] = []

    def run(self) -> list[tuple[str, int, int]]:
        """Run micro-batches until there is nothing new, and return their rows."""
        actual: list[tuple[str, int, int]] = []
        for _ in range(1000):
            rows = self.batch()
            if rows is None:
                return actual
            actual += rows
        raise AssertionError("a stream without an end, of a topic that does not grow")

    def batch(self) -> list[tuple[str, int, int]] | None:
        """Run the next micro-batch. Return its rows, or None if there is nothing new."""
        start = self.log[-1] if self.log else self.reader.initialOffset()
        end = json.loads(json.dumps(self.reader.latestOffset(start, self.reader.getDefaultReadLimit())))
        if self.log and end == start:
            return None
        self.log.append(end)
        return self.replay()

    def replay(self) -> list[tuple[str, int, int]]:
        """Repeat the last micro-batch of the log."""
        start = self.log[-2] if len(self.log) > 1 else self.reader.initialOffset()
        actual = []
        for partition in self.reader.partitions(start, self.log[-1]):
            for batch in self.reader.read(partition):
                rows = batch.to_pylist()
                actual += [(row["topic"], row["partition"], row["offset"]) for row in rows]
        return actual


def send(broker: BrokerProcess, topic: str, count: int, partition: int = 0, size: int = 10) -> None:
    with Producer(broker.bootstrap_servers) as producer:
        for _ in range(count):
            producer.send(topic, value=b"v" * size, partition=partition)


def offsets(rows: list[tuple[str, int, int]] | None, partition: int = 0) -> list[int]:
    assert rows is not None
    return [offset for _, number, offset in rows if number == partition]


def test_stream_from_the_start_reads_each_record_once(stratalog_broker: BrokerProcess, stratalog_topic: str) -> None:
    send(stratalog_broker, stratalog_topic, 10)
    query = StreamRun(stratalog_broker, subscribe=stratalog_topic, startingOffsets="earliest")
    assert offsets(query.run()) == list(range(10))
    send(stratalog_broker, stratalog_topic, 5)
    assert offsets(query.run()) == list(range(10, 15))
    assert query.run() == []
    assert query.log[-1] == {stratalog_topic: {"0": 15}}


def test_restart_continues_from_the_checkpoint(stratalog_broker: BrokerProcess, stratalog_topic: str) -> None:
    send(stratalog_broker, stratalog_topic, 10)
    options = {"subscribe": stratalog_topic, "startingOffsets": "earliest"}
    first = StreamRun(stratalog_broker, None, **options)
    first.run()
    send(stratalog_broker, stratalog_topic, 3)
    again = StreamRun(stratalog_broker, first.log, **options)
    assert offsets(again.replay()) == list(range(10))
    assert offsets(again.run()) == [10, 11, 12]


def test_records_between_two_runs_of_the_first_batch_are_not_lost(
    stratalog_broker: BrokerProcess, stratalog_topic: str
) -> None:
    """Spark requests the initial offset again, when `latest` has changed."""
    send(stratalog_broker, stratalog_topic, 10)
    first = StreamRun(stratalog_broker, subscribe=stratalog_topic)
    assert first.batch() == []
    assert first.log == [{stratalog_topic: {"0": 10}}]
    send(stratalog_broker, stratalog_topic, 5)
    again = StreamRun(stratalog_broker, first.log, subscribe=stratalog_topic)
    assert again.replay() == []
    assert offsets(again.run()) == list(range(10, 15))


def test_limit_of_rows_is_divided_among_partitions(stratalog_fresh_broker: BrokerProcess) -> None:
    broker = stratalog_fresh_broker
    broker.create_topic("t", 2)
    send(broker, "t", 90, 0)
    send(broker, "t", 10, 1)
    query = StreamRun(broker, subscribe="t", startingOffsets="earliest", maxOffsetsPerTrigger="20")
    assert query.reader.getDefaultReadLimit() == ReadMaxRows(20)
    first = query.batch()
    assert (len(offsets(first, 0)), len(offsets(first, 1))) == (18, 2)
    assert query.reader.reportLatestOffset() == {"t": {"0": 90, "1": 10}}
    rest = query.run()
    assert offsets(first, 0) + offsets(rest, 0) == list(range(90))
    assert offsets(first, 1) + offsets(rest, 1) == list(range(10))
    assert len(query.log) == 5


def test_read_all_available_ignores_the_limits(stratalog_broker: BrokerProcess, stratalog_topic: str) -> None:
    send(stratalog_broker, stratalog_topic, 30)
    query = StreamRun(stratalog_broker, subscribe=stratalog_topic, startingOffsets="earliest", maxOffsetsPerTrigger="5")
    start = query.reader.initialOffset()
    assert query.reader.latestOffset(start, ReadAllAvailable()) == {stratalog_topic: {"0": 30}}


def test_a_limit_of_bytes(stratalog_broker: BrokerProcess, stratalog_topic: str) -> None:
    send(stratalog_broker, stratalog_topic, 1000, size=1000)
    query = StreamRun(
        stratalog_broker, subscribe=stratalog_topic, startingOffsets="earliest", maxBytesPerTrigger="100000"
    )
    assert query.reader.getDefaultReadLimit() == ReadMaxBytes(100_000)
    first = offsets(query.batch())
    assert 80 <= len(first) <= 100  # 1000 bytes each, and the overhead of a record
    assert first + offsets(query.run()) == list(range(1000))


def test_min_offsets_delay_a_batch_up_to_the_trigger_delay(
    stratalog_broker: BrokerProcess, stratalog_topic: str
) -> None:
    options = {"subscribe": stratalog_topic, "startingOffsets": "earliest", "minOffsetsPerTrigger": "10"}
    query = StreamRun(stratalog_broker, None, **options, maxTriggerDelay="1h")
    assert query.reader.getDefaultReadLimit() == ReadMinRows(10)
    assert query.run() == []  # the first micro-batch does not wait
    send(stratalog_broker, stratalog_topic, 9)
    assert query.run() == []
    send(stratalog_broker, stratalog_topic, 1)
    assert offsets(query.run()) == list(range(10))
    hasty = StreamRun(stratalog_broker, query.log, **options, maxTriggerDelay="0ms")
    send(stratalog_broker, stratalog_topic, 1)
    assert offsets(hasty.batch()) == [10]


def test_available_now_ends_with_the_records_at_its_start(
    stratalog_broker: BrokerProcess, stratalog_topic: str
) -> None:
    send(stratalog_broker, stratalog_topic, 10)
    query = StreamRun(
        stratalog_broker,
        subscribe=stratalog_topic,
        startingOffsets="earliest",
        maxOffsetsPerTrigger="4",
        minOffsetsPerTrigger="4",
    )
    query.reader.prepareForTriggerAvailableNow()
    first = query.batch()
    send(stratalog_broker, stratalog_topic, 7)
    assert offsets(first) + offsets(query.run()) == list(range(10))


@pytest.mark.parametrize("is_restarted", [True, False])
def test_new_partitions_are_read_from_their_start(stratalog_fresh_broker: BrokerProcess, is_restarted: bool) -> None:
    broker = stratalog_fresh_broker
    broker.create_topic("t", 1)
    send(broker, "t", 3)
    query = StreamRun(broker, subscribe="t", startingOffsets="latest")
    query.run()
    with Admin(broker.bootstrap_servers) as admin:
        admin.create_partitions({"t": 2}).check()
    send(broker, "t", 4, 1)
    if is_restarted:
        query = StreamRun(broker, query.log, subscribe="t", startingOffsets="latest")
    else:
        query.reader._latest._partitions_until = float("-inf")  # as after a second
    assert offsets(query.run(), 1) == [0, 1, 2, 3]
    assert query.log[-1] == {"t": {"0": 3, "1": 4}}


@pytest.mark.parametrize("way", ["wire", "direct"])
def test_gaps_of_compaction_and_transactions_are_not_a_loss(
    stratalog_new_broker: Callable[..., BrokerProcess], way: str
) -> None:
    """Micro-batches start and end in gaps. One is repeated after compaction has removed all of its records."""
    broker = stratalog_new_broker(EAGER_BROKER)
    broker.create_topic("t", config=COMPACTED)
    dirs = str(broker.data_dir) if way == "direct" else "none"
    options = {"subscribe": "t", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "7", "log__dirs": dirs}
    queries = [StreamRun(broker, None, **options, isolation__level=level) for level in LEVELS]
    write_with_gaps(broker.bootstrap_servers, "t", 0)
    wait_until_compacted(broker.bootstrap_servers, "t")
    actual = []
    for query, level in zip(queries, LEVELS, strict=True):
        left = committed.offsets(broker.bootstrap_servers, "t", level)
        actual.append(offsets(query.run()))
        assert actual[-1] == left
        assert len(left) < 50
    assert len(actual[0]) > len(actual[1])

    write_with_gaps(broker.bootstrap_servers, "t", 1)
    before = [len(query.log) for query in queries]
    for query in queries:
        for _ in range(5):
            query.batch()
    wait_until_compacted(broker.bootstrap_servers, "t")
    for query, level, count in zip(queries, LEVELS, before, strict=True):
        query.replay()
        query.run()
        again = StreamRun(broker, query.log[:count], **options, isolation__level=level)
        begin = query.log[count - 1]["t"]["0"]
        left = [offset for offset in committed.offsets(broker.bootstrap_servers, "t", level) if offset >= begin]
        assert offsets(again.run()) == left


def test_unreachable_broker_is_retried_and_then_an_error(stratalog_fresh_broker: BrokerProcess) -> None:
    broker = stratalog_fresh_broker
    broker.create_topic("t")
    send(broker, "t", 5)
    options = {"subscribe": "t", "startingOffsets": "earliest"}
    query = StreamRun(broker, None, **options)
    assert offsets(query.run()) == list(range(5))
    broker.kill()
    starting = threading.Thread(target=broker.start)
    starting.start()
    try:
        assert query.batch() is None  # retried until the broker is back
    finally:
        starting.join()
    send(broker, "t", 3)
    assert offsets(query.run()) == [5, 6, 7]
    broker.kill()
    with pytest.raises(ClientError, match="refused"):
        StreamRun(broker, query.log, **options, kafka__default__api__timeout__ms="300").batch()


def test_topics_that_match_later_are_read(stratalog_fresh_broker: BrokerProcess) -> None:
    broker = stratalog_fresh_broker
    broker.create_topic("orders-a")
    send(broker, "orders-a", 2)
    query = StreamRun(broker, subscribePattern="orders-.*", startingOffsets="earliest")
    assert query.run() == [("orders-a", 0, 0), ("orders-a", 0, 1)]
    broker.create_topic("orders-b")
    broker.create_topic("other")
    send(broker, "orders-b", 1)
    again = StreamRun(broker, query.log, subscribePattern="orders-.*", startingOffsets="earliest")
    assert again.run() == [("orders-b", 0, 0)]


@pytest.mark.parametrize("is_restarted", [True, False])
def test_recreated_topic_is_an_error_or_read_from_its_start(
    stratalog_fresh_broker: BrokerProcess, is_restarted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    broker = stratalog_fresh_broker
    broker.create_topic("t")
    send(broker, "t", 10)
    careful = StreamRun(broker, subscribe="t", startingOffsets="earliest")
    easy = StreamRun(broker, subscribe="t", startingOffsets="earliest", failOnDataLoss="false")
    for query in (careful, easy):
        query.run()
    broker.delete_topic("t")
    broker.create_topic("t")
    send(broker, "t", 6)
    if is_restarted:
        careful = StreamRun(broker, careful.log, subscribe="t", startingOffsets="earliest")
        easy = StreamRun(broker, easy.log, subscribe="t", startingOffsets="earliest", failOnDataLoss="false")
    with pytest.raises(DataLossError, match="created again"):
        for _ in range(1000):
            careful.batch()
    with caplog.at_level(logging.WARNING, "stratalog.spark"):
        actual: list[int] = []
        while len(actual) < 6:
            actual += offsets(easy.batch() or [])
    assert actual == list(range(6))
    assert "created again" in caplog.text


def test_recreated_topic_is_noticed_even_if_it_is_longer(
    stratalog_fresh_broker: BrokerProcess,
) -> None:
    broker = stratalog_fresh_broker
    broker.create_topic("t")
    send(broker, "t", 5)
    query = StreamRun(broker, subscribe="t", startingOffsets="earliest", failOnDataLoss="false")
    query.run()
    broker.delete_topic("t")
    broker.create_topic("t")
    send(broker, "t", 20)
    query.reader._latest._partitions_until = float("-inf")  # as after a second
    assert offsets(query.run()) == list(range(20))


def test_topic_recreated_before_the_first_read(stratalog_fresh_broker: BrokerProcess) -> None:
    broker = stratalog_fresh_broker
    broker.create_topic("t")
    send(broker, "t", 10)
    query = StreamRun(broker, subscribe="t", failOnDataLoss="false")
    assert query.run() == []
    broker.delete_topic("t")
    broker.create_topic("t")
    send(broker, "t", 6)
    query.reader._latest._partitions_until = float("-inf")  # as after a second
    assert offsets(query.run()) == list(range(6))


def test_deleted_topic_is_an_error_or_ignored(stratalog_fresh_broker: BrokerProcess) -> None:
    broker = stratalog_fresh_broker
    broker.create_topic("t")
    broker.create_topic("u")
    send(broker, "t", 5)
    send(broker, "u", 5)
    query = StreamRun(broker, subscribe="t,u", startingOffsets="earliest")
    query.run()
    broker.delete_topic("t")
    send(broker, "u", 1)
    easy = StreamRun(broker, list(query.log), subscribe="t,u", startingOffsets="earliest", failOnDataLoss="false")
    assert easy.run() == [("u", 0, 5)]
    assert easy.log[-1] == {"t": {"0": 5}, "u": {"0": 6}}
    careful = StreamRun(broker, list(query.log), subscribe="t,u", startingOffsets="earliest")
    with pytest.raises(DataLossError, match="t-0 does not exist any more"):
        careful.run()


def test_records_deleted_before_they_are_read(stratalog_broker: BrokerProcess, stratalog_topic: str) -> None:
    send(stratalog_broker, stratalog_topic, 10)
    options = {"subscribe": stratalog_topic, "startingOffsets": "earliest"}
    query = StreamRun(stratalog_broker, None, **options, maxOffsetsPerTrigger="3")
    query.batch()
    with Admin(stratalog_broker.bootstrap_servers) as admin:
        admin.delete_records({TopicPartition(stratalog_topic, 0): 6}).check()
    easy = StreamRun(stratalog_broker, list(query.log), **options, failOnDataLoss="false")
    assert offsets(easy.run()) == [6, 7, 8, 9]
    with pytest.raises(DataLossError, match="offsets 3 to 6"):
        StreamRun(stratalog_broker, list(query.log), **options).run()


def test_progress_is_committed_to_the_group(stratalog_broker: BrokerProcess, stratalog_topic: str) -> None:
    send(stratalog_broker, stratalog_topic, 10)
    partition = TopicPartition(stratalog_topic, 0)
    query = StreamRun(stratalog_broker, subscribe=stratalog_topic, startingOffsets="earliest", group__id="spark-lag")
    with Admin(stratalog_broker.bootstrap_servers) as admin:
        query.batch()
        assert admin.list_group_offsets("spark-lag")[partition].offset == 0  # the running micro-batch is not committed
        query.run()
        assert admin.list_group_offsets("spark-lag")[partition].offset == 10
        query.reader.commit({stratalog_topic: {"0": 7}})
        assert admin.list_group_offsets("spark-lag")[partition].offset == 7


def test_idle_stream_sends_one_request_to_one_broker(stratalog_broker: BrokerProcess, stratalog_topic: str) -> None:
    send(stratalog_broker, stratalog_topic, 1)
    query = StreamRun(stratalog_broker, subscribe=stratalog_topic, startingOffsets="earliest")
    query.run()
    query.reader._latest._partitions_until = float("inf")
    with stratalog_broker.delay(0, api="Metadata") as metadata, stratalog_broker.delay(0, api="ListOffsets") as lists:
        for _ in range(10):
            query.reader.latestOffset(query.log[-1], ReadAllAvailable())
        assert (metadata.met, lists.met) == (0, 10)


# Spark itself


def test_spark_stream_restarts_and_reports_its_backlog(
    spark: SparkSession, stratalog_broker: BrokerProcess, stratalog_topic: str, tmp_path: Path
) -> None:
    send(stratalog_broker, stratalog_topic, 100)
    options = {
        "kafka.bootstrap.servers": stratalog_broker.bootstrap_servers,
        "subscribe": stratalog_topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "60",
        "group.id": "spark-itself",
    }

    def run() -> tuple[int, list[int]]:
        query = started(
            lambda: (
                spark.readStream.format("stratalog")
                .options(**options)
                .load()
                .writeStream.format("parquet")
                .option("path", str(tmp_path / "out"))
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
        )
        assert query.lastProgress is not None
        latest = query.lastProgress["sources"][0]["latestOffset"]
        while isinstance(latest, str):  # depending on Spark's version, JSON or JSON of JSON
            latest = json.loads(latest)
        return spark.read.parquet(str(tmp_path / "out")).count(), list(latest[stratalog_topic].values())

    assert run() == (100, [100])
    send(stratalog_broker, stratalog_topic, 7)
    assert run() == (107, [107])
    rows = spark.read.parquet(str(tmp_path / "out")).select("offset").collect()
    assert sorted(row.offset for row in rows) == list(range(107))
    with Admin(stratalog_broker.bootstrap_servers) as admin:
        assert admin.list_group_offsets("spark-itself")[TopicPartition(stratalog_topic, 0)].offset == 107


def test_spark_stream_survives_changes_of_its_topic(
    spark: SparkSession, stratalog_new_broker: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    """One query survives transactions, compaction, a new partition, a killed broker and the recreation of the topic."""
    broker = stratalog_new_broker(EAGER_BROKER)
    servers = broker.bootstrap_servers
    broker.create_topic("t", config=COMPACTED)
    write_with_gaps(broker.bootstrap_servers, "t", 0)
    wait_until_compacted(servers, "t")
    expected = [(0, offset) for offset in committed.offsets(servers, "t")]
    frame = spark.readStream.format("stratalog").option("kafka.bootstrap.servers", servers).option("subscribe", "t")
    frame = frame.option("startingOffsets", "earliest").option("isolation.level", "read_committed")
    output = str(tmp_path / "out")

    def start() -> StreamingQuery:
        rows = frame.option("failOnDataLoss", "false").load().select("partition", "offset")
        writer = rows.writeStream.format("parquet").option("path", output)
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    def rows() -> list[tuple[int, int]]:
        return sorted((row.partition, row.offset) for row in spark.read.parquet(output).collect())

    def sent(count: int, partition: int = 0) -> None:
        """Check that each record arrives once, and nothing else."""
        with Producer(servers) as producer:
            deliveries = [producer.send("t", b"v", key=b"k%d" % n, partition=partition) for n in range(count)]
        expected.extend((partition, delivery.result().offset) for delivery in deliveries)
        while len(rows()) < len(expected):
            query.processAllAvailable()
        assert rows() == sorted(expected)

    query = going(start)
    try:
        sent(10)
        with Producer(servers, transactional_id="open") as producer:
            producer.begin()
            producer.send("t", b"held", key=b"held", partition=0).result()
            query.processAllAvailable()
            assert rows() == sorted(expected)
            producer.abort()
        sent(10)
        with Admin(servers) as admin:
            admin.create_partitions({"t": 2}).check()
        sent(4, partition=1)
        broker.kill()
        broker.start()
        sent(5)
        broker.delete_topic("t")
        broker.create_topic("t")
        sent(3)
    finally:
        query.stop()

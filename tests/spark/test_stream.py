"""Streams: what each micro-batch reads, as Spark would ask for it, over restarts and changes of the topics. The last
tests let Spark itself ask; the others call in its order, which takes no Java."""

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


class Query:
    """Calls a reader as Spark's micro-batch execution does. `log` is the checkpoint's offset log."""

    def __init__(self, broker: BrokerProcess, log: list[Json] | None = None, **options: str) -> None:
        given = {
            "kafka.bootstrap.servers": broker.bootstrap_servers,
            "kafka.retry.backoff.ms": "10",
            "log.dirs": "none",
        }
        parsed = stream_options(given | {name.replace("__", "."): value for name, value in options.items()})
        self.reader = StratalogStreamReader(parsed, schema())
        self.log = [] if log is None else log
        self.rows: list[tuple[str, int, int]] = []

    def run(self) -> list[tuple[str, int, int]]:
        """Micro-batches until there is nothing new; the rows of all of them."""
        found: list[tuple[str, int, int]] = []
        for _ in range(1000):
            rows = self.batch()
            if rows is None:
                return found
            found += rows
        raise AssertionError("a stream without an end, of a topic that does not grow")

    def batch(self) -> list[tuple[str, int, int]] | None:
        """The rows of the next micro-batch; None: there is none."""
        start = self.log[-1] if self.log else self.reader.initialOffset()
        end = json.loads(json.dumps(self.reader.latestOffset(start, self.reader.getDefaultReadLimit())))
        if self.log and end == start:
            return None
        self.log.append(end)
        return self.replay()

    def replay(self) -> list[tuple[str, int, int]]:
        """The last micro-batch in the log, again."""
        start = self.log[-2] if len(self.log) > 1 else self.reader.initialOffset()
        found = []
        for partition in self.reader.partitions(start, self.log[-1]):
            for batch in self.reader.read(partition):
                rows = batch.to_pylist()
                found += [(row["topic"], row["partition"], row["offset"]) for row in rows]
        return found


def send(broker: BrokerProcess, topic: str, count: int, partition: int = 0, size: int = 10) -> None:
    with Producer(broker.bootstrap_servers) as producer:
        for _ in range(count):
            producer.send(topic, value=b"v" * size, partition=partition)


def offsets(rows: list[tuple[str, int, int]] | None, partition: int = 0) -> list[int]:
    assert rows is not None
    return [offset for _, number, offset in rows if number == partition]


def test_from_the_start_all_is_read_once(stratalog_broker: BrokerProcess, stratalog_topic: str) -> None:
    send(stratalog_broker, stratalog_topic, 10)
    query = Query(stratalog_broker, subscribe=stratalog_topic, startingOffsets="earliest")
    assert offsets(query.run()) == list(range(10))
    send(stratalog_broker, stratalog_topic, 5)
    assert offsets(query.run()) == list(range(10, 15))
    assert query.run() == []
    assert query.log[-1] == {stratalog_topic: {"0": 15}}


def test_a_restart_goes_on_where_the_checkpoint_ends(stratalog_broker: BrokerProcess, stratalog_topic: str) -> None:
    send(stratalog_broker, stratalog_topic, 10)
    options = {"subscribe": stratalog_topic, "startingOffsets": "earliest"}
    first = Query(stratalog_broker, None, **options)
    first.run()
    send(stratalog_broker, stratalog_topic, 3)
    again = Query(stratalog_broker, first.log, **options)
    assert offsets(again.replay()) == list(range(10))
    assert offsets(again.run()) == [10, 11, 12]


def test_what_comes_between_two_runs_of_the_first_batch_is_not_lost(
    stratalog_broker: BrokerProcess, stratalog_topic: str
) -> None:
    """Spark asks for the initial offset again, and `latest` is another by then."""
    send(stratalog_broker, stratalog_topic, 10)
    first = Query(stratalog_broker, subscribe=stratalog_topic)
    assert first.batch() == []
    assert first.log == [{stratalog_topic: {"0": 10}}]
    send(stratalog_broker, stratalog_topic, 5)
    again = Query(stratalog_broker, first.log, subscribe=stratalog_topic)
    assert again.replay() == []
    assert offsets(again.run()) == list(range(10, 15))


def test_a_limit_of_rows_is_shared_by_the_partitions(stratalog_fresh_broker: BrokerProcess) -> None:
    broker = stratalog_fresh_broker
    broker.create_topic("t", 2)
    send(broker, "t", 90, 0)
    send(broker, "t", 10, 1)
    query = Query(broker, subscribe="t", startingOffsets="earliest", maxOffsetsPerTrigger="20")
    assert query.reader.getDefaultReadLimit() == ReadMaxRows(20)
    first = query.batch()
    assert (len(offsets(first, 0)), len(offsets(first, 1))) == (18, 2)
    assert query.reader.reportLatestOffset() == {"t": {"0": 90, "1": 10}}
    rest = query.run()
    assert offsets(first, 0) + offsets(rest, 0) == list(range(90))
    assert offsets(first, 1) + offsets(rest, 1) == list(range(10))
    assert len(query.log) == 5


def test_who_wants_all_gets_all_whatever_the_limit(stratalog_broker: BrokerProcess, stratalog_topic: str) -> None:
    send(stratalog_broker, stratalog_topic, 30)
    query = Query(stratalog_broker, subscribe=stratalog_topic, startingOffsets="earliest", maxOffsetsPerTrigger="5")
    start = query.reader.initialOffset()
    assert query.reader.latestOffset(start, ReadAllAvailable()) == {stratalog_topic: {"0": 30}}


def test_a_limit_of_bytes(stratalog_broker: BrokerProcess, stratalog_topic: str) -> None:
    send(stratalog_broker, stratalog_topic, 1000, size=1000)
    query = Query(stratalog_broker, subscribe=stratalog_topic, startingOffsets="earliest", maxBytesPerTrigger="100000")
    assert query.reader.getDefaultReadLimit() == ReadMaxBytes(100_000)
    first = offsets(query.batch())
    assert 80 <= len(first) <= 100  # of 1000 bytes and what a record costs beside
    assert first + offsets(query.run()) == list(range(1000))


def test_few_records_are_waited_for_and_not_for_ever(stratalog_broker: BrokerProcess, stratalog_topic: str) -> None:
    options = {"subscribe": stratalog_topic, "startingOffsets": "earliest", "minOffsetsPerTrigger": "10"}
    query = Query(stratalog_broker, None, **options, maxTriggerDelay="1h")
    assert query.reader.getDefaultReadLimit() == ReadMinRows(10)
    assert query.run() == []  # the first is never waited for
    send(stratalog_broker, stratalog_topic, 9)
    assert query.run() == []
    send(stratalog_broker, stratalog_topic, 1)
    assert offsets(query.run()) == list(range(10))
    hasty = Query(stratalog_broker, query.log, **options, maxTriggerDelay="0ms")
    send(stratalog_broker, stratalog_topic, 1)
    assert offsets(hasty.batch()) == [10]


def test_available_now_ends_with_what_was_there(stratalog_broker: BrokerProcess, stratalog_topic: str) -> None:
    send(stratalog_broker, stratalog_topic, 10)
    query = Query(
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
    query = Query(broker, subscribe="t", startingOffsets="latest")
    query.run()
    with Admin(broker.bootstrap_servers) as admin:
        admin.create_partitions({"t": 2}).check()
    send(broker, "t", 4, 1)
    if is_restarted:
        query = Query(broker, query.log, subscribe="t", startingOffsets="latest")
    else:
        query.reader._latest._partitions_until = float("-inf")  # a second has passed
    assert offsets(query.run(), 1) == [0, 1, 2, 3]
    assert query.log[-1] == {"t": {"0": 3, "1": 4}}


@pytest.mark.parametrize("way", ["wire", "direct"])
def test_gaps_of_compaction_and_transactions_are_no_loss(
    stratalog_new_broker: Callable[..., BrokerProcess], way: str
) -> None:
    """Micro-batches begin and end in gaps, and one comes again when another gap has swallowed it."""
    broker = stratalog_new_broker(EAGER_BROKER)
    broker.create_topic("t", config=COMPACTED)
    dirs = str(broker.data_dir) if way == "direct" else "none"
    options = {"subscribe": "t", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "7", "log__dirs": dirs}
    queries = [Query(broker, None, **options, isolation__level=level) for level in LEVELS]
    write_with_gaps(broker.bootstrap_servers, "t", 0)
    wait_until_compacted(broker.bootstrap_servers, "t")
    found = []
    for query, level in zip(queries, LEVELS, strict=True):
        left = committed.offsets(broker.bootstrap_servers, "t", level)
        found.append(offsets(query.run()))
        assert found[-1] == left
        assert len(left) < 50
    assert len(found[0]) > len(found[1])

    write_with_gaps(broker.bootstrap_servers, "t", 1)
    before = [len(query.log) for query in queries]
    for query in queries:
        for _ in range(5):
            query.batch()
    wait_until_compacted(broker.bootstrap_servers, "t")
    for query, level, count in zip(queries, LEVELS, before, strict=True):
        query.replay()
        query.run()
        again = Query(broker, query.log[:count], **options, isolation__level=level)
        begin = query.log[count - 1]["t"]["0"]
        left = [offset for offset in committed.offsets(broker.bootstrap_servers, "t", level) if offset >= begin]
        assert offsets(again.run()) == left


def test_broker_that_is_away_is_waited_for_and_then_named(stratalog_fresh_broker: BrokerProcess) -> None:
    broker = stratalog_fresh_broker
    broker.create_topic("t")
    send(broker, "t", 5)
    options = {"subscribe": "t", "startingOffsets": "earliest"}
    query = Query(broker, None, **options)
    assert offsets(query.run()) == list(range(5))
    broker.kill()
    starting = threading.Thread(target=broker.start)
    starting.start()
    try:
        assert query.batch() is None  # it is asked until it is back
    finally:
        starting.join()
    send(broker, "t", 3)
    assert offsets(query.run()) == [5, 6, 7]
    broker.kill()
    with pytest.raises(ClientError, match="refused"):
        Query(broker, query.log, **options, kafka__default__api__timeout__ms="300").batch()


def test_topics_that_match_later_are_read_too(stratalog_fresh_broker: BrokerProcess) -> None:
    broker = stratalog_fresh_broker
    broker.create_topic("orders-a")
    send(broker, "orders-a", 2)
    query = Query(broker, subscribePattern="orders-.*", startingOffsets="earliest")
    assert query.run() == [("orders-a", 0, 0), ("orders-a", 0, 1)]
    broker.create_topic("orders-b")
    broker.create_topic("other")
    send(broker, "orders-b", 1)
    again = Query(broker, query.log, subscribePattern="orders-.*", startingOffsets="earliest")
    assert again.run() == [("orders-b", 0, 0)]


@pytest.mark.parametrize("is_restarted", [True, False])
def test_a_topic_that_was_made_again_is_an_error_or_read_anew(
    stratalog_fresh_broker: BrokerProcess, is_restarted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    broker = stratalog_fresh_broker
    broker.create_topic("t")
    send(broker, "t", 10)
    careful = Query(broker, subscribe="t", startingOffsets="earliest")
    easy = Query(broker, subscribe="t", startingOffsets="earliest", failOnDataLoss="false")
    for query in (careful, easy):
        query.run()
    broker.delete_topic("t")
    broker.create_topic("t")
    send(broker, "t", 6)
    if is_restarted:
        careful = Query(broker, careful.log, subscribe="t", startingOffsets="earliest")
        easy = Query(broker, easy.log, subscribe="t", startingOffsets="earliest", failOnDataLoss="false")
    with pytest.raises(DataLossError, match="made again"):
        for _ in range(1000):
            careful.batch()
    with caplog.at_level(logging.WARNING, "stratalog.spark"):
        found: list[int] = []
        while len(found) < 6:
            found += offsets(easy.batch() or [])
    assert found == list(range(6))
    assert "made again" in caplog.text


def test_a_topic_made_again_is_noticed_when_it_is_longer_than_the_old_one(
    stratalog_fresh_broker: BrokerProcess,
) -> None:
    broker = stratalog_fresh_broker
    broker.create_topic("t")
    send(broker, "t", 5)
    query = Query(broker, subscribe="t", startingOffsets="earliest", failOnDataLoss="false")
    query.run()
    broker.delete_topic("t")
    broker.create_topic("t")
    send(broker, "t", 20)
    query.reader._latest._partitions_until = float("-inf")  # a second has passed
    assert offsets(query.run()) == list(range(20))


def test_a_topic_made_again_under_a_stream_that_has_read_nothing_yet(stratalog_fresh_broker: BrokerProcess) -> None:
    broker = stratalog_fresh_broker
    broker.create_topic("t")
    send(broker, "t", 10)
    query = Query(broker, subscribe="t", failOnDataLoss="false")
    assert query.run() == []
    broker.delete_topic("t")
    broker.create_topic("t")
    send(broker, "t", 6)
    query.reader._latest._partitions_until = float("-inf")  # a second has passed
    assert offsets(query.run()) == list(range(6))


def test_a_topic_that_is_gone_is_an_error_or_waited_for(stratalog_fresh_broker: BrokerProcess) -> None:
    broker = stratalog_fresh_broker
    broker.create_topic("t")
    broker.create_topic("u")
    send(broker, "t", 5)
    send(broker, "u", 5)
    query = Query(broker, subscribe="t,u", startingOffsets="earliest")
    query.run()
    broker.delete_topic("t")
    send(broker, "u", 1)
    easy = Query(broker, list(query.log), subscribe="t,u", startingOffsets="earliest", failOnDataLoss="false")
    assert easy.run() == [("u", 0, 5)]
    assert easy.log[-1] == {"t": {"0": 5}, "u": {"0": 6}}
    careful = Query(broker, list(query.log), subscribe="t,u", startingOffsets="earliest")
    with pytest.raises(DataLossError, match="t-0 does not exist any more"):
        careful.run()


def test_deleted_records_before_they_were_read(stratalog_broker: BrokerProcess, stratalog_topic: str) -> None:
    send(stratalog_broker, stratalog_topic, 10)
    options = {"subscribe": stratalog_topic, "startingOffsets": "earliest"}
    query = Query(stratalog_broker, None, **options, maxOffsetsPerTrigger="3")
    query.batch()
    with Admin(stratalog_broker.bootstrap_servers) as admin:
        admin.delete_records({TopicPartition(stratalog_topic, 0): 6}).check()
    easy = Query(stratalog_broker, list(query.log), **options, failOnDataLoss="false")
    assert offsets(easy.run()) == [6, 7, 8, 9]
    with pytest.raises(DataLossError, match="offsets 3 to 6"):
        Query(stratalog_broker, list(query.log), **options).run()


def test_progress_is_committed_to_the_group(stratalog_broker: BrokerProcess, stratalog_topic: str) -> None:
    send(stratalog_broker, stratalog_topic, 10)
    place = TopicPartition(stratalog_topic, 0)
    query = Query(stratalog_broker, subscribe=stratalog_topic, startingOffsets="earliest", group__id="spark-lag")
    with Admin(stratalog_broker.bootstrap_servers) as admin:
        query.batch()
        assert admin.list_group_offsets("spark-lag")[place].offset == 0  # what is being read is not done
        query.run()
        assert admin.list_group_offsets("spark-lag")[place].offset == 10
        query.reader.commit({stratalog_topic: {"0": 7}})
        assert admin.list_group_offsets("spark-lag")[place].offset == 7


def test_an_idle_stream_asks_one_thing_of_one_broker(stratalog_broker: BrokerProcess, stratalog_topic: str) -> None:
    send(stratalog_broker, stratalog_topic, 1)
    query = Query(stratalog_broker, subscribe=stratalog_topic, startingOffsets="earliest")
    query.run()
    query.reader._latest._partitions_until = float("inf")
    with stratalog_broker.delay(0, api="Metadata") as metadata, stratalog_broker.delay(0, api="ListOffsets") as lists:
        for _ in range(10):
            query.reader.latestOffset(query.log[-1], ReadAllAvailable())
        assert (metadata.met, lists.met) == (0, 10)


# Spark itself


def test_spark_streams_restarts_and_shows_its_backlog(
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
        while isinstance(latest, str):  # by Spark's version JSON, or JSON of JSON
            latest = json.loads(latest)
        return spark.read.parquet(str(tmp_path / "out")).count(), list(latest[stratalog_topic].values())

    assert run() == (100, [100])
    send(stratalog_broker, stratalog_topic, 7)
    assert run() == (107, [107])
    rows = spark.read.parquet(str(tmp_path / "out")).select("offset").collect()
    assert sorted(row.offset for row in rows) == list(range(107))
    with Admin(stratalog_broker.bootstrap_servers) as admin:
        assert admin.list_group_offsets("spark-itself")[TopicPartition(stratalog_topic, 0)].offset == 107


def test_spark_stream_goes_on_whatever_becomes_of_the_topic(
    spark: SparkSession, stratalog_new_broker: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    """One query all the time: transactions, compaction, a new partition, a killed broker, the topic made again."""
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
        """All of it arrives, once, and nothing else."""
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

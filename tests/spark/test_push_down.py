"""Filters that Spark pushes down: the rows are the same with and without push-down."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import DataSourceReader, EqualTo, Filter, GreaterThan
from pyspark.sql.types import StructType

from stratalog.client import Producer
from stratalog.spark.options import batch_options
from stratalog.spark.predicate import Predicate
from stratalog.spark.push_down import PushDownReader, batch_reader
from stratalog.spark.reader import StratalogBatchReader
from stratalog.testing.broker_process import BrokerProcess

CONF = "spark.sql.python.filterPushdown.enabled"
OPTIONS = {"subscribe": "orders", "kafka.bootstrap.servers": "127.0.0.1:1", "filterFromOffset": "3"}
FILTERS: list[Filter] = [EqualTo(("key",), b"a"), GreaterThan(("offset",), 9), GreaterThan(("key",), b"a")]


def reader_with(**options: str) -> StratalogBatchReader:
    return batch_reader(batch_options(OPTIONS | options), StructType().add("offset", "long"))


def overrides(reader: DataSourceReader) -> bool:
    """Return whether the class overrides pushFilters, by Spark's own check."""
    return getattr(reader.pushFilters, "__func__", None) is not DataSourceReader.pushFilters


@pytest.mark.parametrize(
    ("options", "kind", "is_override"),
    [
        ({}, StratalogBatchReader, False),
        ({"pushFilters": "true"}, PushDownReader, True),
        ({"pushFilters": "false"}, StratalogBatchReader, False),
    ],
)
def test_push_down_needs_the_option(options: dict[str, str], kind: type, is_override: bool) -> None:
    reader = reader_with(**options)
    assert type(reader) is kind
    assert overrides(reader) == is_override


def test_filters_narrow_the_predicate_of_the_options() -> None:
    reader = reader_with(pushFilters="true")
    left = list(reader.pushFilters(FILTERS))
    assert [id(each) for each in left] == [id(FILTERS[2])]
    assert reader.request.predicate == Predicate(keys=frozenset([b"a"]), from_offset=10)
    assert pickle.loads(pickle.dumps(reader)).request == reader.request


@pytest.mark.parametrize("options", [{}, {"pushFilters": "false"}])
def test_reader_without_push_down_has_no_push_filters(options: dict[str, str]) -> None:
    reader = reader_with(**options)
    assert list(reader.pushFilters(FILTERS)) == FILTERS
    assert reader.request.predicate == Predicate(from_offset=3)


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    before = spark.conf.get(CONF)
    yield spark
    spark.conf.set(CONF, str(before))


@pytest.mark.stratalog_topic(partitions=2)
def test_the_same_rows_with_and_without_push_down(
    session: SparkSession, stratalog_broker: BrokerProcess, stratalog_topic: str
) -> None:
    with Producer(stratalog_broker.bootstrap_servers) as producer:
        for number in range(40):
            producer.send(
                stratalog_topic,
                b"v%d" % number,
                key=b"k%d" % (number % 4),
                partition=number % 2,
                timestamp=1000 + number,
            )

    def query(way: str, push: str) -> DataFrame:
        frame = (
            session.read.format("stratalog")
            .option("kafka.bootstrap.servers", stratalog_broker.bootstrap_servers)
            .option("subscribe", stratalog_topic)
            .option("log.dirs", str(stratalog_broker.data_dir) if way == "direct" else "none")
            .option("pushFilters", push)
            .load()
        )
        return (
            frame.where(f.col("key").isin(b"k1", b"k2"))
            .where("partition = 1 and offset >= 3 and timestamp < timestamp_millis(1030)")
            .where("length(value) > 1")
            .select("key", "value", "partition", "offset")
        )

    def rows(frame: DataFrame) -> list[tuple[bytes, int]]:
        return sorted((bytes(row.value), row.offset) for row in frame.collect())

    expected = sorted((b"v%d" % n, n // 2) for n in range(7, 30) if n % 2 == 1 and n % 4 in (1, 2))
    for way in ("direct", "wire"):
        session.conf.set(CONF, "true")
        pushed = query(way, "true")
        plan = pushed._jdf.queryExecution().executedPlan().toString()
        assert "length(value" in plan
        assert "partition#" not in plan.partition("Filter")[2].partition("\n")[0]  # Spark no longer compares it
        assert rows(pushed) == expected
        session.conf.set(CONF, "false")
        assert rows(query(way, "false")) == expected


@pytest.mark.stratalog_topic(partitions=1)
def test_frame_can_be_filtered_several_times_without_push_down(
    session: SparkSession, stratalog_broker: BrokerProcess, stratalog_topic: str
) -> None:
    with Producer(stratalog_broker.bootstrap_servers) as producer:
        for number in range(100):
            producer.send(stratalog_topic, b"%d" % number)
    session.conf.set(CONF, "true")
    frame = (
        session.read.format("stratalog")
        .option("kafka.bootstrap.servers", stratalog_broker.bootstrap_servers)
        .option("subscribe", stratalog_topic)
        .load()
    )
    assert frame.where("offset < 2").count() == 2
    assert frame.count() == 100
    assert frame.where("offset < 2").union(frame.where("offset >= 90")).count() == 12

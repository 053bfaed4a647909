"""`df.write.format("stratalog")`: the records in the topic; a write is atomic."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from stratalog.client.admin import Admin
from stratalog.testing import BrokerProcess
from tests.spark.committed import committed, nothing_is_open

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.readwriter import DataFrameWriter

PARTITIONS = 2
TEN_MEGABYTES = 10 * 1024 * 1024
pytestmark = pytest.mark.stratalog_topic(PARTITIONS)


@pytest.fixture(scope="module")
def broker(stratalog_broker: BrokerProcess) -> Iterator[BrokerProcess]:
    yield stratalog_broker


def writer(broker: BrokerProcess, rows: DataFrame, **options: str) -> DataFrameWriter:
    actual = rows.write.format("stratalog").mode("append").option("kafka.bootstrap.servers", broker.bootstrap_servers)
    for name, value in options.items():
        actual = actual.option(name, value)
    return actual


def test_every_column_is_written_unchanged(spark: SparkSession, broker: BrokerProcess, stratalog_topic: str) -> None:
    when = datetime(2024, 2, 29, 12, 30, 15, 123_000, tzinfo=UTC)
    header = [("a", b"1"), ("a", None), ("ü", b"")]
    rows: list[Any] = [
        (b"k", "v", header, 0, when),
        (None, None, None, 1, when),
        (b"", "", [], 0, when),
        (b"\x00\xff", "ä", None, 1, None),
    ]
    schema = (
        "key binary, value string, headers array<struct<key:string,value:binary>>, partition int, timestamp timestamp"
    )
    writer(broker, spark.createDataFrame(rows, schema).coalesce(1), topic=stratalog_topic).save()
    first, second = committed(broker.bootstrap_servers, stratalog_topic, PARTITIONS)
    milliseconds = int(when.timestamp() * 1000)
    assert first == [(b"k", b"v", header, milliseconds), (b"", b"", [], milliseconds)]
    assert second[0] == (None, None, [], milliseconds)
    assert second[1][:3] == (b"\x00\xff", "ä".encode(), [])
    assert second[1][3] > milliseconds  # rows without a timestamp get the current time


def test_rows_with_headers_go_to_the_partitions_of_their_keys(
    spark: SparkSession, broker: BrokerProcess, stratalog_topic: str
) -> None:
    """Also covers tasks without rows."""
    rows = spark.range(0, 10_000, 1, 3).selectExpr(
        "cast(id % 100 as string) as key",
        "cast(id as string) as value",
        "array(struct('n' as key, cast(cast(id as string) as binary) as value)) as headers",
    )
    before = transactional_ids(broker)
    writer(broker, rows.where("value < '7'"), topic=stratalog_topic).save()
    actual = committed(broker.bootstrap_servers, stratalog_topic, PARTITIONS)
    expected = [str(number) for number in range(10_000) if str(number) < "7"]
    assert sorted(str(each[1], "ascii") for part in actual for each in part if each[1]) == sorted(expected)
    assert all(each[2] == [("n", each[1])] for part in actual for each in part)
    keys = [{each[0] for each in part} for part in actual]
    assert not keys[0] & keys[1]
    assert nothing_is_open(broker.bootstrap_servers, stratalog_topic, PARTITIONS)
    assert transactional_ids(broker) <= before


def transactional_ids(broker: BrokerProcess) -> set[str]:
    with Admin(broker.bootstrap_servers) as admin:
        return {each.transactional_id for each in admin.list_transactions()}


def test_column_sets_the_topic_of_each_row(spark: SparkSession, broker: BrokerProcess, stratalog_topic: str) -> None:
    other = f"{stratalog_topic}-other"
    broker.create_topic(other)
    rows = spark.createDataFrame(
        [(stratalog_topic, "a"), (other, "b"), (stratalog_topic, "c")], "topic string, value string"
    )
    writer(broker, rows.coalesce(1)).save()
    here = [
        each[1] or b"" for part in committed(broker.bootstrap_servers, stratalog_topic, PARTITIONS) for each in part
    ]
    ((there,),) = committed(broker.bootstrap_servers, other, 1)
    assert (sorted(here), there[1]) == ([b"a", b"c"], b"b")
    broker.delete_topic(other)


@pytest.mark.stratalog_topic(1, config={"max.message.bytes": 2 * TEN_MEGABYTES})
def test_records_of_ten_megabytes_are_written_and_read(
    spark: SparkSession, broker: BrokerProcess, stratalog_topic: str
) -> None:
    rows = spark.range(2).selectExpr(f"repeat(cast(id as string), {TEN_MEGABYTES}) as value")
    options = {"topic": stratalog_topic, "kafka.max.request.size": str(2 * TEN_MEGABYTES)}
    writer(broker, rows, **options).save()
    (actual,) = committed(broker.bootstrap_servers, stratalog_topic, 1)
    assert sorted((len(each[1] or b""), (each[1] or b"")[:1]) for each in actual) == [
        (TEN_MEGABYTES, b"0"),
        (TEN_MEGABYTES, b"1"),
    ]
    for dirs in ("none", str(broker.data_dir)):
        frame = spark.read.format("stratalog").option("kafka.bootstrap.servers", broker.bootstrap_servers)
        read = (
            frame.option("subscribe", stratalog_topic).option("log.dirs", dirs).load().selectExpr("md5(value) as sum")
        )
        assert {row.sum for row in read.collect()} == {hashlib.md5(each[1] or b"").hexdigest() for each in actual}


def test_failed_task_fails_the_whole_write(spark: SparkSession, broker: BrokerProcess, stratalog_topic: str) -> None:
    rows = spark.range(0, 1000, 1, 2).selectExpr(
        "cast(if(id = 999, raise_error('the last row'), id) as string) as value"
    )
    with pytest.raises(Exception, match="the last row"):
        writer(broker, rows, topic=stratalog_topic, delivery="exactly-once").save()
    assert committed(broker.bootstrap_servers, stratalog_topic, PARTITIONS) == [[], []]
    assert nothing_is_open(broker.bootstrap_servers, stratalog_topic, PARTITIONS)


def test_null_topic_fails_the_write(spark: SparkSession, broker: BrokerProcess, stratalog_topic: str) -> None:
    rows = spark.createDataFrame([(stratalog_topic, "a"), (None, "b")], "topic string, value string")
    with pytest.raises(Exception, match="the column 'topic' is null"):
        writer(broker, rows).save()
    assert committed(broker.bootstrap_servers, stratalog_topic, PARTITIONS) == [[], []]


def test_invalid_write_is_refused_when_it_is_planned(spark: SparkSession, broker: BrokerProcess) -> None:
    rows = spark.range(1).selectExpr("id as value")
    with pytest.raises(Exception, match="the column 'value' is bigint; cast it to string or binary"):
        writer(broker, rows, topic="t").save()
    text = spark.range(1).selectExpr("'v' as value")
    with pytest.raises(Exception, match="'topics' is not an option of a write; did you mean topic"):
        writer(broker, text, topics="t").save()
    with pytest.raises(Exception, match="topics are append-only"):
        writer(broker, text, topic="t").mode("overwrite").save()

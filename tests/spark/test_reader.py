"""Batch reads: their plans, and their execution by Spark."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from stratalog.client import Admin, Producer, TopicPartition
from stratalog.errors import ClientError, ConfigError
from stratalog.spark import broker_client
from stratalog.spark.options import batch_options
from stratalog.spark.reader import StratalogBatchReader, describe_read
from stratalog.spark.scan_task import ScanPartition, read_partition
from stratalog.spark.schema import ALL_COLUMNS, COLUMNS, arrow_schema, columns_of, ddl
from stratalog.testing import BrokerProcess


@pytest.fixture(autouse=True)
def _connections_end_with_the_test() -> Iterator[None]:
    yield
    broker_client.close_all()


def reader(broker: BrokerProcess, topic: str, **options: str) -> StratalogBatchReader:
    read_options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": topic}
    read_options |= {name.replace("__", "."): value for name, value in options.items()}
    return StratalogBatchReader(batch_options(read_options), StructType().add("value", "binary"))


def planned(broker: BrokerProcess, topic: str, **options: str) -> list[ScanPartition]:
    actual = reader(broker, topic, **options).partitions()
    return [each for each in actual if isinstance(each, ScanPartition)]


def ranges(broker: BrokerProcess, topic: str, **options: str) -> list[tuple[int, int, int]]:
    actual = planned(broker, topic, **options)
    return [(each.range.partition, each.range.start, each.range.end) for each in actual]


def send(broker: BrokerProcess, topic: str, count: int, partition: int = 0, first_time: int = 1000) -> None:
    with Producer(broker.bootstrap_servers) as producer:
        for index in range(count):
            value = b"%d" % index
            producer.send(topic, key=value, value=value, partition=partition, timestamp=first_time + index)


# Plans


@pytest.mark.stratalog_topic(partitions=2)
def test_plan_has_a_task_for_each_partition_with_records(stratalog_broker: BrokerProcess, stratalog_topic: str) -> None:
    send(stratalog_broker, stratalog_topic, 10, 1)
    assert ranges(stratalog_broker, stratalog_topic) == [(1, 0, 10)]
    assert ranges(stratalog_broker, stratalog_topic, maxRecordsPerPartition="4") == [(1, 0, 3), (1, 3, 6), (1, 6, 10)]
    both = f'{{"{stratalog_topic}": {{"0": 0, "1": 3}}}}'
    assert ranges(stratalog_broker, stratalog_topic, startingOffsets=both) == [(1, 3, 10)]
    assert ranges(stratalog_broker, stratalog_topic, filterPartitions="0") == []


def test_offsets_must_name_all_partitions_and_no_others(stratalog_broker: BrokerProcess, stratalog_topic: str) -> None:
    with pytest.raises(ConfigError, match=f"startingOffsets does not name {stratalog_topic}-0"):
        ranges(stratalog_broker, stratalog_topic, startingOffsets='{"other": {"0": 0}}')
    wrong = f'{{"{stratalog_topic}": {{"0": 0, "9": 0}}}}'
    with pytest.raises(ConfigError, match=f"endingOffsets names {stratalog_topic}-9"):
        ranges(stratalog_broker, stratalog_topic, endingOffsets=wrong)


def test_timestamps_become_offsets(stratalog_broker: BrokerProcess, stratalog_topic: str) -> None:
    send(stratalog_broker, stratalog_topic, 100)
    between = {"startingTimestamp": "1020", "endingTimestamp": "1030"}
    assert ranges(stratalog_broker, stratalog_topic, **between) == [(0, 20, 30)]
    with pytest.raises(ConfigError, match=f"{stratalog_topic}-0 has no record at or after 5000 ms"):
        ranges(stratalog_broker, stratalog_topic, startingTimestamp="5000")
    late = {"startingTimestamp": "5000", "startingOffsetsByTimestampStrategy": "latest"}
    assert ranges(stratalog_broker, stratalog_topic, **late) == []
    assert ranges(stratalog_broker, stratalog_topic, endingTimestamp="5000") == [(0, 0, 100)]


def test_filter_on_timestamp_raises_the_start_offset(stratalog_broker: BrokerProcess, stratalog_topic: str) -> None:
    send(stratalog_broker, stratalog_topic, 100)
    assert ranges(stratalog_broker, stratalog_topic, filterFromTimestamp="1090") == [(0, 90, 100)]
    assert ranges(stratalog_broker, stratalog_topic, filterFromTimestamp="9999") == []


def test_accessible_files_are_read_by_default(stratalog_broker: BrokerProcess, stratalog_topic: str) -> None:
    send(stratalog_broker, stratalog_topic, 10)
    here = (str(stratalog_broker.data_dir.resolve()),)
    assert [each.data_dirs for each in planned(stratalog_broker, stratalog_topic)] == [here]
    assert [each.data_dirs for each in planned(stratalog_broker, stratalog_topic, log__dirs="none")] == [()]
    assert [each.data_dirs for each in planned(stratalog_broker, stratalog_topic, log__dirs="/else")] == [("/else",)]


def test_task_without_access_to_the_files_reads_over_the_wire(
    stratalog_broker: BrokerProcess, stratalog_topic: str
) -> None:
    """Run a task without access to the files that the driver sees, as on another machine."""
    send(stratalog_broker, stratalog_topic, 10)
    each = reader(stratalog_broker, stratalog_topic)
    (task,) = planned(stratalog_broker, stratalog_topic)
    elsewhere = ScanPartition(task.range, ("/nowhere",))
    (batch,) = read_partition(elsewhere, each.request)
    assert batch.column("value").to_pylist() == [b"%d" % index for index in range(10)]


def test_plan_can_be_described(stratalog_broker: BrokerProcess, stratalog_topic: str) -> None:
    send(stratalog_broker, stratalog_topic, 10)
    options = {"kafka.bootstrap.servers": stratalog_broker.bootstrap_servers, "subscribe": stratalog_topic}
    assert describe_read(options).startswith(f"stratalog[subscribe={stratalog_topic}] direct: 10 offsets in 1 task")
    assert " over the wire: " in describe_read(options | {"log.dirs": "none"})
    assert "where key in 1 value" in describe_read(options | {"filterKeys": '["a"]'})


def test_readers_and_tasks_can_be_pickled(stratalog_broker: BrokerProcess, stratalog_topic: str) -> None:
    send(stratalog_broker, stratalog_topic, 3)
    each = reader(stratalog_broker, stratalog_topic)
    again = pickle.loads(pickle.dumps(each))
    for task in pickle.loads(pickle.dumps(each.partitions())):
        (batch,) = again.read(task)
        assert batch.num_rows == 3


def test_a_plan_of_many_partitions_is_small(stratalog_broker: BrokerProcess, stratalog_topic: str) -> None:
    """Tasks are pickled one by one, so they must not contain what they share."""
    send(stratalog_broker, stratalog_topic, 1)
    keys = '["' + '","'.join("k" * 100 for _ in range(1000)) + '"]'
    (task,) = planned(stratalog_broker, stratalog_topic, filterKeys=keys)
    assert len(pickle.dumps(task)) < 1000


def test_missing_topic_is_reported_immediately(stratalog_broker: BrokerProcess) -> None:
    with pytest.raises(ClientError, match=r"topic 'nowhere'.*create it, or correct the name"):
        planned(stratalog_broker, "nowhere")
    with pytest.raises(ClientError, match=r"orders-7|topic 'orders'"):
        StratalogBatchReader(
            batch_options({"kafka.bootstrap.servers": stratalog_broker.bootstrap_servers, "assign": '{"orders": [7]}'}),
            StructType().add("value", "binary"),
        ).partitions()


def test_unreachable_broker_is_an_error_at_the_start(stratalog_fresh_broker: BrokerProcess) -> None:
    stratalog_fresh_broker.stop()
    with pytest.raises(ClientError, match="refused"):
        planned(stratalog_fresh_broker, "t", kafka__default__api__timeout__ms="300")


# Columns


def test_a_schema_may_have_any_columns_in_any_order() -> None:
    assert columns_of(StructType().add("offset", "long").add("key", "binary")) == ("offset", "key")
    assert arrow_schema(("offset", "key")).names == ["offset", "key"]
    assert ddl(include_headers=True).startswith("key binary, value binary, topic string, partition int")
    assert len(ALL_COLUMNS) == len(COLUMNS) + 1


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("keys", "binary", "column 'keys', which topics don't have; did you mean 'key'"),
        ("colour", "binary", "the columns are: key, value"),
        ("key", "string", "'key' as string; its type is binary"),
        ("partition", "long", "'partition' as bigint; its type is int"),
    ],
)
def test_invalid_schema_is_refused_by_column(name: str, kind: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        columns_of(StructType().add(name, kind))


# Spark


def test_the_module_that_spark_imports_never_raises() -> None:
    code = (
        "import sys; sys.modules['pyspark'] = None; import pyspark_stratalog as p; print(hasattr(p, 'DefaultSource'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "False"), done.stderr


def test_spark_finds_the_source_and_reads_a_topic(
    spark: SparkSession, stratalog_broker: BrokerProcess, stratalog_topic: str
) -> None:
    send(stratalog_broker, stratalog_topic, 100)
    options = {"kafka.bootstrap.servers": stratalog_broker.bootstrap_servers, "subscribe": stratalog_topic}
    frame = spark.read.format("stratalog").options(**options).load()
    assert frame.columns == list(COLUMNS)
    rows = frame.selectExpr("int(string(value)) as value", "offset", "unix_millis(timestamp) as time").collect()
    assert sorted(tuple(row) for row in rows) == [(index, index, 1000 + index) for index in range(100)]
    few = spark.read.format("stratalog").schema("offset bigint, key binary").options(**options).load()
    assert few.columns == ["offset", "key"]
    assert few.groupBy().sum("offset").collect()[0][0] == 4950
    listed = ", ".join(f"`{name}` '{value}'" for name, value in options.items())
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW records USING stratalog OPTIONS ({listed})")
    assert spark.sql("SELECT count(*) FROM records WHERE offset >= 90").collect()[0][0] == 10


def test_spark_reads_nothing_of_an_empty_topic_and_names_a_bad_option(
    spark: SparkSession, stratalog_broker: BrokerProcess, stratalog_topic: str
) -> None:
    frame = spark.read.format("stratalog").option("kafka.bootstrap.servers", stratalog_broker.bootstrap_servers)
    assert frame.option("subscribe", stratalog_topic).load().count() == 0
    with pytest.raises(PySparkException, match="did you mean startingOffsets"):
        frame.option("startingOffset", "earliest").load().count()


def test_spark_runs_any_task_of_a_plan_of_ten_thousand(
    spark: SparkSession, stratalog_broker: BrokerProcess, stratalog_topic: str
) -> None:
    count = 10_000
    with Producer(stratalog_broker.bootstrap_servers) as producer:
        values = [b"%d" % index for index in range(count)]
        producer.send_arrow(stratalog_topic, pa.record_batch({"value": values})).result()
    frame = spark.read.format("stratalog").option("kafka.bootstrap.servers", stratalog_broker.bootstrap_servers)
    tasks = frame.option("subscribe", stratalog_topic).option("minPartitions", count).load().select("offset").rdd
    assert tasks.getNumPartitions() == count
    some = [0, 1, 4321, count - 1]
    rows = spark.sparkContext.runJob(tasks, lambda rows: [row.offset for row in rows], some)
    assert rows == some


def test_records_deleted_after_the_plan_are_an_error_of_the_task(
    stratalog_broker: BrokerProcess, stratalog_topic: str
) -> None:
    send(stratalog_broker, stratalog_topic, 10)
    each = reader(stratalog_broker, stratalog_topic, log__dirs="none")
    (task,) = each.partitions()
    with Admin(stratalog_broker.bootstrap_servers) as admin:
        admin.delete_records({TopicPartition(stratalog_topic, 0): 5}).check()
    with pytest.raises(Exception, match="offsets 0 to 5"):
        list(each.read(task))

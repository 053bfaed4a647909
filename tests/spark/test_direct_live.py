"""Direct reads while a broker serves, writes and deletes: the same rows as over the wire, or an error."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pyspark.sql.types import StructType

from stratalog.client import Producer
from stratalog.spark import broker_client, direct_scan
from stratalog.spark.data_loss import DataLossError
from stratalog.spark.direct_plan import FilesUnavailableError
from stratalog.spark.options import batch_options
from stratalog.spark.reader import StratalogBatchReader
from stratalog.spark.scan_task import ScanPartition
from stratalog.testing import BrokerProcess
from tests.spark.rows import Row, rows_in

SCHEMA = StructType().add("key", "binary").add("value", "binary").add("offset", "long").add("timestamp", "timestamp")


@pytest.fixture(autouse=True)
def _connections_end_with_the_test() -> Iterator[None]:
    yield
    broker_client.close_all()


def reader(broker: BrokerProcess, topic: str, **options: str) -> StratalogBatchReader:
    read_options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": topic}
    read_options |= {name.replace("__", "."): value for name, value in options.items()}
    return StratalogBatchReader(batch_options(read_options), SCHEMA)


def rows(each: StratalogBatchReader) -> list[Row]:
    return [row for task in each.partitions() for batch in each.read(task) for row in rows_in(batch)]


def task_of(each: StratalogBatchReader) -> ScanPartition:
    (task,) = each.partitions()
    assert isinstance(task, ScanPartition)
    return task


def send(broker: BrokerProcess, topic: str, values: range) -> None:
    with Producer(broker.bootstrap_servers) as producer:
        for value in values:
            producer.send(topic, b"%d" % value, key=b"k%d" % (value % 7), timestamp=1000 + value)


@pytest.mark.stratalog_topic(partitions=3, config={"segment.bytes": 2000, "compression.type": "zstd"})
def test_files_and_wire_give_the_same_rows(stratalog_broker: BrokerProcess, stratalog_topic: str) -> None:
    for start in range(0, 400, 40):
        send(stratalog_broker, stratalog_topic, range(start, start + 40))
    for options in ({}, {"filterKeys": '["k3"]'}, {"filterFromTimestamp": "1100", "filterUntilTimestamp": "1230"}):
        direct = rows(reader(stratalog_broker, stratalog_topic, log__dirs=str(stratalog_broker.data_dir), **options))
        wire = rows(reader(stratalog_broker, stratalog_topic, log__dirs="none", **options))
        assert direct == wire
        assert len(direct) == {0: 400, 1: 57, 2: 130}[len(options)]


def test_aborted_and_open_transactions_are_not_read(stratalog_broker: BrokerProcess, stratalog_topic: str) -> None:
    with Producer(stratalog_broker.bootstrap_servers, transactional_id="direct") as producer:
        producer.init_transactions()
        for number, is_kept in enumerate([True, False, True, False]):
            producer.begin()
            for value in range(3):
                producer.send(stratalog_topic, b"%d-%d" % (number, value))
            producer.flush()
            producer.commit() if is_kept else producer.abort()
        producer.begin()
        producer.send(stratalog_topic, b"open")
        producer.flush()
        options = {"isolation__level": "read_committed"}
        direct = rows(reader(stratalog_broker, stratalog_topic, **options))
        wire = rows(reader(stratalog_broker, stratalog_topic, log__dirs="none", **options))
        everything = rows(reader(stratalog_broker, stratalog_topic))
        producer.abort()
    assert [row["value"] for row in direct] == [b"0-0", b"0-1", b"0-2", b"2-0", b"2-1", b"2-2"]
    assert direct == wire
    assert len(everything) == 13


def test_records_written_after_the_plan_are_not_read(stratalog_broker: BrokerProcess, stratalog_topic: str) -> None:
    send(stratalog_broker, stratalog_topic, range(10))
    each = reader(stratalog_broker, stratalog_topic)
    task = task_of(each)
    send(stratalog_broker, stratalog_topic, range(10, 20))
    actual = [row for batch in each.read(task) for row in rows_in(batch)]
    assert [row["offset"] for row in actual] == list(range(10))


@pytest.mark.stratalog_topic(config={"segment.bytes": 1000})
def test_scan_continues_over_the_wire_if_files_disappear(
    stratalog_broker: BrokerProcess, stratalog_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for start in range(0, 200, 20):
        send(stratalog_broker, stratalog_topic, range(start, start + 20))
    each = reader(stratalog_broker, stratalog_topic)
    task = task_of(each)
    assert task.data_dirs
    seen: list[int] = []
    original = os.open

    def unmounted_later(path: object, *rest: object, **named: object) -> int:
        if str(path).endswith(".log") and stratalog_topic in str(path):
            seen.append(1)
            if len(seen) > 3:
                monkeypatch.setattr(direct_scan, "partition_directory", _gone)
                raise FileNotFoundError(str(path))
        return original(path, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", unmounted_later)
    actual = [row for batch in each.read(task) for row in rows_in(batch)]
    assert len(seen) == 4
    assert [row["offset"] for row in actual] == list(range(200))


def _gone(*_: object) -> object:
    raise FilesUnavailableError("not mounted any more")


def test_missing_files_in_named_directories_are_an_error(stratalog_broker: BrokerProcess, stratalog_topic: str) -> None:
    send(stratalog_broker, stratalog_topic, range(3))
    each = reader(stratalog_broker, stratalog_topic, log__dirs="/nowhere")
    with pytest.raises(FilesUnavailableError, match=f"/nowhere/{stratalog_topic}-0 does not exist"):
        rows(each)


def test_files_of_a_recreated_topic_are_not_read(stratalog_broker: BrokerProcess, stratalog_topic: str) -> None:
    send(stratalog_broker, stratalog_topic, range(10))
    strict, lenient = (reader(stratalog_broker, stratalog_topic, failOnDataLoss=flag) for flag in ("true", "false"))
    task = task_of(strict)
    stratalog_broker.delete_topic(stratalog_topic)
    stratalog_broker.create_topic(stratalog_topic)
    send(stratalog_broker, stratalog_topic, range(100, 120))
    with pytest.raises(DataLossError, match=stratalog_topic):
        list(strict.read(task))
    assert list(lenient.read(task)) == []

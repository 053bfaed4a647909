"""Reads of Spark's tasks from a cluster: over the wire they follow leaders, and files are those of replicas in sync."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from stratalog.client import Producer
from stratalog.lab.cluster import LabCluster
from stratalog.spark import broker_client
from stratalog.spark.direct_plan import FilesUnavailableError
from stratalog.spark.options import batch_options
from stratalog.spark.reader import StratalogBatchReader
from stratalog.spark.scan_task import ScanPartition
from tests.cluster.traffic import create_topic, leaders, wait_for_isr
from tests.spark.rows import Row, rows_in

SCHEMA = StructType().add("partition", "integer").add("offset", "long").add("value", "binary")
RECORDS = 3000


@pytest.fixture(autouse=True)
def _connections_end_with_the_test() -> Iterator[None]:
    yield
    broker_client.close_all()


def reader(cluster: LabCluster, log_dirs: str | None = None) -> StratalogBatchReader:
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": "orders"}
    options["kafka.max.partition.fetch.bytes"] = "2000"  # many requests for each task
    if log_dirs is not None:
        options["log.dirs"] = log_dirs
    return StratalogBatchReader(batch_options(options), SCHEMA)


def rows(each: StratalogBatchReader) -> list[Row]:
    return read(each, each.partitions())


def read(each: StratalogBatchReader, planned: list[InputPartition]) -> list[Row]:
    read_rows = [row for task in planned for batch in each.read(task) for row in rows_in(batch)]
    return sorted(read_rows, key=lambda row: (row["partition"], row["offset"]))


def tasks(each: StratalogBatchReader) -> list[ScanPartition]:
    return [task for task in each.partitions() if isinstance(task, ScanPartition)]


def send(cluster: LabCluster, count: int) -> None:
    with Producer(cluster.bootstrap_servers) as producer:
        for number in range(count):
            producer.send("orders", b"%d" % number, partition=number % 3)
            if number % 50 == 0:
                producer.flush()  # so that there are many batches


def test_tasks_lose_rows_when_a_leader_is_killed_or_read_files_that_are_not_in_sync(cluster: LabCluster) -> None:
    create_topic(cluster, "orders", 3)
    send(cluster, RECORDS)
    expected = rows(reader(cluster, "none"))
    assert len(expected) == RECORDS

    victim = leaders(cluster, "orders")[0]
    killer = threading.Timer(0.2, cluster.broker(victim).kill)
    planned = reader(cluster, "none")
    planned_tasks = planned.partitions()
    killer.start()
    for _ in range(3):
        assert read(planned, planned_tasks) == expected
    killer.join()
    wait_for_isr(cluster, "orders", 2)

    send(cluster, RECORDS)
    detected = reader(cluster)
    assert all(task.data_dirs and victim not in task.in_sync for task in tasks(detected))
    assert len(rows(detected)) == 2 * RECORDS
    named = ",".join(str(broker.data_dir) for broker in cluster.brokers.values())
    assert len(rows(reader(cluster, named))) == 2 * RECORDS
    with pytest.raises(FilesUnavailableError, match=f"belongs to broker {victim}, and in sync are only"):
        rows(reader(cluster, str(cluster.broker(victim).data_dir)))

    cluster.broker(victim).start()
    wait_for_isr(cluster, "orders", 3)
    assert len(rows(reader(cluster, str(cluster.broker(victim).data_dir)))) == 2 * RECORDS

"""Scans over the wire: real brokers, faults, and topics that change during the scan. No Spark."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import confluent_kafka
import pyarrow as pa
import pytest

from stratalog.client import Admin, Producer, TopicPartition
from stratalog.client.admin import ConfigResource
from stratalog.client.administration.configs import ResourceKind
from stratalog.errors import ClientError, RequestTimeoutError
from stratalog.spark import broker_client
from stratalog.spark.data_loss import DataLossError
from stratalog.spark.predicate import Predicate
from stratalog.spark.scan_request import OffsetRange, ScanRequest
from stratalog.spark.schema import ALL_COLUMNS, arrow_schema
from stratalog.spark.wire_scan import scan
from stratalog.testing import BrokerProcess
from tests.spark.committed import offsets
from tests.spark.compacting import COMPACTED, EAGER_BROKER, wait_until_compacted


@pytest.fixture(autouse=True)
def _connections_end_with_the_test() -> Iterator[None]:
    yield
    broker_client.close_all()


def request_to(broker: BrokerProcess, columns: tuple[str, ...] = ("offset",), **settings: str) -> ScanRequest:
    kafka = {"bootstrap.servers": broker.bootstrap_servers, "retry.backoff.ms": "10", "fetch.max.wait.ms": "50"}
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return ScanRequest(columns, kafka | named, patience_seconds=60)


def fill(broker: BrokerProcess, topic: str, count: int, *, size: int = 10, linger_ms: int = 0) -> None:
    with Producer(broker.bootstrap_servers, linger_ms=linger_ms, batch_size=4096) as producer:
        for index in range(count):
            producer.send(topic, key=b"%d" % index, value=b"v" * size, partition=0)


def offsets_in(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def test_rows_have_all_columns_and_exactly_sparks_types(stratalog_broker: BrokerProcess, stratalog_topic: str) -> None:
    with Producer(stratalog_broker.bootstrap_servers) as producer:
        producer.send(stratalog_topic, key=b"k", value=b"v", timestamp=1_700_000_000_123, headers=[("h", b"x")])
        producer.send(stratalog_topic, key=None, value=None, timestamp=1_700_000_000_124)
    request = request_to(stratalog_broker, ALL_COLUMNS)
    (batch,) = scan(OffsetRange(stratalog_topic, 0, 0, 2), request)
    assert batch.schema == arrow_schema(ALL_COLUMNS)
    rows = batch.to_pylist()
    times = batch.column("timestamp").cast(pa.int64()).to_pylist()
    assert times == [1_700_000_000_123_000, 1_700_000_000_124_000]
    assert [row["key"] for row in rows] == [b"k", None]
    assert [row["value"] for row in rows] == [b"v", None]
    assert [row["headers"] for row in rows] == [[{"key": "h", "value": b"x"}], None]
    assert {(row["topic"], row["partition"], row["timestampType"]) for row in rows} == {(stratalog_topic, 0, 0)}


def test_range_includes_its_start_and_excludes_its_end(stratalog_broker: BrokerProcess, stratalog_topic: str) -> None:
    fill(stratalog_broker, stratalog_topic, 500)
    request = request_to(stratalog_broker)
    assert offsets_in(scan(OffsetRange(stratalog_topic, 0, 123, 456), request)) == list(range(123, 456))
    assert offsets_in(scan(OffsetRange(stratalog_topic, 0, 7, 7), request)) == []


def test_many_small_fetches_are_joined_to_one_arrow_batch(
    stratalog_broker: BrokerProcess, stratalog_topic: str
) -> None:
    fill(stratalog_broker, stratalog_topic, 2000, size=100)
    request = request_to(stratalog_broker, max_partition_fetch_bytes="1000")
    batches = list(scan(OffsetRange(stratalog_topic, 0, 0, 2000), request))
    assert [batch.num_rows for batch in batches] == [2000]
    batches = list(scan(OffsetRange(stratalog_topic, 0, 0, 2000), replace(request, rows_per_batch=600)))
    assert sum(batch.num_rows for batch in batches) == 2000
    assert len(batches) > 1


def test_record_of_ten_megabytes_is_read(stratalog_broker: BrokerProcess, stratalog_topic: str) -> None:
    value = b"x" * 10_000_000
    with Admin(stratalog_broker.bootstrap_servers) as admin:
        admin.alter_config(ConfigResource(ResourceKind.TOPIC, stratalog_topic), {"max.message.bytes": 20_000_000})
    with Producer(
        stratalog_broker.bootstrap_servers, max_request_size=20_000_000, buffer_memory=64_000_000
    ) as producer:
        producer.send(stratalog_topic, value=value)
        producer.send(stratalog_topic, value=b"small")
    batches = list(scan(OffsetRange(stratalog_topic, 0, 0, 2), request_to(stratalog_broker, ("value",))))
    assert [each for batch in batches for each in batch.column("value").to_pylist()] == [value, b"small"]


def test_scan_that_stops_early_leaves_its_connection_usable(
    stratalog_broker: BrokerProcess, stratalog_topic: str
) -> None:
    fill(stratalog_broker, stratalog_topic, 3000, size=100)
    request = replace(request_to(stratalog_broker, max_partition_fetch_bytes="5000"), rows_per_batch=100)
    before = threading.active_count()
    for _ in range(5):
        rows = scan(OffsetRange(stratalog_topic, 0, 0, 3000), request)
        assert next(rows).num_rows > 0
        rows.close()  # type: ignore[attr-defined]
    assert offsets_in(scan(OffsetRange(stratalog_topic, 0, 0, 3000), request)) == list(range(3000))
    assert threading.active_count() <= before + 1


def test_records_with_other_keys_are_skipped(stratalog_broker: BrokerProcess, stratalog_topic: str) -> None:
    fill(stratalog_broker, stratalog_topic, 300)
    request = replace(request_to(stratalog_broker), predicate=Predicate(keys=frozenset({b"7", b"250"})))
    assert offsets_in(scan(OffsetRange(stratalog_topic, 0, 0, 300), request)) == [7, 250]


# Transactions and compaction: gaps that are not a loss


def write_transactions(servers: str, topic: str) -> None:
    """Write offsets 0-2 committed, marker 3, 4-6 aborted, marker 7, 8-9 without a transaction."""
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "transactional.id": f"t-{topic}"})
    producer.init_transactions(30)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        for index in range(3):
            producer.produce(topic, value=b"%d" % index, partition=0)
        producer.flush(30)
        end(30)
    plain = confluent_kafka.Producer({"bootstrap.servers": servers})
    for index in range(2):
        plain.produce(topic, value=b"%d" % index, partition=0)
    plain.flush(30)


def test_aborted_records_and_markers_are_skipped(stratalog_broker: BrokerProcess, stratalog_topic: str) -> None:
    write_transactions(stratalog_broker.bootstrap_servers, stratalog_topic)
    offset_range = OffsetRange(stratalog_topic, 0, 0, 10)
    request = request_to(stratalog_broker)
    assert offsets_in(scan(offset_range, request)) == [0, 1, 2, 4, 5, 6, 8, 9]
    committed = replace(request, isolation="read_committed")
    assert offsets_in(scan(offset_range, committed)) == [0, 1, 2, 8, 9]
    assert offsets_in(scan(replace(offset_range, start=5), committed)) == [8, 9]
    assert offsets_in(scan(replace(offset_range, start=3, end=8), committed)) == []


def test_compacted_range_is_read_without_an_error(stratalog_new_broker: Callable[..., BrokerProcess]) -> None:
    broker = stratalog_new_broker(EAGER_BROKER)
    broker.create_topic("t", config=COMPACTED)
    with Producer(broker.bootstrap_servers) as producer:
        for index in range(300):
            producer.send("t", key=b"%d" % (index % 7 if index < 200 else index), value=b"%d" % index)
            if index % 10 == 9:
                producer.flush()
    wait_until_compacted(broker.bootstrap_servers, "t")
    left = offsets(broker.bootstrap_servers, "t")
    assert 100 <= len(left) < 120
    request = request_to(broker, max_partition_fetch_bytes="1000")
    for start, end in ((0, 300), (0, 100), (50, 150), (150, 195), (190, 250), (299, 300)):
        expected = [offset for offset in left if start <= offset < end]
        assert offsets_in(scan(OffsetRange("t", 0, start, end), request)) == expected


# Faults


def test_broken_connection_is_replaced(stratalog_broker: BrokerProcess, stratalog_topic: str) -> None:
    fill(stratalog_broker, stratalog_topic, 500, size=100)
    request = request_to(stratalog_broker, max_partition_fetch_bytes="5000")
    with stratalog_broker.disconnect(api="Fetch", count=3) as fault:
        assert offsets_in(scan(OffsetRange(stratalog_topic, 0, 0, 500), request)) == list(range(500))
        assert fault.met == 3


def test_restart_of_the_broker_does_not_fail_the_scan(stratalog_fresh_broker: BrokerProcess) -> None:
    broker = stratalog_fresh_broker
    broker.create_topic("t")
    fill(broker, "t", 1000, size=100)
    request = replace(request_to(broker, max_partition_fetch_bytes="2000"), rows_per_batch=50)
    rows = scan(OffsetRange("t", 0, 0, 1000), request)
    actual = next(rows).column("offset").to_pylist()
    broker.kill()
    starting = threading.Thread(target=broker.start)
    starting.start()
    try:
        actual += offsets_in(rows)
    finally:
        starting.join()
    assert actual == list(range(1000))


def test_broker_that_stays_away_is_an_error(stratalog_fresh_broker: BrokerProcess) -> None:
    broker = stratalog_fresh_broker
    broker.create_topic("t")
    fill(broker, "t", 10)
    broker.stop()
    request = replace(request_to(broker), patience_seconds=0.5)
    with pytest.raises(
        RequestTimeoutError, match=r"t-0 \[0, 10\): no records arrived within 0\.5 s, at offset 0.*refused"
    ):
        list(scan(OffsetRange("t", 0, 0, 10), request))


def test_missing_topic_is_reported(stratalog_broker: BrokerProcess) -> None:
    request = replace(request_to(stratalog_broker), patience_seconds=0.5)
    with pytest.raises(ClientError, match="nowhere-0"):
        list(scan(OffsetRange("nowhere", 0, 0, 10), request))


# Loss


def delete_before(broker: BrokerProcess, topic: str, offset: int) -> None:
    with Admin(broker.bootstrap_servers) as admin:
        admin.delete_records({TopicPartition(topic, 0): offset}).check()


def test_deleted_records_are_an_error(stratalog_broker: BrokerProcess, stratalog_topic: str) -> None:
    fill(stratalog_broker, stratalog_topic, 100)
    delete_before(stratalog_broker, stratalog_topic, 60)
    with pytest.raises(
        DataLossError, match=r"offsets 10 to 60 of .* the log starts at offset 60.*failOnDataLoss=false"
    ):
        list(scan(OffsetRange(stratalog_topic, 0, 10, 100), request_to(stratalog_broker)))


def test_deleted_records_are_skipped_on_request(
    stratalog_broker: BrokerProcess, stratalog_topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    fill(stratalog_broker, stratalog_topic, 100)
    delete_before(stratalog_broker, stratalog_topic, 60)
    request = replace(request_to(stratalog_broker), fail_on_data_loss=False)
    with caplog.at_level(logging.WARNING, "stratalog.spark"):
        assert offsets_in(scan(OffsetRange(stratalog_topic, 0, 10, 100), request)) == list(range(60, 100))
        assert offsets_in(scan(OffsetRange(stratalog_topic, 0, 10, 50), request)) == []
    assert "offsets 10 to 60" in caplog.text


@pytest.mark.parametrize("fails", [True, False])
def test_records_deleted_during_the_scan(stratalog_broker: BrokerProcess, stratalog_topic: str, fails: bool) -> None:
    """Prefetched records are still read; the others are lost, which is reported."""
    fill(stratalog_broker, stratalog_topic, 3000, size=100)
    request = replace(
        request_to(stratalog_broker, max_partition_fetch_bytes="5000"), rows_per_batch=50, fail_on_data_loss=fails
    )
    rows = scan(OffsetRange(stratalog_topic, 0, 0, 3000), request)
    actual = next(rows).column("offset").to_pylist()
    delete_before(stratalog_broker, stratalog_topic, 2500)
    if fails:
        with pytest.raises(DataLossError, match=r"offsets \d+ to 2500 of .* the log starts at offset 2500"):
            list(rows)
    else:
        actual += offsets_in(rows)
        before = actual[: actual.index(2500)]
        assert before == list(range(len(before)))
        assert len(before) < 2500
        assert actual[len(before) :] == list(range(2500, 3000))


@pytest.mark.parametrize("fails", [True, False])
def test_recreated_topic_is_not_read(stratalog_new_broker: Callable[..., BrokerProcess], fails: bool) -> None:
    broker = stratalog_new_broker()
    broker.create_topic("t")
    fill(broker, "t", 100)
    with Admin(broker.bootstrap_servers) as admin:
        topic_id = admin.describe_topic("t").id
    broker.delete_topic("t")
    broker.create_topic("t")
    fill(broker, "t", 50)
    offset_range = OffsetRange("t", 0, 40, 100, topic_id)
    request = replace(request_to(broker), fail_on_data_loss=fails)
    if fails:
        with pytest.raises(DataLossError, match="created again"):
            list(scan(offset_range, request))
    else:
        assert offsets_in(scan(offset_range, request)) == []

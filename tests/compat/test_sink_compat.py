"""The Spark sink with Apache Kafka, and prepared transactions in the output of Kafka's tool."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from stratalog.client import Admin, Producer
from stratalog.spark.sink_transactions import SinkError, resolved
from stratalog.spark.task_writer import write_plainly
from stratalog.spark.write_options import Delivery, parse
from stratalog.testing import BrokerProcess
from tests.compat.jvm import run_tool_or_fail
from tests.compat.kafka import KafkaServer
from tests.spark.committed import values

pytestmark = pytest.mark.compat


def test_sink_warns_that_kafka_gets_rows_at_least_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with KafkaServer(tmp_path / "kafka") as kafka:
        with Admin(kafka.bootstrap) as admin:
            admin.create_topic("orders", 2)
        given = {"kafka.bootstrap.servers": kafka.bootstrap, "topic": "orders"}
        with pytest.raises(SinkError, match="needs a Stratalog broker"):
            resolved(parse({**given, "delivery": "exactly-once"}))
        options = resolved(parse(given))
        assert options.delivery is Delivery.AT_LEAST_ONCE
        assert "delivery is at-least-once" in caplog.text
        rows = [str(number) for number in range(1000)]
        assert write_plainly([pa.record_batch({"value": rows})], options) == 1000
        assert values(kafka.bootstrap, "orders", 2) == sorted(rows)


def test_kafkas_tool_reads_a_prepared_transaction(stratalog_new_broker: Callable[..., BrokerProcess]) -> None:
    broker = stratalog_new_broker()
    broker.create_topic("orders")
    with Producer(broker.bootstrap_servers, transactional_id="prepared") as producer:
        producer.begin()
        producer.send("orders", b"v")
        prepared = producer.prepare_transaction()
        with Admin(broker.bootstrap_servers) as admin:
            admin.finish_transactions([prepared], commit=True)
        producer.commit()
    (states,) = (broker.data_dir / "__transaction_state-0").glob("*.log")
    output = run_tool_or_fail("kafka.tools.DumpLogSegments", ["--files", str(states), "--transaction-log-decoder"])
    said = [line for line in output.stdout.decode().splitlines() if '"transactionalId":"prepared"' in line]
    assert any('"transactionTimeoutMs":2147483647,"transactionStatus":1' in line for line in said)
    assert '"transactionTimeoutMs":60000,"transactionStatus":4' in said[-1]

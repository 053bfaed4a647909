"""Java's transactional clients and Kafka's tools for transactions against our broker; DumpLogSegments on its files."""

from __future__ import annotations

import re
from collections.abc import Iterator

import confluent_kafka
import pytest

from stratalog.records.builder import build_batch
from stratalog.storage.log_directory import LogDirectory
from tests.broker.process import BrokerProcess
from tests.clients.admin import create_topic
from tests.compat.java_tools import TOOLS, tool
from tests.compat.jvm import run_tool_or_fail
from tests.compat.log_dump import dump_log_segments, segment_files

pytestmark = pytest.mark.compat

COMMAND = "TransactionsCommand"
HANGING = 4000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Start a broker with a transaction in hanging-0 that no coordinator knows."""
    settings = {
        "group.initial.rebalance.delay.ms": 0,
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.num.partitions": 1,
    }
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", settings) as running:
        create_topic(running.address, "hanging")
        running.stop()
        with LogDirectory.open(running.data_dir, background=False) as directory:
            batch = build_batch(
                [(b"k", b"v")], producer_id=HANGING, producer_epoch=3, base_sequence=0, is_transactional=True
            )
            directory.log("hanging", 0).append(batch)
        running.start()
        yield running
        assert running.errors() == []


def rows(broker: BrokerProcess, *arguments: str) -> list[dict[str, str]]:
    lines = [re.split(r"\s*\t", line) for line in tool(broker, COMMAND, *arguments).splitlines() if "\t" in line]
    return [dict(zip(lines[0], line, strict=False)) for line in lines[1:]]


def consumed(broker: BrokerProcess, topic: str) -> list[str]:
    level = ["--isolation-level", "read_committed", "--from-beginning", "--timeout-ms", "4000"]
    return [line for line in tool(broker, "consumer.ConsoleConsumer", "--topic", topic, *level).splitlines() if line]


def test_javas_producer_gets_a_new_epoch_with_each_transaction(broker: BrokerProcess) -> None:
    create_topic(broker.address, "perf", 2)
    load = ["--num-records", "5000", "--record-size", "20", "--throughput", "-1", "--topic", "perf"]
    ends = ["--transactional-id", "java", "--transaction-duration-ms", "50"]
    properties = ["--producer-props", f"bootstrap.servers={broker.address}"]
    run_tool_or_fail(TOOLS + "ProducerPerformance", [*load, *ends, *properties])
    assert len(consumed(broker, "perf")) == 5000
    (described,) = rows(broker, "describe", "--transactional-id", "java")
    assert described["TransactionState"] == "CompleteCommit"
    assert int(described["ProducerEpoch"]) >= 1  # one a transaction: transaction.version 2
    assert "java" in {row["TransactionalId"] for row in rows(broker, "list")}


def test_javas_copier_copies_each_record_once(broker: BrokerProcess) -> None:
    create_topic(broker.address, "copier-in")
    create_topic(broker.address, "copier-out")
    inputs = [f"value-{number}" for number in range(200)]
    tool(broker, "ConsoleProducer", "--topic", "copier-in", stdin="".join(value + "\n" for value in inputs))
    arguments = ["--broker-list", broker.address, "--transactional-id", "copier", "--consumer-group", "copier"]
    arguments += ["--input-topic", "copier-in", "--input-partition", "0", "--output-topic", "copier-out"]
    arguments += ["--transaction-size", "17", "--enable-random-aborts", "--max-messages", "200"]
    run_tool_or_fail(TOOLS + "TransactionalMessageCopier", arguments)
    assert consumed(broker, "copier-out") == inputs


def test_hanging_transaction_is_found_and_aborted(broker: BrokerProcess) -> None:
    producers = rows(broker, "describe-producers", "--topic", "hanging", "--partition", "0")
    assert [row["ProducerId"] for row in producers] == [str(HANGING)]
    tool(broker, COMMAND, "abort", "--topic", "hanging", "--partition", "0", "--start-offset", "0")
    (producer,) = rows(broker, "describe-producers", "--topic", "hanging", "--partition", "0")
    assert producer["CurrentTransactionStartOffset"] == "None"


def test_dump_log_segments_reads_markers_indexes_and_state(broker: BrokerProcess) -> None:
    create_topic(broker.address, "dumped")
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.address, "transactional.id": "dumped"})
    producer.init_transactions(30)
    for aborted in (True, False):
        producer.begin_transaction()
        producer.produce("dumped", b"v")
        producer.flush(30)
        (producer.abort_transaction if aborted else producer.commit_transaction)(30)
    # The other indexes of an active segment are preallocated, and the tool takes the free space for entries.
    files = [file for file in segment_files(broker.data_dir / "dumped-0") if file.suffix in (".log", ".txnindex")]
    dump = dump_log_segments(files, "--print-data-log")
    assert dump.complaints_but() == []
    (log,) = [file for file in files if file.suffix == ".log"]
    controls = [record.control for record in dump[log].records]
    assert [control.split()[1] for control in controls if control is not None] == ["ABORT", "COMMIT"]
    assert [file.suffix for file in files].count(".txnindex") == 1
    (states,) = (broker.data_dir / "__transaction_state-0").glob("*.log")
    output = run_tool_or_fail("kafka.tools.DumpLogSegments", ["--files", str(states), "--transaction-log-decoder"])
    said = [line for line in output.stdout.decode().splitlines() if '"transactionalId":"dumped"' in line]
    assert [re.findall(r'"transactionStatus":(\d)', line) for line in said][:1] == [["0"]]
    assert '"transactionStatus":4' in said[-1]
    assert '"topic":"dumped","partitionIds":[0]' in "".join(said)

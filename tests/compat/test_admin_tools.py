"""Kafka's tools for topics, records, directories, producers and the cluster, against our broker."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.process import BrokerProcess
from tests.compat.jvm import run_tool, run_tool_or_fail

pytestmark = pytest.mark.compat

TOPIC_COMMAND = "org.apache.kafka.tools.TopicCommand"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", {"num.partitions": 2}) as running:
        yield running


def topics(broker: BrokerProcess, *arguments: str) -> str:
    return run_tool_or_fail(TOPIC_COMMAND, ["--bootstrap-server", broker.address, *arguments]).stdout.decode()


def refused(broker: BrokerProcess, *arguments: str) -> str:
    output = run_tool(TOPIC_COMMAND, ["--bootstrap-server", broker.address, *arguments])
    assert output.exit_code != 0
    return output.stdout.decode() + output.stderr


def produce(broker: BrokerProcess, topic: str, *values: str) -> None:
    run_tool_or_fail(
        "org.apache.kafka.tools.ConsoleProducer",
        ["--bootstrap-server", broker.address, "--topic", topic],
        stdin="".join(f"{value}\n" for value in values).encode(),
    )


def test_topic_command_creates_grows_describes_and_deletes(broker: BrokerProcess) -> None:
    created = topics(broker, "--create", "--topic", "orders", "--config", "retention.ms=5000", "--config", "flush.ms=9")
    assert "Created topic orders." in created
    topics(broker, "--alter", "--topic", "orders", "--partitions", "4")
    described = topics(broker, "--describe", "--topic", "orders")
    assert "PartitionCount: 4\tReplicationFactor: 1\tConfigs: flush.ms=9,retention.ms=5000" in described
    assert described.count("Leader: 1\tReplicas: 1\tIsr: 1") == 4
    topics(broker, "--create", "--topic", "assigned", "--replica-assignment", "1,1,1")
    assert topics(broker, "--list").split() == ["assigned", "orders"]
    topics(broker, "--delete", "--topic", "assigned")
    assert topics(broker, "--list").split() == ["orders"]


def test_topic_command_says_why_it_was_refused(broker: BrokerProcess) -> None:
    topics(broker, "--create", "--if-not-exists", "--topic", "there", "--partitions", "2")
    assert "topic 'there' exists already" in refused(broker, "--create", "--topic", "there")
    assert "replication factor is 3; it must be 1" in refused(
        broker, "--create", "--topic", "three", "--replication-factor", "3"
    )
    assert "tiered storage is not available" in refused(
        broker, "--create", "--topic", "c", "--config", "remote.storage.enable=true"
    )
    assert "has 2 partitions; the new number is 1, and it must be higher" in refused(
        broker, "--alter", "--topic", "there", "--partitions", "1"
    )
    assert "room for" in refused(broker, "--create", "--topic", "many", "--partitions", "2000000000")


def test_delete_records_moves_the_start(broker: BrokerProcess, tmp_path: Path) -> None:
    topics(broker, "--create", "--topic", "trimmed", "--partitions", "1")
    produce(broker, "trimmed", *"abcde")
    offsets = tmp_path / "offsets.json"
    wanted = [{"topic": "trimmed", "partition": 0, "offset": 3}]
    offsets.write_text(json.dumps({"version": 1, "partitions": wanted}))
    arguments = ["--bootstrap-server", broker.address, "--offset-json-file", str(offsets)]
    output = run_tool_or_fail("org.apache.kafka.tools.DeleteRecordsCommand", arguments).stdout.decode()
    assert "low_watermark: 3" in output
    read = run_tool_or_fail(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        [
            *("--bootstrap-server", broker.address, "--topic", "trimmed", "--partition", "0"),
            *("--offset", "earliest", "--max-messages", "2"),
        ],
    )
    assert read.stdout.decode().split() == ["d", "e"]


def test_log_dirs_are_described_with_sizes(broker: BrokerProcess) -> None:
    topics(broker, "--create", "--topic", "sized", "--partitions", "2")
    produce(broker, "sized", "a")
    arguments = ["--bootstrap-server", broker.address, "--describe", "--topic-list", "sized"]
    output = run_tool_or_fail("org.apache.kafka.tools.LogDirsCommand", arguments).stdout.decode()
    [directory] = json.loads(output.splitlines()[-1])["brokers"][0]["logDirs"]
    assert (directory["logDir"], directory["error"]) == (str(broker.data_dir), None)
    on_disk = {path.name: (path / f"{0:020}.log").stat().st_size for path in broker.data_dir.glob("sized-*")}
    assert {each["partition"]: each["size"] for each in directory["partitions"]} == on_disk
    assert max(on_disk.values()) > 0


def test_producers_of_a_partition_are_described(broker: BrokerProcess) -> None:
    topics(broker, "--create", "--topic", "produced", "--partitions", "1")
    produce(broker, "produced", "a", "b", "c")
    arguments = ["--bootstrap-server", broker.address, "describe-producers", "--topic", "produced", "--partition", "0"]
    output = run_tool_or_fail("org.apache.kafka.tools.TransactionsCommand", arguments).stdout.decode()
    [header, row] = [line.split() for line in output.splitlines() if line.strip()]
    producer = dict(zip(header, row, strict=True))
    assert (producer["ProducerEpoch"], producer["LastSequence"]) == ("0", "2")
    assert producer["CurrentTransactionStartOffset"] == "None"


def test_cluster_is_described(broker: BrokerProcess) -> None:
    arguments = ["--bootstrap-server", broker.address]
    output = run_tool_or_fail("org.apache.kafka.tools.ClusterTool", ["cluster-id", *arguments]).stdout.decode()
    [cluster_id] = re.findall(r"Cluster ID: (\S+)", output)
    assert f"cluster.id={cluster_id}" in (broker.data_dir / "meta.properties").read_text()
    listed = run_tool_or_fail("org.apache.kafka.tools.ClusterTool", ["list-endpoints", *arguments]).stdout.decode()
    assert re.search(rf"\b1\s+127\.0\.0\.1\s+{broker.port}\b", listed)


def test_transactional_producer_of_java_is_served(broker: BrokerProcess) -> None:
    topics(broker, "--create", "--topic", "transacted", "--partitions", "1")
    output = run_tool(
        "org.apache.kafka.tools.ProducerPerformance",
        [
            *("--topic", "transacted", "--num-records", "1", "--throughput", "-1", "--record-size", "10"),
            *("--transactional-id", "tx", "--producer-props", f"bootstrap.servers={broker.address}"),
        ],
        seconds=30,
    )
    assert output.exit_code == 0, output.stderr
    assert "1 records sent" in output.stdout.decode()

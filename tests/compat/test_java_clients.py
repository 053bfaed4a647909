"""The Java clients, through Apache Kafka's own programs: every codec, consuming, groups of both protocols."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stratalog.records.batch import batches
from stratalog.records.format import Codec
from tests.broker.process import BrokerProcess
from tests.compat.java_tools import EventfulTool, running, tool, wait_until
from tests.compat.jvm import run_tool_or_fail
from tests.compat.kafka import dump_log_segments, segment_files
from tests.golden.generate import plan
from tests.golden.generate.clients import produce, read_back

pytestmark = pytest.mark.compat

SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1000,
    "group.consumer.session.timeout.ms": 3000,
    "group.consumer.heartbeat.interval.ms": 300,
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", SETTINGS) as running:
        yield running
        assert running.errors() == []


def create(broker: BrokerProcess, topic: str, partitions: int) -> None:
    tool(broker, "TopicCommand", "--create", "--topic", topic, "--partitions", str(partitions))


def test_the_java_producer_and_consumer_with_every_codec(broker: BrokerProcess) -> None:
    """Plain and idempotent producers send nulls, headers and falling timestamps. Batches have the requested codec."""
    topics = [
        plan.Topic(f"java-{mode}-{codec}", codec, mode, plan.every_kind_of_record(every_null=True))
        for codec, mode in (*((codec, "plain") for codec in plan.CODECS), ("lz4", "idempotent"))
    ]
    produce("java", broker.address, topics)
    found = read_back(broker.address, [topic.name for topic in topics])
    for topic in topics:
        sent = [record for step in topic.steps for record in step["records"]]
        read = found[topic.name]["records"]
        assert [record["offset"] for record in read] == list(range(len(sent)))
        for record, original in zip(read, sent, strict=True):
            assert {name: record[name] for name in original} == original
        assert found[topic.name]["committed"] == list(range(len(sent)))
        (log,) = (broker.data_dir / f"{topic.name}-0").glob("*.log")
        assert {batch.header.codec for batch in batches(log.read_bytes())} == {Codec[topic.codec.upper()]}


def test_console_producer_and_consumer(broker: BrokerProcess) -> None:
    properties = ["--property", "parse.key=true", "--property", "parse.headers=true"]
    lines = "trace:1,user:ada\tkey one\tvalue one\ntrace:2\tkey two\tvalue two\n"
    tool(broker, "ConsoleProducer", "--topic", "console", *properties, "--compression-codec", "zstd", stdin=lines)
    shown = [f"--property=print.{name}=true" for name in ("headers", "key", "offset", "partition")]
    read = tool(
        broker,
        "consumer.ConsoleConsumer",
        *("--topic", "console", "--group", "console-readers", "--from-beginning", "--max-messages", "2", *shown),
    )
    assert read.splitlines() == [
        "Partition:0\tOffset:0\ttrace:1,user:ada\tkey one\tvalue one",
        "Partition:0\tOffset:1\ttrace:2\tkey two\tvalue two",
    ]


def consumed(*consumers: EventfulTool) -> dict[int, int]:
    """Return the number of consumed records by partition."""
    counts: dict[int, int] = {}
    for consumer in consumers:
        for event in consumer.named("records_consumed"):
            for one in event["partitions"]:
                counts[one["partition"]] = counts.get(one["partition"], 0) + one["count"]
    return counts


def owned(consumer: EventfulTool) -> set[int]:
    """Return the partitions that were assigned and not revoked, by the events so far."""
    partitions: set[int] = set()
    for event in list(consumer.events):
        changed = {one["partition"] for one in event.get("partitions", [])}
        if event["name"] == "partitions_assigned":
            partitions |= changed
        elif event["name"] == "partitions_revoked":
            partitions -= changed
    return partitions


VARIANTS: dict[str, list[str]] = {
    "classic, range": ["--group-protocol", "classic", "--session-timeout", "3000"],
    "classic, cooperative": [
        *("--group-protocol", "classic", "--session-timeout", "3000"),
        *("--assignment-strategy", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"),
    ],
    "consumer": ["--group-protocol", "consumer"],
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_verifiable_consumers_share_the_records_of_the_verifiable_producer(
    broker: BrokerProcess, variant: str, tmp_path: Path
) -> None:
    """When one of two members is killed, the other reads all partitions from the committed offsets."""
    topic = "verified-" + variant.replace(", ", "-")
    create(broker, topic, 4)
    heartbeats = tmp_path / "heartbeats.properties"
    heartbeats.write_text("heartbeat.interval.ms=300\n" if "classic" in variant else "")
    arguments = ["--topic", topic, "--group-id", topic, *VARIANTS[variant], "--consumer.config", str(heartbeats)]
    with (
        running(broker, "VerifiableConsumer", *arguments) as one,
        running(broker, "VerifiableConsumer", *arguments) as two,
    ):
        both = (one, two)
        wait_until(lambda: len(owned(one)) == len(owned(two)) == 2 and owned(one) | owned(two) == {0, 1, 2, 3}, both)
        send(broker, topic, 2000)
        wait_until(lambda: sum(consumed(*both).values()) >= 2000, both)
        assert consumed(*both) == {partition: end for partition, end in ends(broker, topic).items() if end}
        assert all(event["success"] for consumer in both for event in consumer.named("offsets_committed"))
        two.kill()
        wait_until(lambda: owned(one) == {0, 1, 2, 3}, [one])
        send(broker, topic, 1000)
        wait_until(lambda: sum(consumed(*both).values()) >= 3000, [one])
        assert consumed(*both) == {partition: end for partition, end in ends(broker, topic).items() if end}
        one.stop()
        assert one.named("shutdown_complete")


def send(broker: BrokerProcess, topic: str, count: int) -> None:
    output = tool(broker, "VerifiableProducer", "--topic", topic, "--max-messages", str(count), "--acks", "-1")
    events = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    acknowledged = [event for event in events if event["name"] == "producer_send_success"]
    assert sorted(int(event["value"]) for event in acknowledged) == list(range(count))


def ends(broker: BrokerProcess, topic: str, time: str = "-1") -> dict[int, int]:
    output = tool(broker, "GetOffsetShell", "--topic", topic, "--time", time)
    rows = [line.split(":") for line in output.split()]
    return {int(partition): int(offset) for _, partition, offset in rows}


def test_get_offset_shell_finds_both_ends_and_times(broker: BrokerProcess) -> None:
    create(broker, "offsets", 1)
    start = 1_700_000_000_000
    times = ["--message-create-time", str(start), "--max-messages", "10", "--acks", "-1"]
    tool(broker, "VerifiableProducer", "--topic", "offsets", *times)
    assert ends(broker, "offsets", "earliest") == {0: 0}
    assert ends(broker, "offsets", "latest") == {0: 10}
    assert 0 <= ends(broker, "offsets", "max-timestamp")[0] <= 9  # several records may have this timestamp
    assert ends(broker, "offsets", str(start)) == {0: 0}


def test_performance_tools_succeed(broker: BrokerProcess) -> None:
    create(broker, "performance", 3)
    settings = [f"bootstrap.servers={broker.address}", "compression.type=lz4", "acks=all"]
    amount = ["--num-records", "100000", "--record-size", "200", "--throughput", "-1"]
    produced = run_tool_or_fail(
        "org.apache.kafka.tools.ProducerPerformance",
        ["--topic", "performance", *amount, "--producer-props", *settings],
    )
    assert b"100000 records sent" in produced.stdout
    read = tool(broker, "ConsumerPerformance", "--topic", "performance", "--messages", "100000", "--hide-header")
    columns = [column.strip() for column in read.splitlines()[-1].split(",")]
    assert int(columns[4]) == 100_000


def test_kafkas_dumper_finds_no_fault_in_the_brokers_files(broker: BrokerProcess) -> None:
    """Runs last, after a clean stop, on the files of all programs above."""
    broker.stop()
    partitions = [path for path in sorted(broker.data_dir.iterdir()) if has_records(path)]
    assert len(partitions) > 10
    files = [file for path in partitions for file in segment_files(path)]
    found: list[Any] = []
    for flags in (["--deep-iteration"], ["--index-sanity-check"]):
        found += dump_log_segments(files, *flags).complaints
    assert found == []
    broker.start()


def has_records(path: Path) -> bool:
    return path.is_dir() and any(log.stat().st_size for log in path.glob("*.log"))

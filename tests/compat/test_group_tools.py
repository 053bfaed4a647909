"""Kafka's ConsumerGroupCommand against our broker: groups of both protocols described, reset and deleted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.broker.process import BrokerProcess
from tests.compat.java_tools import EventfulTool, running, tool, wait_until
from tests.compat.jvm import run_tool

pytestmark = pytest.mark.compat

COMMAND = "consumer.group.ConsumerGroupCommand"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"group.initial.rebalance.delay.ms": 0, "num.partitions": 2}
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", settings) as running:
        yield running
        assert running.errors() == []


def groups(broker: BrokerProcess, *arguments: str) -> list[dict[str, str]]:
    """Run the command and return the rows of the table that it prints."""
    rows = [line.split() for line in tool(broker, COMMAND, *arguments).splitlines() if line.strip()]
    header = next(index for index, row in enumerate(rows) if row[0] == "GROUP")
    width = len(rows[header])
    return [dict(zip(rows[header], row, strict=False)) for row in rows[header + 1 :] if len(row) >= min(width, 3)]


def produce(broker: BrokerProcess, topic: str, count: int) -> None:
    """Produce records with keys, so that both partitions get some, the same each time."""
    lines = "".join(f"{number}\tvalue\n" for number in range(count))
    tool(broker, "ConsoleProducer", "--topic", topic, "--property", "parse.key=true", stdin=lines)


def consumed(consumer: EventfulTool) -> int:
    return sum(event["count"] for event in consumer.named("records_consumed"))


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_is_described_with_its_lag_reset_and_deleted(broker: BrokerProcess, protocol: str) -> None:
    name = f"story-{protocol}"
    produce(broker, name, 100)
    arguments = ["--topic", name, "--group-id", name, "--group-protocol", protocol]
    with running(broker, "VerifiableConsumer", *arguments) as consumer:
        wait_until(lambda: consumed(consumer) >= 100 and bool(consumer.named("offsets_committed")), [consumer])
        described = groups(broker, "--describe", "--group", name)
        assert sum(int(row["CURRENT-OFFSET"]) for row in described) == 100
        assert {(row["TOPIC"], row["PARTITION"], row["LAG"]) for row in described} == {
            (name, "0", "0"),
            (name, "1", "0"),
        }
        assert {row["HOST"] for row in described} == {"/127.0.0.1"}
        (member,) = groups(broker, "--describe", "--group", name, "--members", "--verbose")
        assert member["#PARTITIONS"] == "2"
        (state,) = groups(broker, "--describe", "--group", name, "--state")
        assert "Stable" in state.values()
        consumer.stop()
    produce(broker, name, 10)
    described = groups(broker, "--describe", "--group", name)
    assert sum(int(row["LAG"]) for row in described) == 10
    assert {row["CONSUMER-ID"] for row in described} == {"-"}

    reset = groups(broker, "--reset-offsets", "--group", name, "--topic", f"{name}:1", "--to-earliest", "--execute")
    assert [(row["PARTITION"], row["NEW-OFFSET"]) for row in reset] == [("1", "0")]
    moved = groups(broker, "--reset-offsets", "--group", name, "--topic", f"{name}:1", "--shift-by", "3", "--execute")
    assert [(row["PARTITION"], row["NEW-OFFSET"]) for row in moved] == [("1", "3")]
    time = "2001-01-01T00:00:00.000"
    by_time = groups(broker, "--reset-offsets", "--group", name, "--all-topics", "--to-datetime", time, "--dry-run")
    assert {row["NEW-OFFSET"] for row in by_time} == {"0"}
    tool(broker, COMMAND, "--delete-offsets", "--group", name, "--topic", f"{name}:0")
    left = {row["PARTITION"]: row["CURRENT-OFFSET"] for row in groups(broker, "--describe", "--group", name)}
    assert left.get("0", "-") == "-"
    assert left["1"] == "3"

    assert name in tool(broker, COMMAND, "--list").split()
    assert "Deletion of requested consumer groups" in tool(broker, COMMAND, "--delete", "--group", name)
    assert name not in tool(broker, COMMAND, "--list").split()


def test_requests_that_need_an_empty_group_are_refused(broker: BrokerProcess) -> None:
    name = "living"
    produce(broker, name, 10)
    with running(broker, "VerifiableConsumer", "--topic", name, "--group-id", name) as consumer:
        wait_until(lambda: consumed(consumer) >= 10, [consumer])
        assert "GroupNotEmptyException" in refused(broker, "--delete", "--group", name)
        reset = ["--reset-offsets", "--group", name, "--topic", name, "--to-earliest", "--execute"]
        assert "the current state is Stable" in refused(broker, *reset)
        delete = ["--delete-offsets", "--group", name, "--topic", name]
        assert "subscribed" in refused(broker, *delete)


def refused(broker: BrokerProcess, *arguments: str) -> str:
    """Run a command that is refused, and return its output; its exit code is always 0."""
    output = run_tool("org.apache.kafka.tools." + COMMAND, ["--bootstrap-server", broker.address, *arguments])
    return output.stdout.decode() + output.stderr

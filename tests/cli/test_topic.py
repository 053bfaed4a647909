from __future__ import annotations

import os
import pty
import subprocess

import pytest

from tests.cli.running import COMMAND, invoke, json_of, one_line_error
from tests.cli.topics import Seen, write_topic

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def done(*arguments: object) -> str:
    result = invoke("topic", *arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def test_life_of_a_topic(empty_server: str) -> None:
    assert "no topics yet" in done("list")
    assert done(
        "create", "orders", "--partitions", 3, "--set", "retention.ms=1000", "--config", "segment.bytes=2000000"
    )
    assert done("create", "payments") == "created payments: 2 partitions\n"
    assert [(row["topic"], row["partitions"]) for row in json_of("topic", "list")] == [("orders", 3), ("payments", 2)]
    write_topic(empty_server, "orders", [Seen(None, b"tea", (), 1)])
    (orders,) = json_of("topic", "describe", "orders")
    assert orders["settings"] == {"retention.ms": "1000", "segment.bytes": "2000000"}
    assert [(row["start_offset"], row["end_offset"]) for row in orders["partitions"]] == [(0, 0), (0, 1), (0, 0)]
    assert orders["partitions"][1]["size"] > 60
    assert done("alter", "orders", "--set", "retention.ms=2000", "--unset", "segment.bytes").splitlines() == [
        "set retention.ms of orders to 2000",
        "set segment.bytes of orders to its default",
    ]
    assert json_of("topic", "describe", "orders")[0]["settings"] == {"retention.ms": "2000"}
    assert done("add-partitions", "orders", 5) == "orders has 5 partitions; it had 3\n"
    assert done("delete", "orders", "payments") == "deleted orders\ndeleted payments\n"
    assert json_of("topic", "list") == []


def test_description_reads_well(empty_server: str) -> None:
    done("create", "orders", "--partitions", 1, "--set", "cleanup.policy=delete")
    write_topic(empty_server, "orders", [Seen(None, b"tea")])
    title, columns, partition, setting = done("describe", "orders").splitlines()
    assert title.startswith("orders  1 partition, 1 replica, at most 1 record, ")
    assert columns.split() == ["partition", "leader", "replicas", "in", "sync", "start", "end", "size"]
    assert partition.split()[:6] == ["0", "1", "1", "1", "0", "1"]
    assert setting == "  cleanup.policy=delete"


def test_errors_about_topics_name_the_topic_once_with_advice(empty_server: str) -> None:
    done("create", "web.clicks", "--partitions", 1)
    message = one_line_error(invoke("topic", "create", "web.clicks"))
    assert message == "stratalog: topic 'web.clicks' already exists; choose another name, or use the existing topic\n"
    message = one_line_error(invoke("topic", "create", "web_clicks"))
    assert message.endswith("are the same in the names of metrics; choose another name\n")
    message = one_line_error(invoke("topic", "add-partitions", "web.clicks", 1))
    assert message.endswith(": topic 'web.clicks' has 1 partition; the new number is 1, and it must be higher\n")
    message = one_line_error(invoke("topic", "alter", "web.clicks", "--set", "cleanup.policy=both"))
    assert message.endswith("it must be one of: delete, compact, or several with commas: delete,compact\n")
    invoke("consume", "web.clicks", "--group", "g")
    message = one_line_error(invoke("topic", "delete", "__consumer_offsets", "--yes"))
    assert message.endswith("is an internal topic and can't be deleted\n")


def test_unknown_host_is_reported_with_advice() -> None:
    message = invoke("topic", "list", "-b", "nowhere.invalid:9092").stderr.splitlines()[-1]
    assert "can't be resolved" in message
    assert message.endswith("; check the name, or give another --bootstrap-server")


def test_internal_topics_are_shown_when_asked_for(empty_server: str) -> None:
    done("create", "orders")
    invoke("consume", "orders", "--group", "g")
    assert "__consumer_offsets" not in done("list")
    assert "__consumer_offsets" in done("list", "--internal")


def test_dry_run_changes_nothing(empty_server: str) -> None:
    assert done("create", "orders", "-p", 3, "--dry-run") == "would create orders: 3 partitions\n"
    assert json_of("topic", "list") == []
    done("create", "orders")
    assert "would set" in done("alter", "orders", "--set", "retention.ms=1", "--dry-run")
    assert "would have 9" in done("add-partitions", "orders", 9, "--dry-run")
    (orders,) = json_of("topic", "describe", "orders")
    assert (len(orders["partitions"]), orders["settings"]) == (2, {})


@pytest.mark.parametrize(("answer", "is_deleted"), [(b"y\n", True), (b"n\n", False), (b"\n", False)])
def test_topic_is_not_deleted_on_a_terminal_without_a_yes(empty_server: str, answer: bytes, is_deleted: bool) -> None:
    done("create", "orders")
    ours, terminal = pty.openpty()
    os.write(ours, answer)
    deletion = subprocess.run([*COMMAND, "topic", "delete", "orders"], stdin=terminal, capture_output=True, text=True)
    os.close(ours)
    os.close(terminal)
    question, _, refusal = deletion.stderr.partition("[y/N] ")
    assert question == "Delete orders with all records? "
    assert (deletion.returncode == 0) == is_deleted == (refusal == "")
    assert ("orders" in done("list")) != is_deleted


def test_existing_and_missing_topics_can_be_accepted(empty_server: str) -> None:
    done("create", "orders", "--if-not-exists")
    assert done("create", "orders", "new", "--if-not-exists") == "created new: 2 partitions\n"
    assert done("delete", "nowhere", "new", "--if-exists", "--yes") == "deleted new\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["create", "orders"], "'orders' already exists"),
        (["create", "or/ders"], "letters, digits"),
        (["create", "new", "--set", "retention.mss=1"], "did you mean retention.ms?"),
        (["create", "new", "--set", "retention.ms"], "retention.ms=86400000"),
        (["create", "new", "--replication-factor", "3"], "replication factor is 3"),
        (["describe", "nowhere"], "'nowhere'"),
        (["delete", "nowhere"], "'nowhere'"),
        (["alter", "nowhere", "--set", "retention.ms=1"], "'nowhere'"),
        (["alter", "orders"], "--set NAME=VALUE"),
        (["alter", "orders", "--set", "retention.ms=x"], "retention.ms is 'x'"),
        (["alter", "orders", "--set", "retention.ms=1", "--unset", "retention.ms"], "--unset"),
        (["add-partitions", "orders", "1"], "it must be higher"),
        (["add-partitions", "nowhere", "5"], "'nowhere'"),
        (["nonsense"], "--help"),
    ],
)
def test_invalid_arguments_are_refused_in_one_line_with_advice(
    empty_server: str, arguments: list[str], message: str
) -> None:
    done("create", "orders")
    assert message in one_line_error(invoke("topic", *arguments))


def test_missing_topic_does_not_hide_the_others(empty_server: str) -> None:
    done("create", "orders")
    result = invoke("topic", "describe", "nowhere", "orders")
    assert result.stdout.startswith("orders  2 partitions")
    assert "'nowhere'" in one_line_error(result)


@pytest.mark.parametrize("arguments", [["delete"], ["describe"], ["alter", "--set", "retention.ms=1"]])
def test_missing_topic_is_reported_with_commands(server: str, arguments: list[str]) -> None:
    message = one_line_error(invoke("topic", *arguments, "nope"))
    assert message.startswith("stratalog: topic 'nope' does not exist; `stratalog topic list` shows all topics")
    assert ("stratalog topic create nope" in message) == (arguments != ["delete"])


@pytest.mark.parametrize("command", [["topic", "describe"], ["topic", "delete"], ["consume"], ["topic", "alter"]])
def test_mistyped_topic_gets_a_suggestion(empty_server: str, command: list[str]) -> None:
    assert invoke("topic", "create", "orders", "payments").exit_code == 0
    more = ["--set", "retention.ms=1"] if command[-1] == "alter" else []
    message = one_line_error(invoke(*command, "ordrs", *more))
    assert "topic 'ordrs' does not exist; did you mean 'orders'? `stratalog topic list` shows all topics" in message

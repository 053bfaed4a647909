from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer

from stratalog.client import Admin
from stratalog.client.metadata import TopicPartition
from tests.cli.running import invoke, json_of, one_line_error
from tests.cli.topics import Seen, write_topic

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

START = 1_700_000_000_000  # records have times a second apart


@pytest.fixture
def server(empty_server: str) -> str:
    """A broker with a topic `orders` of two partitions: ten records in the first, no record in the second."""
    assert invoke("topic", "create", "orders", "--partitions", 2).exit_code == 0
    write_topic(empty_server, "orders", [Seen(None, b"%d" % number) for number in range(10)], START)
    return empty_server


@pytest.fixture
def billing(server: str) -> None:
    """A group that has read four records, and has no members."""
    assert invoke("consume", "orders", "--group", "billing", "--count", 4).exit_code == 0


@pytest.fixture
def member(server: str) -> Iterator[None]:
    """A consumer of group `shipping`, which has all partitions."""
    consumer = Consumer(
        {
            "bootstrap.servers": server,
            "group.id": "shipping",
            "client.id": "truck",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["orders"])
    assert consumer.poll(30) is not None
    yield
    consumer.close()


def done(*arguments: object) -> str:
    result = invoke("group", *arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def described(group: str) -> dict[str, Any]:
    (description,) = json_of("group", "describe", group)
    return description


def committed(group: str) -> dict[int, int | None]:
    return {row["partition"]: row["committed_offset"] for row in described(group)["partitions"]}


def test_groups_are_listed_with_their_state(server: str, billing: None, member: None) -> None:
    assert {row["group"]: row["state"] for row in json_of("group", "list")} == {
        "billing": "Empty",
        "shipping": "Stable",
    }
    assert [row["group"] for row in json_of("group", "list", "--state", "Empty")] == ["billing"]
    assert done("list").splitlines()[0].split() == ["group", "type", "state"]


def test_empty_result_of_a_state_filter_mentions_the_other_groups(server: str, billing: None) -> None:
    assert [row["group"] for row in json_of("group", "list", "--state", "empty")] == ["billing"]
    message = done("list", "--state", "Stable", "--state", "dead")
    assert message == "no group is in state 'Stable' or 'Dead'; `stratalog group list` shows all 1\n"


def test_empty_list_of_groups_is_reported(server: str) -> None:
    assert "no groups" in done("list")


def test_description_has_lag(server: str, billing: None) -> None:
    description = described("billing")
    assert (description["state"], description["lag"], description["members"]) == ("Empty", 6, [])
    assert description["partitions"][0] == {
        "topic": "orders",
        "partition": 0,
        "committed_offset": 4,
        "start_offset": 0,
        "end_offset": 10,
        "lag": 6,
        "member": None,
    }
    title, columns, first = done("describe", "billing").splitlines()[:3]
    assert "lag 6" in title
    assert columns.split() == ["topic", "partition", "committed", "end", "lag", "client", "host", "member"]
    assert first.split() == ["orders", "0", "4", "10", "6", "-", "-", "-"]


def test_lag_counts_partitions_without_a_commit(server: str) -> None:
    write_topic(server, "orders", [Seen(None, b"%d" % number, partition=1) for number in range(3)])
    done("reset", "billing", "--topic", "orders:0", "--to-offset", 4, "--create")
    description = described("billing")
    assert committed("billing") == {0: 4, 1: None}
    assert [row["lag"] for row in description["partitions"]] == [6, 3]
    assert description["lag"] == 9
    title, _, _, second, note = done("describe", "billing").splitlines()
    assert "lag 9" in title
    assert second.split() == ["orders", "1", "-", "3", "3", "-", "-", "-"]
    assert "from the start of the log" in note


def test_lag_without_a_commit_leaves_out_deleted_records(server: str) -> None:
    with Admin(server) as admin:
        admin.delete_records({TopicPartition("orders", 0): 8}).check()
    done("reset", "billing", "--topic", "orders:1", "--to-offset", 0, "--create")
    assert [row["lag"] for row in described("billing")["partitions"]] == [2, 0]


def test_commits_of_a_deleted_topic_have_no_lag(server: str, billing: None, member: None) -> None:
    assert invoke("topic", "delete", "orders").exit_code == 0
    assert described("shipping")["lag"] == 0
    assert "from the start" not in done("describe", "shipping")


def test_description_has_members(server: str, member: None) -> None:
    description = described("shipping")
    (row,) = description["members"]
    assert (row["client"], row["partitions"]) == ("truck", [["orders", 0], ["orders", 1]])
    assert [part["member"] for part in description["partitions"]] == [row["member"]] * 2
    assert [part["lag"] for part in description["partitions"]] == [10, 0]
    assert "truck" in done("describe", "shipping")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--to-offset", "7"], 7),
        (["--to-offset", "-1"], 9),
        (["--to-beginning"], 0),
        (["--to-end"], 10),
        (["--to-time", str(START + 2000)], 2),
        (["--to-time", "2023-11-14T22:13:23Z"], 3),
        (["--to-time", "-1h"], 10),
    ],
)
def test_group_continues_where_it_was_reset(server: str, billing: None, arguments: list[str], expected: int) -> None:
    before = committed("billing")
    done("reset", "billing", "--topic", "orders:0", *arguments, "--dry-run")
    assert committed("billing") == before
    done("reset", "billing", "--topic", "orders:0", *arguments)
    assert committed("billing")[0] == expected
    printed = invoke("consume", "orders", "--group", "billing").stdout.splitlines()
    assert printed == [str(number) for number in range(expected, 10)]


def test_resets_are_reported(server: str, billing: None) -> None:
    (move,) = json_of("group", "reset", "billing", "-t", "orders:0", "--to-beginning")
    assert move == {
        "type": "move",
        "group": "billing",
        "topic": "orders",
        "partition": 0,
        "from_offset": 4,
        "to_offset": 0,
        "done": True,
    }
    assert "would continue at" in done("reset", "billing", "--to-end", "--dry-run")


def test_reset_includes_partitions_without_a_committed_offset(server: str, billing: None) -> None:
    """The group has read one of two partitions."""
    write_topic(server, "orders", [Seen(None, b"%d" % number, partition=1) for number in range(3)])
    invoke("topic", "create", "payments")
    done("reset", "shipping", "--topic", "orders:0", "--to-offset", 4, "--create")
    done("reset", "shipping", "--topic", "payments", "--to-end")
    invoke("topic", "delete", "payments")
    assert committed("shipping")[1] is None
    done("reset", "shipping", "--to-end")
    assert committed("shipping") == {0: 10, 1: 3}


def test_reset_of_a_group_with_deleted_topics_only_asks_for_topics(server: str, billing: None) -> None:
    invoke("topic", "delete", "orders")
    assert "--topic" in one_line_error(invoke("group", "reset", "billing", "--to-end"))


def test_offset_past_the_end_becomes_the_end_as_the_help_says(server: str, billing: None) -> None:
    done("reset", "billing", "--to-offset", 11)
    assert committed("billing") == {0: 10, 1: 0}


def test_reset_creates_a_group(server: str) -> None:
    done("reset", "new", "--topic", "orders", "--to-offset", "5", "--create")
    assert committed("new") == {0: 5, 1: 0}


def test_deleted_group_is_gone(server: str, billing: None) -> None:
    assert done("delete", "billing") == "deleted billing\n"
    assert json_of("group", "list") == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["describe", "unknown"], "stratalog group list"),
        (["delete", "unknown"], "stratalog group list"),
        (["reset", "unknown", "--to-end"], "stratalog group list"),
        (["reset", "unknown", "--to-end", "--create"], "--topic"),
        (["reset", "billing"], "--to-beginning"),
        (["reset", "billing", "--to-end", "--to-beginning"], "one of"),
        (["reset", "billing", "--to-offset", "x"], "--to-offset is 'x'"),
        (["list", "--state", "foo"], "no group is in state 'foo'; the states are PreparingRebalance, "),
        (["reset", "billing", "--to-time", "x"], "--to-time is 'x'"),
        (["reset", "billing", "--to-end", "--topic", "nowhere"], "'nowhere'"),
        (["reset", "billing", "--to-end", "--topic", "orders:2"], "partitions 0 to 1"),
        (["reset", "billing", "--to-end", "--topic", "orders:x"], "partitions 0 to 1"),
    ],
)
def test_invalid_arguments_are_refused_in_one_line_with_advice(
    server: str, billing: None, arguments: list[str], message: str
) -> None:
    assert message in one_line_error(invoke("group", *arguments))


@pytest.mark.parametrize("arguments", [["reset", "shipping", "--to-end", "-t", "orders"], ["delete", "shipping"]])
def test_group_with_members_is_left_alone(server: str, member: None, arguments: list[str]) -> None:
    assert "stop" in one_line_error(invoke("group", *arguments))


@pytest.mark.usefixtures("billing")
def test_reset_of_a_new_group_says_so() -> None:
    reset = ("--topic", "orders", "--to-end", "--dry-run", "--create")
    assert "biling (new group)  would continue at" in invoke("group", "reset", "biling", *reset).stdout
    assert "(new group)" not in invoke("group", "reset", "billing", *reset).stdout


@pytest.mark.parametrize("dry_run", [[], ["--dry-run"]])
def test_reset_of_a_mistyped_group_does_not_create_it(server: str, billing: None, dry_run: list[str]) -> None:
    refused = invoke("group", "reset", "biling", "--topic", "orders", "--to-end", *dry_run)
    assert one_line_error(refused) == (
        "stratalog: group 'biling' does not exist; did you mean 'billing'? `stratalog group list` shows all groups, "
        "and --create creates this one\n"
    )
    assert [row["group"] for row in json_of("group", "list")] == ["billing"]


def test_missing_group_is_one_sentence(server: str) -> None:
    message = one_line_error(invoke("group", "describe", "biling"))
    assert ".;" not in message
    assert "; check the name" in message


def test_mistyped_group_gets_a_suggestion(server: str, billing: None) -> None:
    assert one_line_error(invoke("group", "describe", "biling")).endswith("; did you mean 'billing'?\n")


def test_control_characters_of_a_group_do_not_reach_the_terminal(server: str) -> None:
    done("reset", "a\x1b[2Jb", "--topic", "orders", "--to-end", "--create")
    shown = done("list") + done("describe", "a\x1b[2Jb") + done("delete", "a\x1b[2Jb")
    assert "\x1b" not in shown
    assert "deleted a\\x1b[2Jb\n" in shown

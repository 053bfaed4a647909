"""The commands for clusters, with a single broker: tests/cluster/test_operators.py has the others."""

from __future__ import annotations

import pytest

from tests.cli.running import invoke, json_of, one_line_error

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def done(*arguments: object) -> str:
    result = invoke(*arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def test_single_broker_is_not_a_cluster_of_one(empty_server: str) -> None:
    done("topic", "create", "orders", "--assignment", "1,1,1")
    (row,) = json_of("cluster", "status")
    assert row["controller"] == 1
    assert row["partitions"] >= 3  # and those of internal topics, if another test has used a group
    (broker,) = row["brokers"]
    assert f"{broker['host']}:{broker['port']}" == empty_server
    assert (broker["state"], broker["leaders"], broker["replicas"]) == ("up", row["partitions"], row["partitions"])
    assert not any(row[name] for name in ("under_replicated", "under_min_isr", "leaderless", "reassignments"))
    title, columns, values, verdict = done("cluster", "status").splitlines()
    assert title.startswith(f"cluster {row['cluster_id']}  controller 1, 1 broker, ")
    assert columns.split() == ["broker", "address", "rack", "state", "leaders", "replicas"]
    assert values.split() == ["1", empty_server, "-", "up", f"{row['partitions']}", f"{row['partitions']}"]
    assert verdict == "every partition has a leader, and all replicas are in sync"


def test_partition_without_enough_replicas_is_not_shown(empty_server: str) -> None:
    done("topic", "create", "orders", "--partitions", 1, "--set", "min.insync.replicas=1")
    assert json_of("cluster", "status")[0]["under_min_isr"] == []


def test_elections_and_moves_are_made_although_nothing_can_change(empty_server: str) -> None:
    done("topic", "create", "orders", "--partitions", 2)
    assert done("cluster", "elect", "--preferred") == "no election was necessary\n"
    assert done("cluster", "elect", "orders", "--preferred") == "no election was necessary\n"
    assert done("cluster", "elect", "orders", "--unclean") == "no election was necessary\n"
    assert done("topic", "reassign", "--brokers", "all") == "nothing has to move\n"
    assert done("topic", "reassign", "orders", "--brokers", "1", "--execute") == "nothing has to move\n"
    assert done("topic", "reassign", "--cancel") == "no reassignment is running\n"
    assert json_of("topic", "reassign", "--brokers", "all") == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cluster", "elect"), "give --preferred or --unclean"),
        (("cluster", "elect", "--unclean"), "name the topics to which it applies"),
        (("topic", "reassign"), "give one of --brokers, --drain and --cancel"),
        (("topic", "reassign", "--brokers", "1", "--drain", "1"), "give one of --brokers, --drain and --cancel"),
        (("topic", "reassign", "--cancel", "--execute"), "--cancel needs no --execute"),
        (("topic", "reassign", "--brokers", "1;2"), "--brokers is '1;2'; it must be broker ids like 1,2,3, or all"),
        (("topic", "reassign", "--brokers", "1,7"), "--brokers names broker 7, which is not in the cluster; it has 1"),
        (("topic", "reassign", "--drain", "1"), "has 1 replica, and 0 brokers may hold them"),
        (("topic", "create", "new", "--assignment", "1:x"), "--assignment is '1:x'; it must be like 1:2:3,2:3:1"),
        (("topic", "create", "new", "--assignment", "1", "-p", "2"), "leave out the other counts"),
    ],
)
def test_wrong_options_are_accepted(empty_server: str, arguments: tuple[str, ...], message: str) -> None:
    done("topic", "create", "orders", "--partitions", 1)
    assert message in one_line_error(invoke(*arguments))

"""The commands and metrics with which an operator runs a cluster of three brokers."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stratalog.client import Admin, Producer
from stratalog.lab.cluster import LabCluster
from tests.cli.running import invoke, json_of, one_line_error, run
from tests.cluster.conftest import SETTINGS
from tests.cluster.traffic import wait_for_isr

_SECONDS = 60.0


@pytest.fixture
def operated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LabCluster]:
    """A cluster whose brokers are in three racks, serve metrics, and are in the environment of the commands."""
    cluster = LabCluster(
        tmp_path,
        settings={**SETTINGS, "auto.leader.rebalance.enable": False},
        own_settings={node_id: {"broker.rack": f"rack{node_id}"} for node_id in (1, 2, 3)},
        dies_with_thread=True,
    )
    for broker in cluster.brokers.values():
        broker.arguments = ("--metrics", "127.0.0.1:0")
    try:
        cluster.start()
        monkeypatch.setenv("STRATALOG_BOOTSTRAP_SERVER", cluster.bootstrap_servers)
        yield cluster
    finally:
        cluster.kill()


def done(*arguments: object) -> str:
    result = invoke(*arguments)
    assert (result.exit_code, result.stderr) == (0, ""), result.stderr
    return result.stdout


def status() -> dict[str, Any]:
    result = invoke("cluster", "status", "--json")
    assert result.stdout, result.stderr or repr(result.exception)
    row: dict[str, Any] = json.loads(result.stdout)
    return row


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not within {_SECONDS:g} s: {what}"
        time.sleep(0.1)


def metrics(cluster: LabCluster, node_id: int) -> dict[str, float]:
    """Return the metrics of a broker, by name with labels."""
    line = cluster.broker(node_id).ready_line
    url = next(word for word in line.replace(",", " ").split() if word.startswith("http://"))
    with urllib.request.urlopen(url, timeout=10) as response:
        text = response.read().decode()
    values = (each.rsplit(" ", 1) for each in text.splitlines() if each.startswith("stratalog_"))
    return {name: float(value) for name, value in values}


def total(cluster: LabCluster, name: str) -> float:
    return sum(metrics(cluster, node_id)[name] for node_id, broker in cluster.brokers.items() if broker.is_running)


def describe(topic: str) -> list[dict[str, Any]]:
    (row,) = json_of("topic", "describe", topic)
    partitions: list[dict[str, Any]] = row["partitions"]
    return partitions


def test_dead_broker_is_not_shown_and_its_return_neither(operated: LabCluster) -> None:
    cluster_id = status()["cluster_id"]
    assert f"of cluster {cluster_id}, " in operated.broker(3).ready_line
    created = done("topic", "create", "orders", "--assignment", "1:2:3,2:3:1,3:1:2", "--set", "min.insync.replicas=2")
    assert created == "created orders: 3 partitions, 3 replicas each\n"
    done("topic", "create", "lonely", "--assignment", "3")
    wait_for_isr(operated, "orders", 3)
    wait_for_isr(operated, "lonely", 1)
    columns = ("broker", "rack", "state", "leaders", "replicas")
    assert [tuple(row[column] for column in columns) for row in status()["brokers"]] == [
        (1, "rack1", "up", 1, 3),
        (2, "rack2", "up", 1, 3),
        (3, "rack3", "up", 2, 4),
    ]
    assert "every partition has a leader, and all replicas are in sync" in done("cluster", "status")
    assert total(operated, "stratalog_active_controller_count") == 1
    assert total(operated, "stratalog_partition_count") == 10
    assert total(operated, "stratalog_leader_count") == 4
    assert total(operated, "stratalog_under_replicated_partitions") == 0
    assert total(operated, "stratalog_offline_partitions") == 0

    operated.broker(3).kill()
    wait_until(lambda: len(status()["leaderless"]) == 1, "broker 3 is taken for dead")
    wait_until(lambda: len(status()["under_replicated"]) == 4, "broker 3 has left the ISRs")
    broken = invoke("cluster", "status")
    assert broken.exit_code == 1
    assert "1 partition without a leader" in broken.stdout
    assert "4 partitions with replicas out of sync" in broken.stdout
    assert [row["state"] for row in status()["brokers"]] == ["up", "up", "away"]
    assert status()["leaderless"][0]["offline"] == [3]
    assert describe("lonely")[0]["leader"] == -1
    assert "none" in done("topic", "describe", "lonely")
    assert total(operated, "stratalog_under_replicated_partitions") == 3
    assert total(operated, "stratalog_offline_partitions") == 1
    assert total(operated, "stratalog_leader_elections_total") >= 1
    assert total(operated, "stratalog_unclean_leader_elections_total") == 0

    operated.broker(2).kill()
    wait_until(lambda: len(status()["under_min_isr"]) == 4, "broker 2 has left the ISRs")
    assert {tuple(row["eligible"]) for row in status()["under_min_isr"] if row["topic"] == "orders"} <= {(2,), (3,)}
    operated.start_brokers([2, 3])
    wait_for_isr(operated, "orders", 3)
    wait_until(lambda: not status()["under_replicated"], "all replicas are in sync")
    assert sum(metrics(operated, 1)[f"stratalog_isr_{change}_total"] for change in ("shrinks", "expands")) >= 1


def test_leaders_and_replicas_do_not_go_where_the_operator_wants_them(
    operated: LabCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    done("topic", "create", "orders", "--assignment", "1:2,1:3,1:2,1:3")
    wait_for_isr(operated, "orders", 2)
    with Producer(operated.bootstrap_servers) as producer:
        for partition in range(4):
            for _ in range(50):
                producer.send("orders", b"x" * 10_000, partition=partition)
    rows = json_of("topic", "reassign", "orders", "--brokers", "all")
    assert rows
    assert [row["replicas"][0] for row in describe("orders")] == [1, 1, 1, 1]  # nothing has moved yet
    plan = done("topic", "reassign", "orders", "--brokers", "all")
    assert "; --execute does it" in plan
    assert "reassigned" in done("topic", "reassign", "orders", "--brokers", "all", "--execute")
    done("cluster", "elect", "orders", "--preferred")
    wait_until(
        lambda: all(row["leader"] == row["replicas"][0] for row in describe("orders")), "the preferred leaders lead"
    )
    rows = status()["brokers"]
    assert max(row["replicas"] for row in rows) - min(row["replicas"] for row in rows) <= 1
    assert max(row["leaders"] for row in rows) - min(row["leaders"] for row in rows) <= 1
    assert done("topic", "reassign", "orders", "--brokers", "all") == "nothing has to move\n"
    assert done("cluster", "elect", "--preferred") == "no election was necessary\n"

    idle = next(node_id for node_id in operated.brokers if node_id != status()["controller"])
    assert "reassigned" in done("topic", "reassign", "--drain", idle, "--execute")
    assert [row["replicas"] for row in status()["brokers"] if row["broker"] == idle] == [0]
    assert not any(idle in row["replicas"] for row in describe("orders"))

    others = [broker for node_id, broker in operated.brokers.items() if node_id != idle]
    monkeypatch.setenv("STRATALOG_BOOTSTRAP_SERVER", ",".join(broker.bootstrap_servers for broker in others))
    operated.broker(idle).pause()  # it stays registered for a moment, and copies nothing
    began = done("topic", "reassign", "orders", "--brokers", "all", "--execute", "--no-wait")
    assert "`stratalog topic reassign --cancel` stops them" in began
    assert "being reassigned" in done("cluster", "status")
    assert "cancelled the reassignment of orders-" in done("topic", "reassign", "--cancel")
    operated.broker(idle).resume()
    wait_until(lambda: len(status()["brokers"]) == 3, "the broker has registered again")
    assert not status()["reassignments"]
    assert not any(idle in row["replicas"] for row in describe("orders"))

    assert "broker 9, which is not in the cluster; it has 1, 2, 3" in one_line_error(
        invoke("topic", "reassign", "--drain", 9)
    )
    assert "orders-0 has 2 replicas, and 1 broker may hold them" in one_line_error(
        invoke("topic", "reassign", "--brokers", "1")
    )
    with Admin(operated.bootstrap_servers) as admin:
        assert admin.list_partition_reassignments() == {}


def test_broker_that_can_not_join_shows_a_traceback(operated: LabCluster, tmp_path: Path) -> None:
    def refusal(name: str, node_id: int, *, zookeeper: str = operated.zookeeper.address) -> str:
        settings = {"zookeeper.connect": zookeeper, "node.id": node_id}
        settings |= {"zookeeper.session.timeout.ms": 3000, "zookeeper.connection.timeout.ms": 2000}
        pairs = [part for pair in settings.items() for part in ("--set", "=".join(map(str, pair)))]
        done = run("serve", "--data-dir", tmp_path / name, "--listen", "127.0.0.1:0", *pairs)
        assert (done.returncode, done.stdout) == (2, "")
        assert "Traceback" not in done.stderr
        last: str = done.stderr.splitlines()[-1]
        assert last.startswith("stratalog: ")
        return last

    assert "node.id 1 is in use: another broker is registered with it" in refusal("second", 1)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "meta.properties").write_text("version=1\ncluster.id=AAAAAAAAAAAAAAAAAAAAAA\nnode.id=7\n")
    assert "belongs to cluster AAAAAAAAAAAAAAAAAAAAAA, and ZooKeeper has cluster" in refusal("foreign", 7)
    assert "ZooKeeper at 127.0.0.1:1 did not respond within 2000 ms" in refusal("new", 8, zookeeper="127.0.0.1:1")

"""Longer outages of a cluster of three: several brokers, the controller, single links, restarts under load."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from stratalog.lab.cluster import LabCluster
from stratalog.protocol.error_codes import ErrorCode
from tests.cluster.conftest import SETTINGS
from tests.cluster.direct_producer import DirectProducer
from tests.cluster.raw_requests import controller_of
from tests.cluster.traffic import (
    HANGING,
    Traffic,
    check,
    create_topic,
    delete_topic,
    leaders,
    wait_for_isr,
    wait_for_successors,
    wait_until,
    wait_until_leaderless,
)

pytestmark = pytest.mark.slow

PARTITIONS = 3


@pytest.fixture
def cluster_with_long_leases(tmp_path: Path) -> Iterator[LabCluster]:
    settings = {**SETTINGS, "zookeeper.session.timeout.ms": 60_000}
    running = LabCluster(tmp_path, settings=settings, dies_with_thread=True)
    try:
        yield running.start()
    finally:
        running.kill()


def empty(cluster: LabCluster, node_id: int) -> None:
    """Replace a broker's disk by an empty one."""
    shutil.rmtree(cluster.broker(node_id).data_dir)


def test_acknowledged_records_survive_the_controller_that_is_killed(linked_cluster: LabCluster) -> None:
    cluster = linked_cluster
    create_topic(cluster, "controlled", PARTITIONS)
    with Traffic(cluster, "controlled", PARTITIONS) as traffic:
        traffic.wait_for_more()
        for _ in range(2):
            victim = controller_of(cluster, of=1)
            observer = victim % 3 + 1
            cluster.broker(victim).kill()
            traffic.wait_for_more()
            wait_for_successors(cluster, "controlled", victim)
            wait_until(
                lambda: controller_of(cluster, observer) not in (-1, victim),  # noqa: B023
                lambda: "there is no new controller",
            )
            cluster.broker(victim).start()
            wait_for_isr(cluster, "controlled", 3)
    check(cluster, traffic)


def test_acknowledged_records_survive_brokers_that_are_all_killed_at_once(linked_cluster: LabCluster) -> None:
    cluster = linked_cluster
    create_topic(cluster, "everywhere", PARTITIONS)
    with Traffic(cluster, "everywhere", PARTITIONS) as traffic:
        for _ in range(2):
            traffic.wait_for_more()
            for broker in cluster.brokers.values():
                broker.kill()
            cluster.start_brokers(cluster.brokers)
            traffic.wait_for_more()
            wait_for_isr(cluster, "everywhere", 3)
    check(cluster, traffic)


def test_clients_see_no_error_while_each_broker_is_restarted(linked_cluster: LabCluster) -> None:
    cluster = linked_cluster
    create_topic(cluster, "rolling", PARTITIONS)
    with Traffic(cluster, "rolling", PARTITIONS) as traffic:
        traffic.wait_for_more()
        for node_id, broker in cluster.brokers.items():
            broker.stop()
            traffic.wait_for_more()
            broker.start()
            wait_for_isr(cluster, "rolling", 3, of=[node_id])
            traffic.wait_for_more()
    check(cluster, traffic)


def test_writes_wait_until_enough_replicas_are_in_sync(linked_cluster: LabCluster) -> None:
    cluster = linked_cluster
    create_topic(cluster, "alone", PARTITIONS)
    create_topic(cluster, "refused")
    with Traffic(cluster, "alone", PARTITIONS) as traffic:
        traffic.wait_for_more()
        last = leaders(cluster, "refused")[0]
        others = [node_id for node_id in cluster.brokers if node_id != last]
        for node_id in others:
            cluster.broker(node_id).kill()
        with DirectProducer(cluster, last, "refused") as direct:
            wait_until(
                lambda: direct.produce(b"refused", acks=-1) == ErrorCode.not_enough_replicas,
                lambda: "a leader without followers should refuse acks=all",
            )
        for node_id in others:
            cluster.broker(node_id).start()
            traffic.wait_for_more()
        wait_for_isr(cluster, "alone", 3)
    check(cluster, traffic)


def test_acknowledged_records_survive_a_leader_without_zookeeper(linked_cluster: LabCluster) -> None:
    """Its followers still reach it, and so do its clients."""
    cluster = linked_cluster
    create_topic(cluster, "unleased", PARTITIONS)
    with Traffic(cluster, "unleased", PARTITIONS, **HANGING) as traffic:
        traffic.wait_for_more()
        victim = leaders(cluster, "unleased")[0]
        cluster.links[victim].zookeeper.cut()
        with DirectProducer(cluster, victim, "unleased") as direct:
            wait_for_successors(cluster, "unleased", victim)
            assert direct.produce(b"-1", acks=1) == ErrorCode.not_leader_or_follower
        traffic.wait_for_more()
        cluster.links[victim].restore()
        wait_for_isr(cluster, "unleased", 3)
        traffic.wait_for_more()
    check(cluster, traffic)


def test_acknowledged_records_survive_a_leader_that_no_broker_reaches(linked_cluster: LabCluster) -> None:
    """It keeps its session, so it keeps leading: with too few replicas in sync, it refuses writes."""
    cluster = linked_cluster
    create_topic(cluster, "unreachable", PARTITIONS)
    with Traffic(cluster, "unreachable", PARTITIONS, **HANGING) as traffic:
        traffic.wait_for_more()
        victim = leaders(cluster, "unreachable")[0]
        cluster.links[victim].listener.cut()
        with DirectProducer(cluster, victim, "unreachable") as direct:
            wait_until(
                lambda: direct.produce(b"-1", acks=-1) == ErrorCode.not_enough_replicas,
                lambda: "a leader whose followers are away should refuse acks=all",
            )
        assert leaders(cluster, "unreachable")[0] == victim
        cluster.links[victim].restore()
        wait_for_isr(cluster, "unreachable", 3)
        traffic.wait_for_more()
    assert traffic.errors == []
    traffic.check(ignoring=b"-1")


def test_topic_that_is_deleted_while_a_broker_is_away_comes_back(linked_cluster: LabCluster) -> None:
    cluster = linked_cluster
    create_topic(cluster, "again", PARTITIONS)
    with Traffic(cluster, "again", PARTITIONS) as first:
        first.wait_for_more()
    cluster.broker(3).kill()
    delete_topic(cluster, "again")
    create_topic(cluster, "again", PARTITIONS, in_sync=2, assignment=[[1, 2, 3], [2, 3, 1], [3, 1, 2]])
    with Traffic(cluster, "again", PARTITIONS) as traffic:
        traffic.wait_for_more()
        cluster.broker(3).start()
        wait_for_isr(cluster, "again", 3)
        traffic.wait_for_more()
    check(cluster, traffic)
    assert list(cluster.broker(3).data_dir.glob("again-*-stray"))


def test_broker_without_its_data_copies_everything_again(linked_cluster: LabCluster) -> None:
    cluster = linked_cluster
    create_topic(cluster, "emptied", PARTITIONS)
    with Traffic(cluster, "emptied", PARTITIONS) as traffic:
        traffic.wait_for_more()
        victim = leaders(cluster, "emptied")[0]
        cluster.broker(victim).kill()
        empty(cluster, victim)
        cluster.broker(victim).start()
        wait_for_isr(cluster, "emptied", 3)
        traffic.wait_for_more()
    check(cluster, traffic)


def test_broker_without_its_data_leads_before_the_others_are_back(linked_cluster: LabCluster) -> None:
    cluster = linked_cluster
    create_topic(cluster, "first", PARTITIONS)
    with Traffic(cluster, "first", PARTITIONS) as traffic:
        traffic.wait_for_more()
        for broker in cluster.brokers.values():
            broker.kill()
        empty(cluster, 1)
        cluster.broker(1).start()
        wait_until_leaderless(cluster, "first", 1)
        cluster.start_brokers([2, 3])
        wait_for_isr(cluster, "first", 3)
        traffic.wait_for_more()
    check(cluster, traffic)


def test_brokers_serve_while_their_leases_last(cluster_with_long_leases: LabCluster) -> None:
    cluster = cluster_with_long_leases
    create_topic(cluster, "leased", PARTITIONS)
    with Traffic(cluster, "leased", PARTITIONS) as traffic:
        traffic.wait_for_more()
        cluster.zookeeper.kill()
        traffic.wait_for_more()
        cluster.zookeeper.start()
        traffic.wait_for_more()
    check(cluster, traffic)
    assert "no longer leads" not in "".join(broker.logs for broker in cluster.brokers.values())

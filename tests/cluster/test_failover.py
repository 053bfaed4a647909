"""Three brokers, a real ZooKeeper and a real client: acknowledged records survive the loss of any broker, and of
ZooKeeper."""

from __future__ import annotations

from stratalog.lab.cluster import LabCluster
from stratalog.protocol.error_codes import ErrorCode
from tests.cluster.direct_producer import DirectProducer
from tests.cluster.traffic import (
    HANGING,
    Traffic,
    all_replicas,
    check,
    create_topic,
    leaders,
    replica,
    wait_for_isr,
    wait_for_successors,
    wait_until,
)

PARTITIONS = 3
ZOMBIE = b"-1"


def test_acknowledged_records_survive_a_leader_that_is_killed(linked_cluster: LabCluster) -> None:
    cluster = linked_cluster
    create_topic(cluster, "killed", PARTITIONS)
    with Traffic(cluster, "killed", PARTITIONS) as traffic:
        traffic.wait_for_more()
        victim = leaders(cluster, "killed")[0]
        cluster.broker(victim).kill()
        traffic.wait_for_more()
        assert victim not in leaders(cluster, "killed").values()
        cluster.broker(victim).start()
        wait_for_isr(cluster, "killed", 3)
        traffic.wait_for_more()
    check(cluster, traffic)


def test_leader_that_was_paused_for_longer_than_its_session_acknowledges_nothing(linked_cluster: LabCluster) -> None:
    cluster = linked_cluster
    create_topic(cluster, "paused", PARTITIONS)
    with Traffic(cluster, "paused", PARTITIONS, **HANGING) as traffic:
        traffic.wait_for_more()
        victim = leaders(cluster, "paused")[0]
        with DirectProducer(cluster, victim, "paused") as direct, DirectProducer(cluster, victim, "paused") as second:
            cluster.broker(victim).pause()
            direct.send(ZOMBIE, acks=1)
            second.send(ZOMBIE, acks=-1)
            wait_for_successors(cluster, "paused", victim)
            traffic.wait_for_more()
            cluster.broker(victim).resume()
            assert direct.response() == second.response() == ErrorCode.not_leader_or_follower
            assert direct.produce(ZOMBIE, acks=1) == ErrorCode.not_leader_or_follower
        wait_for_isr(cluster, "paused", 3)
        traffic.wait_for_more()
    check(cluster, traffic)


def test_leader_that_is_cut_off_truncates_the_records_that_only_it_has(linked_cluster: LabCluster) -> None:
    cluster = linked_cluster
    create_topic(cluster, "cut", PARTITIONS)
    with Traffic(cluster, "cut", PARTITIONS, **HANGING) as traffic:
        traffic.wait_for_more()
        victim = leaders(cluster, "cut")[0]
        links = cluster.links[victim]
        with DirectProducer(cluster, victim, "cut") as direct:
            links.listener.cut()
            assert direct.produce(ZOMBIE, acks=1) == ErrorCode.none  # it may still lead: acks=1 promises no more
            links.zookeeper.cut()
            assert ZOMBIE in replica(cluster.broker(victim).data_dir, "cut", 0)
            wait_for_successors(cluster, "cut", victim)
            assert direct.produce(ZOMBIE, acks=1) == ErrorCode.not_leader_or_follower
            assert direct.produce(ZOMBIE, acks=-1) == ErrorCode.not_leader_or_follower
        traffic.wait_for_more()
        links.restore()
        wait_for_isr(cluster, "cut", 3)
        traffic.wait_for_more()
    check(cluster, traffic)


def test_brokers_come_back_by_themselves_after_zookeeper(linked_cluster: LabCluster) -> None:
    cluster = linked_cluster
    create_topic(cluster, "restarted", PARTITIONS)
    create_topic(cluster, "probed")
    with Traffic(cluster, "restarted", PARTITIONS) as traffic:
        traffic.wait_for_more()
        leader = leaders(cluster, "probed")[0]
        with DirectProducer(cluster, leader, "probed") as direct:
            cluster.zookeeper.kill()
            wait_until(
                lambda: direct.produce(ZOMBIE, acks=1) == ErrorCode.not_leader_or_follower,
                lambda: "the leader should refuse writes when its lease is over",
            )
        wait_until(
            lambda: f"broker {leader} leads no partition now" in cluster.broker(leader).logs,
            lambda: "the leader should say so",
        )
        cluster.zookeeper.start()
        traffic.wait_for_more()
        wait_for_isr(cluster, "restarted", 3)
    check(cluster, traffic)


def test_replicas_differ_after_a_clean_stop(linked_cluster: LabCluster) -> None:
    """The last test of this file: it stops the cluster with the topics of the others."""
    cluster = linked_cluster
    create_topic(cluster, "stopped", PARTITIONS)
    with Traffic(cluster, "stopped", PARTITIONS) as traffic:
        traffic.wait_for_more()
    cluster.stop()
    first, *others = [all_replicas(broker.data_dir) for broker in cluster.brokers.values()]
    assert first
    for other in others:
        assert other.keys() == first.keys()
        assert [name for name in first if other[name] != first[name]] == []

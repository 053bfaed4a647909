"""A machine that goes down loses what it had not synced. Two other replicas have it."""

from __future__ import annotations

import random

import pytest

from stratalog.lab.cluster import LabCluster
from tests.cluster.power_loss import lose_page_cache
from tests.cluster.traffic import Traffic, check, create_topic, leaders, wait_for_isr, wait_until_leaderless

pytestmark = pytest.mark.slow

PARTITIONS = 3


@pytest.mark.parametrize("seed", [1, 2])
def test_leader_that_lost_its_page_cache_leads_without_it(linked_cluster: LabCluster, seed: int) -> None:
    """It is back before its old session has ended, so the other brokers still take it for the leader."""
    cluster = linked_cluster
    topic = f"leader-{seed}"
    create_topic(cluster, topic, PARTITIONS)
    with Traffic(cluster, topic, PARTITIONS) as traffic:
        traffic.wait_for_more()
        victim = leaders(cluster, topic)[0]
        cluster.broker(victim).kill()
        assert lose_page_cache(cluster.broker(victim).data_dir, random.Random(seed)) > 0
        cluster.broker(victim).start()
        wait_for_isr(cluster, topic, 3)
        traffic.wait_for_more()
    check(cluster, traffic)
    assert "has lost the ends of its logs; it may join ISRs again" in all_logs(cluster)


def test_follower_that_lost_its_page_cache_stays_in_the_isr(linked_cluster: LabCluster) -> None:
    cluster = linked_cluster
    create_topic(cluster, "follower", 1, assignment=[[1, 2, 3]])
    with Traffic(cluster, "follower", 1) as traffic:
        traffic.wait_for_more()
        cluster.broker(3).kill()
        assert lose_page_cache(cluster.broker(3).data_dir, random.Random(3)) > 0
        cluster.broker(3).start()
        wait_for_isr(cluster, "follower", 3)
        traffic.wait_for_more()
    check(cluster, traffic)


def test_broker_that_lost_its_page_cache_leads_before_the_others_are_back(linked_cluster: LabCluster) -> None:
    cluster = linked_cluster
    create_topic(cluster, "all", PARTITIONS)
    with Traffic(cluster, "all", PARTITIONS) as traffic:
        traffic.wait_for_more()
        for broker in cluster.brokers.values():
            broker.kill()
        assert lose_page_cache(cluster.broker(2).data_dir, random.Random(4)) > 0
        cluster.broker(2).start()
        wait_until_leaderless(cluster, "all", 2)
        cluster.broker(2).kill()  # the loss must not be forgotten over another restart
        cluster.broker(2).start()
        wait_until_leaderless(cluster, "all", 2)
        cluster.start_brokers([1, 3])
        wait_for_isr(cluster, "all", 3)
        traffic.wait_for_more()
    check(cluster, traffic)


def all_logs(cluster: LabCluster) -> str:
    return "".join(broker.logs for broker in cluster.brokers.values())

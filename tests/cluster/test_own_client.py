"""Stratalog's own clients with default settings, while the leaders of a cluster die, move and restart."""

from __future__ import annotations

import time

from stratalog.lab.cluster import LabCluster
from tests.cluster.own_traffic import OwnTraffic
from tests.cluster.traffic import create_topic, leaders, wait_for_isr

PARTITIONS = 3
LONGER_THAN_THE_SESSION = 5.0  # seconds


def test_own_clients_lose_a_record_or_see_an_error_when_leaders_die_and_move(cluster: LabCluster) -> None:
    create_topic(cluster, "orders", PARTITIONS)
    with OwnTraffic(cluster, "orders", PARTITIONS) as traffic:
        traffic.wait_for_more()
        victim = leaders(cluster, "orders")[0]
        cluster.broker(victim).kill()
        traffic.wait_for_more()
        assert victim not in leaders(cluster, "orders").values()
        cluster.broker(victim).start()
        wait_for_isr(cluster, "orders", 3)
        for broker in cluster.brokers.values():
            broker.stop()
            traffic.wait_for_more()
            broker.start()
            wait_for_isr(cluster, "orders", 3)
        traffic.wait_for_more()
    traffic.check()


def test_own_clients_fail_when_too_few_replicas_are_left_or_a_leader_is_paused(cluster: LabCluster) -> None:
    create_topic(cluster, "orders", PARTITIONS)
    with OwnTraffic(cluster, "orders", PARTITIONS) as traffic:
        traffic.wait_for_more()
        leader = leaders(cluster, "orders")[0]
        others = [node_id for node_id in cluster.brokers if node_id != leader]
        for node_id in others:
            cluster.broker(node_id).kill()
        time.sleep(LONGER_THAN_THE_SESSION)  # one replica is left, and no write can be acknowledged
        cluster.start_brokers(others)
        traffic.wait_for_more()
        wait_for_isr(cluster, "orders", 3)
        paused = leaders(cluster, "orders")[0]
        cluster.broker(paused).pause()
        time.sleep(LONGER_THAN_THE_SESSION)
        cluster.broker(paused).resume()
        traffic.wait_for_more()
        wait_for_isr(cluster, "orders", 3)
    traffic.check()

"""Three brokers, a real ZooKeeper and a real client: what was acknowledged survives the loss of any one of them."""

from __future__ import annotations

from stratalog.lab.cluster import LabCluster
from tests.cluster.traffic import Traffic, create_topic, leaders, segments, wait_for_isr

PARTITIONS = 3


def test_acknowledged_records_survive_a_leader_that_is_killed(cluster: LabCluster) -> None:
    create_topic(cluster, "orders", PARTITIONS)
    with Traffic(cluster, "orders", PARTITIONS) as traffic:
        traffic.wait_for_more()
        victim = leaders(cluster, "orders")[0]
        cluster.broker(victim).kill()
        traffic.wait_for_more()
        assert victim not in leaders(cluster, "orders").values()
        cluster.broker(victim).start()
        wait_for_isr(cluster, "orders", 3)
        traffic.wait_for_more()
    assert traffic.errors == []
    traffic.check()
    cluster.stop()
    for partition in range(PARTITIONS):
        first, *others = [segments(broker.data_dir, "orders", partition) for broker in cluster.brokers.values()]
        assert first
        assert all(other == first for other in others)

"""A single broker's data directory becomes the first broker of a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.client import Admin, Producer
from stratalog.lab.cluster import LabCluster
from stratalog.lab.serve_process import BrokerStartError, ServeProcess
from stratalog.lab.zookeeper import ZooKeeperServer
from tests.cluster.conftest import SETTINGS
from tests.cluster.traffic import create_topic, read_all

RECORDS = {offset: b"%d" % offset for offset in range(10)}


def test_topics_of_a_single_broker_are_lost_when_it_joins_a_cluster(tmp_path: Path) -> None:
    data = tmp_path / "broker-1"
    with ServeProcess(data, {"node.id": 1}, dies_with_thread=True) as alone:
        with Admin(alone.bootstrap_servers) as admin:
            admin.create_topic("orders", 2, config={"retention.ms": "-1"})
            before = admin.describe_topic("orders").id
        with Producer(alone.bootstrap_servers) as producer:
            for value in RECORDS.values():
                producer.send("orders", value, partition=1)
    cluster = LabCluster(
        tmp_path, brokers=2, settings={**SETTINGS, "default.replication.factor": 2}, dies_with_thread=True
    )
    try:
        cluster.start()
        with Admin(cluster.bootstrap_servers) as admin:
            assert admin.describe_topic("orders").id == before
        assert read_all(cluster.bootstrap_servers, "orders", 2) == {0: {}, 1: RECORDS}
        create_topic(cluster, "more", replicas=2)
        with Admin(cluster.bootstrap_servers) as admin:
            admin.delete_topic("orders")
        cluster.broker(1).stop()
        cluster.broker(1).start()
        with Admin(cluster.bootstrap_servers) as admin:
            assert list(admin.list_topics()) == ["more"], "a deleted topic has come back"
        assert cluster.broker(1).errors() == []
    finally:
        cluster.kill()


def test_replicas_are_taken_for_strays_without_their_cluster(tmp_path: Path) -> None:
    cluster = LabCluster(tmp_path, brokers=1, settings={"zookeeper.session.timeout.ms": 3000}, dies_with_thread=True)
    data = cluster.broker(1).data_dir
    try:
        cluster.start()
        create_topic(cluster, "orders", replicas=1)
        cluster.stop()
        with pytest.raises(BrokerStartError, match="belongs to a broker of a cluster, whose topics are in ZooKeeper"):
            ServeProcess(data, {"node.id": 1}, dies_with_thread=True).start()
        emptied = ZooKeeperServer(tmp_path / "emptied")
        cluster.broker(1).settings["zookeeper.connect"] = emptied.start().address
        try:
            with pytest.raises(BrokerStartError, match="ZooKeeper has no znode /cluster/id any more"):
                cluster.broker(1).start()
        finally:
            emptied.kill()
        assert (data / "orders-0").is_dir()
    finally:
        cluster.kill()
